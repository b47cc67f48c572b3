"""Chains as ArviZ InferenceData, and the verdict on whether they converged."""

from collections.abc import Mapping, Sequence

import arviz as az
import numpy as np
from numpy.typing import NDArray

from asbc.baselines.convergence import Convergence
from asbc.baselines.nuts import Chains
from asbc.baselines.settings import NutsSettings


def pooled_data(chains: Chains, names: Sequence[str]) -> az.InferenceData:
    """One posterior: theta with dimensions chain, draw, parameter."""
    return _inference_data(chains, {"theta": ["parameter"]}, {"parameter": list(names)})


def driver_data(
    chains: Sequence[Chains], names: Sequence[str], drivers: Sequence[str]
) -> az.InferenceData:
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
) -> az.InferenceData:
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
) -> az.InferenceData:
    """Posteriors of drivers sampled several times over by importance; the repeats are the chains.

    Args:
        theta: (repeat, draw, driver, dim).
        ess: (driver,) effective number of the proposals behind the draws.
        names: of the parameters.
        drivers: their ids.
    """
    return az.from_dict(
        posterior={"theta": theta},
        constant_data={"importance_ess": ess},
        dims={"theta": ["driver", "parameter"], "importance_ess": ["driver"]},
        coords={"driver": list(drivers), "parameter": list(names)},
    )


def with_repeated(
    data: az.InferenceData,
    place: Sequence[int] | NDArray[np.int64],
    theta: NDArray[np.float64],
    ess: NDArray[np.float64],
) -> az.InferenceData:
    """The data of `driver_data` with some drivers' chains replaced by draws by importance.

    Args:
        data: posteriors of all drivers.
        place: of the drivers to replace.
        theta, ess: of these drivers, as for `repeated_data`.
    """
    posterior, stats = (data[name].copy(deep=True) for name in ("posterior", "sample_stats"))
    posterior["theta"].values[:, :, place] = theta
    for name in ("diverging", "n_steps"):
        stats[name].values[:, :, place] = 0
    proposals = np.full(posterior.sizes["driver"], np.nan)
    proposals[place] = ess
    constant = posterior[["driver"]].assign(importance_ess=("driver", proposals))
    return az.InferenceData(posterior=posterior, sample_stats=stats, constant_data=constant)


def check(data: az.InferenceData, settings: NutsSettings) -> Convergence:
    """Rank-normalised r-hat and bulk effective sample size of every sampled quantity.

    Draws by importance count as many times as the proposals behind them.
    """
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


def with_population(drivers: az.InferenceData, population: az.InferenceData) -> az.InferenceData:
    """The test drivers' posterior, with the population's in groups of its own."""
    drivers.add_groups(
        population_posterior=population["posterior"],
        population_sample_stats=population["sample_stats"],
    )
    return drivers


def _inference_data(
    chains: Chains, dims: Mapping[str, list[str]], coords: Mapping[str, list[str]]
) -> az.InferenceData:
    posterior = {name: value for name, value in chains.sites.items() if name in dims}
    return az.from_dict(
        posterior=posterior,
        sample_stats={"diverging": chains.diverging, "n_steps": chains.leapfrogs},
        dims=dict(dims),
        coords=dict(coords),
    )
