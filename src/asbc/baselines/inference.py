"""Chains as ArviZ InferenceData, and the verdict on whether they converged."""

from collections.abc import Mapping, Sequence

import arviz as az
import numpy as np

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


def check(data: az.InferenceData, settings: NutsSettings) -> Convergence:
    """Rank-normalised r-hat and bulk effective sample size of every sampled quantity."""
    # The correlations follow from draws that are checked, and their diagonal is constant.
    sampled = data["posterior"].drop_vars("correlation", errors="ignore")
    r_hat, ess = az.rhat(sampled), az.ess(sampled, method="bulk")
    drivers, failed = 0, []
    if "driver" in data["sample_stats"].diverging.dims:
        bad = (r_hat["theta"] >= settings.max_r_hat) | (ess["theta"] <= settings.min_ess)
        bad = bad.any("parameter")
        drivers, failed = bad.size, [str(name) for name in bad.driver.values[bad.values]]
    return Convergence(
        r_hat=max(float(r_hat[name].max()) for name in sampled.data_vars),
        ess_bulk=min(float(ess[name].min()) for name in sampled.data_vars),
        divergences=int(data["sample_stats"].diverging.sum()),
        draws=data["sample_stats"].diverging.size,
        max_r_hat=settings.max_r_hat,
        min_ess=settings.min_ess,
        drivers=drivers,
        drivers_not_converged=tuple(failed),
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
