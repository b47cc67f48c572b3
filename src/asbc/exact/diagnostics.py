"""How to run NUTS, its chains as ArviZ data, and the verdict on whether they converged.

ArviZ is imported where it is used: it takes a second to load, and who only
reads settings has no use for it.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asbc.errors import InputError
from asbc.utils.checks import check_number

if TYPE_CHECKING:
    from arviz import InferenceData


class Chains(NamedTuple):
    """Draws of one posterior."""

    sites: dict[str, NDArray[np.float64]]  # each (chain, draw, ...)
    diverging: NDArray[np.bool_]  # (chain, draw)
    leapfrogs: NDArray[np.int64]  # (chain, draw)


@dataclass(frozen=True)
class NutsSettings:
    """Settings of the No-U-Turn sampler.

    Args:
        chains: independent chains, run side by side.
        warmup: adaptation steps of each chain, thrown away.
        draws: draws kept of each chain.
        target_accept: acceptance probability the step size is adapted to.
        max_tree_depth: log2 of the most leapfrog steps per draw.
        max_r_hat: largest rank-normalised r-hat of a converged run.
        min_ess: smallest bulk effective sample size of a converged run.
    """

    chains: int = 4
    warmup: int = 1000
    draws: int = 1000
    target_accept: float = 0.9
    max_tree_depth: int = 10
    max_r_hat: float = 1.01
    min_ess: float = 400.0

    def __post_init__(self) -> None:
        smallest = {"chains": 2, "warmup": 1, "draws": 4, "max_tree_depth": 1}
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InputError(f"nuts.{name}={getattr(self, name)}; expected at least {least}")
        if not 0 < self.target_accept < 1:
            raise InputError(
                f"nuts.target_accept={self.target_accept}; expected a number in (0, 1)"
            )
        check_number("nuts.max_r_hat", self.max_r_hat, above=1)
        check_number("nuts.min_ess", self.min_ess, minimum=0)


@dataclass(frozen=True)
class Convergence:
    """Worst diagnostics over everything that was sampled, and the bounds they must keep.

    Attributes:
        r_hat: largest rank-normalised r-hat.
        ess_bulk: smallest bulk effective sample size.
        divergences: draws that ended a divergent trajectory.
        draws: all draws after warm-up.
        max_r_hat, min_ess: the bounds.
        drivers: how many were sampled each by itself; 0 for a joint posterior.
        drivers_not_converged: those that broke a bound.
        drivers_by_importance: those that broke a bound with NUTS and were sampled again.

    Example:
        >>> one_of_two = {"drivers": 2, "drivers_not_converged": ("r/7",)}
        >>> Convergence(1.3, 90, 0, 8000, max_r_hat=1.01, min_ess=400, **one_of_two).remark
        '1 of 2 drivers did not converge'
    """

    r_hat: float
    ess_bulk: float
    divergences: int
    draws: int
    max_r_hat: float
    min_ess: float
    drivers: int = 0
    drivers_not_converged: tuple[str, ...] = ()
    drivers_by_importance: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether both bounds are kept everywhere; a NaN keeps none."""
        return self.r_hat < self.max_r_hat and self.ess_bulk > self.min_ess

    @property
    def remark(self) -> str:
        """What a table must say beside the method; empty when it converged by itself."""
        if not self.converged and not self.drivers:
            return "did not converge"
        remarks = {
            "did not converge": self.drivers_not_converged,
            "by importance sampling": self.drivers_by_importance,
        }
        return ", ".join(
            f"{len(names)} of {self.drivers} drivers {what}"
            for what, names in remarks.items()
            if names
        )

    def warnings(self) -> list[str]:
        """Reasons to be careful, for the report."""
        lines = []
        if not self.converged:
            lines.append(
                f"NUTS: {self.remark}: largest r-hat {self.r_hat:.3f} (bound {self.max_r_hat:g}), "
                f"smallest bulk ESS {self.ess_bulk:.0f} (bound {self.min_ess:g})."
            )
        if self.drivers_by_importance:
            lines.append(
                f"NUTS did not converge on {len(self.drivers_by_importance)} of {self.drivers} "
                "drivers; their draws are from adaptive importance sampling."
            )
        if self.divergences:
            lines.append(f"NUTS: {self.divergences} of {self.draws} draws diverged.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `metrics.json`."""
        return asdict(self) | {"converged": self.converged}

    def joined(self, other: "Convergence") -> "Convergence":
        """The verdict on two runs that are used together; the bounds are this one's.

        Where only drivers of one of them failed, it says which.
        """
        failed = [run for run in (self, other) if not run.converged]
        # Two failures, or one of a joint posterior, have no drivers to name.
        blamed = (
            failed[0] if len(failed) == 1 else replace(self, drivers=0, drivers_not_converged=())
        )
        return Convergence(
            # NumPy's, for a NaN on either side is one of both.
            r_hat=float(np.maximum(self.r_hat, other.r_hat)),
            ess_bulk=float(np.minimum(self.ess_bulk, other.ess_bulk)),
            divergences=self.divergences + other.divergences,
            draws=self.draws + other.draws,
            max_r_hat=self.max_r_hat,
            min_ess=self.min_ess,
            drivers=blamed.drivers,
            drivers_not_converged=blamed.drivers_not_converged,
        )


def pooled_data(chains: Chains, names: Sequence[str]) -> "InferenceData":
    """One posterior: theta with dimensions chain, draw, parameter."""
    return _inference_data(chains, {"theta": ["parameter"]}, {"parameter": list(names)})


def driver_data(
    chains: Sequence[Chains], names: Sequence[str], drivers: Sequence[str]
) -> "InferenceData":
    """A posterior per driver: theta with dimensions chain, draw, driver, parameter."""
    joined = Chains(
        {"theta": np.stack([c.sites["theta"] for c in chains], axis=2)},
        np.stack([c.diverging for c in chains], axis=2),
        np.stack([c.leapfrogs for c in chains], axis=2),
    )
    return _inference_data(
        joined,
        {
            "theta": ["driver", "parameter"],
            "diverging": ["driver"],
            "n_steps": ["driver"],
        },
        {"driver": list(drivers), "parameter": list(names)},
    )


def population_data(
    chains: Chains, names: Sequence[str], drivers: Sequence[str]
) -> "InferenceData":
    """A hierarchical posterior: population parameters, and theta of the drivers it saw."""
    dims = {
        "mean": ["parameter"],
        "sd": ["parameter"],
        "correlation": ["parameter", "other"],
        "theta": ["driver", "parameter"],
    }
    coords = {"parameter": list(names), "other": list(names), "driver": list(drivers)}
    return _inference_data(chains, dims, coords)


def repeated_data(
    theta: NDArray[np.float64],
    ess: NDArray[np.float64],
    names: Sequence[str],
    drivers: Sequence[str],
) -> "InferenceData":
    """Posteriors of drivers sampled several times over by importance; the repeats are the chains.

    Args:
        theta: (repeat, draw, driver, dim).
        ess: (driver,) effective number of the proposals behind the draws.
        names: of the parameters.
        drivers: their ids.
    """
    import arviz as az

    return az.from_dict(
        posterior={"theta": theta},
        constant_data={"importance_ess": ess},
        dims={"theta": ["driver", "parameter"], "importance_ess": ["driver"]},
        coords={"driver": list(drivers), "parameter": list(names)},
    )


def with_repeated(
    data: "InferenceData",
    place: Sequence[int] | NDArray[np.int64],
    theta: NDArray[np.float64],
    ess: NDArray[np.float64],
) -> "InferenceData":
    """The data of `driver_data` with some drivers' chains replaced by draws by importance.

    Args:
        data: posteriors of all drivers.
        place: of the drivers to replace.
        theta, ess: of these drivers, as for `repeated_data`.
    """
    from arviz import InferenceData

    posterior, stats = (data[name].copy(deep=True) for name in ("posterior", "sample_stats"))
    posterior["theta"].values[:, :, place] = theta
    for name in ("diverging", "n_steps"):
        stats[name].values[:, :, place] = 0
    proposals = np.full(posterior.sizes["driver"], np.nan)
    proposals[place] = ess
    constant = posterior[["driver"]].assign(importance_ess=("driver", proposals))
    return InferenceData(posterior=posterior, sample_stats=stats, constant_data=constant)


def check(data: "InferenceData", settings: NutsSettings) -> Convergence:
    """Rank-normalised r-hat and bulk effective sample size of every sampled quantity.

    Draws by importance count as many times as the proposals behind them.
    """
    import arviz as az

    # The correlations follow from draws that are checked, and their diagonal is constant.
    sampled = data["posterior"].drop_vars("correlation", errors="ignore")
    r_hat, ess = az.rhat(sampled), az.ess(sampled, method="bulk")
    # Whether draws diverged, of Markov chains only.
    diverging = data["sample_stats"].diverging if "sample_stats" in data.groups() else None
    apart = diverging is None or "driver" in diverging.dims
    drivers, failed, again = 0, [], []
    if "constant_data" in data.groups():
        proposals = data["constant_data"]["importance_ess"]
        ess = np.minimum(ess, proposals.fillna(np.inf))
        if diverging is not None:
            again = [str(name) for name in proposals.driver.values[proposals.notnull()]]
    if apart:
        good = (r_hat["theta"] < settings.max_r_hat) & (ess["theta"] > settings.min_ess)
        bad = ~good.all("parameter")  # a NaN keeps no bound
        drivers, failed = bad.size, [str(name) for name in bad.driver.values[bad.values]]
    sizes = sampled.sizes
    return Convergence(
        r_hat=float(np.max([r_hat[name].values.max() for name in sampled.data_vars])),
        ess_bulk=float(np.min([ess[name].values.min() for name in sampled.data_vars])),
        divergences=0 if diverging is None else int(diverging.sum()),
        draws=sizes["chain"] * sizes["draw"] * (drivers or 1),
        max_r_hat=settings.max_r_hat,
        min_ess=settings.min_ess,
        drivers=drivers,
        drivers_not_converged=tuple(failed),
        drivers_by_importance=tuple(again),
    )


def with_population(drivers: "InferenceData", population: "InferenceData") -> "InferenceData":
    """The test drivers' posterior, with the population's in groups of its own."""
    drivers.add_groups(
        population_posterior=population["posterior"],
        population_sample_stats=population["sample_stats"],
    )
    return drivers


def _inference_data(
    chains: Chains, dims: Mapping[str, list[str]], coords: Mapping[str, list[str]]
) -> "InferenceData":
    import arviz as az

    posterior = {name: value for name, value in chains.sites.items() if name in dims}
    return az.from_dict(
        posterior=posterior,
        sample_stats={"diverging": chains.diverging, "n_steps": chains.leapfrogs},
        dims=dict(dims),
        coords=dict(coords),
    )


def require_extra() -> None:
    """Raise unless the packages of the `baselines` extra are installed."""
    needed = ("jax", "numpyro", "arviz", "h5netcdf")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"this baseline needs {', '.join(missing)}: pip install -e '.[baselines]'"
        )


def take_draws(theta: np.ndarray, samples: int) -> Tensor:
    """`samples` of the draws (chain, draw, ..., dim), evenly spaced, as float32 (samples, ...).

    Example:
        >>> take_draws(np.arange(10.0).reshape(2, 5, 1), 4).flatten()
        tensor([0., 3., 6., 9.])
    """
    flat = theta.reshape(-1, *theta.shape[2:])
    place = np.linspace(0, len(flat) - 1, samples).round().astype(int)
    return torch.from_numpy(flat[place]).float()
