"""A population of drivers as a NumPyro model."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray

from asbc.baselines.likelihood import TrajectoryLikelihood
from asbc.baselines.nuts import Chains
from asbc.baselines.statistics import Statistics
from asbc.simulator.prior import Marginal

# Spread between drivers on the log scale: a factor of 1.6 is one standard deviation of the prior.
SD_SCALE = 0.5
LKJ_CONCENTRATION = 2.0


def population_model(
    marginals: Sequence[Marginal], likelihood: TrajectoryLikelihood
) -> Callable[[Statistics], None]:
    """log theta of a driver ~ N(mean, covariance), non-centred.

    The population mean has ASBC's log-normals as its prior, without their truncation: drivers may
    leave ASBC's feasible box if the data say so.
    """
    centre = np.log([m.centre for m in marginals])
    scale = np.array([m.log_scale for m in marginals])
    dim = len(marginals)

    def model(data: Statistics) -> None:
        drivers = data.steps.shape[0]
        unit = dist.Normal(0.0, 1.0)
        raw = numpyro.sample("raw_mean", unit.expand([dim]).to_event(1))
        mean = numpyro.deterministic("mean", centre + scale * raw)
        sd = numpyro.sample("sd", dist.HalfNormal(SD_SCALE).expand([dim]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(dim, LKJ_CONCENTRATION))
        numpyro.deterministic("correlation", factor @ factor.T)
        deviation = numpyro.sample("deviation", unit.expand([drivers, dim]).to_event(2))
        theta = jnp.exp(mean + deviation @ (sd[:, None] * factor).T)
        numpyro.deterministic("theta", theta)
        numpyro.factor("trajectories", likelihood(theta, data).sum())

    return model


def population_draws(
    chains: Chains, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`count` evenly spaced draws of the mean (count, dim) and covariance factor of log theta."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.sites.items()}
    place = np.linspace(0, len(flat["mean"]) - 1, count).round().astype(int)
    return flat["mean"][place], (flat["sd"][..., None] * flat["factor"])[place]
