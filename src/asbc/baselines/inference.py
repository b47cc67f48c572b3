"""Chains as ArviZ InferenceData, and the verdict on whether they converged."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import arviz as az
import numpy as np

from asbc.baselines.nuts import Chains
from asbc.baselines.settings import NutsSettings


@dataclass(frozen=True)
class Convergence:
    """Worst diagnostics over everything that was sampled."""

    r_hat: float
    ess_bulk: float
    divergences: int
    draws: int
    converged: bool
    not_converged: tuple[str, ...] = ()  # drivers, where each was sampled by itself

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `metrics.json`."""
        return asdict(self)


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
    sampled = data.posterior.drop_vars("correlation", errors="ignore")
    r_hat, ess = az.rhat(sampled), az.ess(sampled, method="bulk")
    worst_r_hat = max(float(r_hat[name].max()) for name in sampled.data_vars)
    least_ess = min(float(ess[name].min()) for name in sampled.data_vars)
    failed = (r_hat["theta"] >= settings.max_r_hat) | (ess["theta"] <= settings.min_ess)
    divided = "driver" in data.sample_stats.diverging.dims
    drivers = failed.any("parameter") if divided else None
    return Convergence(
        r_hat=worst_r_hat,
        ess_bulk=least_ess,
        divergences=int(data.sample_stats.diverging.sum()),
        draws=data.posterior.sizes["chain"] * data.posterior.sizes["draw"],
        converged=worst_r_hat < settings.max_r_hat and least_ess > settings.min_ess,
        not_converged=() if drivers is None else tuple(failed.driver.values[drivers.values]),
    )


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
