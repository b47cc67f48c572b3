"""How to evaluate: one frozen record, checked when it is made."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from asbc.utils.checks import InputError

SPLITS = ("train", "validation", "test", "all")


@dataclass(frozen=True)
class EvaluationSettings:
    """The paper's protocol by default.

    Args:
        split: pairs to evaluate: train, validation, test or all.
        horizon: steps per window (H).
        stride: steps between window starts (S).
        max_windows: windows per pair at most (m).
        samples: posterior draws per pair (n).
        residual_prefix_steps: observed residuals before a window start that a correlated residual
            continues from; 0 starts it afresh.
        residual_prefix_noise: variance of their observation error relative to sigma^2.
        bootstrap: resampled sets of pairs behind each interval.
        simulated_drivers: simulated drivers for the checks of the posterior; 0 skips them.
        posterior_draws: posterior draws for each of them.
        pairs: ids of pairs to draw as case studies, besides the best, median and worst.
        seed: all randomness of the evaluation.
        chunk: windows in memory at once; changes no result.
    """

    split: str = "test"
    horizon: int = 50
    stride: int = 20
    max_windows: int = 20
    samples: int = 500
    residual_prefix_steps: int = 5
    residual_prefix_noise: float = 1e-2
    bootstrap: int = 1000
    simulated_drivers: int = 300
    posterior_draws: int = 199
    pairs: Sequence[str | int] = ()
    seed: int = 0
    chunk: int = 16

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InputError(f"evaluation.split={self.split}; expected one of {', '.join(SPLITS)}")
        smallest = {
            "horizon": 1,
            "stride": 1,
            "max_windows": 1,
            "samples": 2,
            "residual_prefix_steps": 0,
            "residual_prefix_noise": 0,
            "bootstrap": 1,
            "simulated_drivers": 0,
            "posterior_draws": 9,
            "chunk": 1,
        }
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InputError(
                    f"evaluation.{name}={getattr(self, name)}; expected at least {least}"
                )

    def protocol(self) -> dict[str, str | int | float]:
        """The settings that decide whether two results may be compared."""
        names = (
            "split",
            "horizon",
            "stride",
            "max_windows",
            "samples",
            "residual_prefix_steps",
            "residual_prefix_noise",
        )
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
