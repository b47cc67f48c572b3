"""What was evaluated: enough to label a row of a table, and to keep unlike runs apart."""

from dataclasses import asdict, dataclass
from typing import Any

RESIDUAL_NAMES = {"gaussian": "Gaussian", "matern": "Matérn"}
FULL_METHOD = "joint"


@dataclass(frozen=True)
class RunInfo:
    """One method's run.

    Attributes:
        method: how tables name it, without its seed.
        kind: "asbc" or "baseline".
        residual: residual model of its simulator.
        acquisition: how ASBC chose its simulations; None for baselines.
        variant: further overrides that make it a method of its own.
        seed: the run's seed; None where nothing is random.
        trained_on, evaluated_on: data in words.
        other_data: whether the two differ.
        selected_round: round whose weights were kept, for ASBC.
        folder: the run's folder.
        version: of the package that trained it.
        remark: what a table must say beside its name, e.g. that a sampler did not converge.
    """

    method: str
    kind: str
    residual: str
    trained_on: str
    evaluated_on: str
    acquisition: str | None = None
    variant: tuple[str, ...] = ()
    seed: int | None = None
    other_data: bool = False
    selected_round: int | None = None
    folder: str = ""
    version: str = ""
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `metrics.json`."""
        return asdict(self)


def asbc_label(residual: str, acquisition: str) -> str:
    """The paper's name of a variant; other acquisitions than the full method are named.

    Example:
        >>> asbc_label("matern", "joint"), asbc_label("gaussian", "theta_only")
        ('ASBC-Matérn', 'ASBC-Gaussian, theta_only')
    """
    name = f"ASBC-{RESIDUAL_NAMES.get(residual, residual)}"
    return name if acquisition == FULL_METHOD else f"{name}, {acquisition}"
