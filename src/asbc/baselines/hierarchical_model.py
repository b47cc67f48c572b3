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
    marginals: Sequence[Marginal], likelihood: TrajectoryLikelihood, drivers: Statistics
) -> Callable[[Statistics], None]:
    """log theta of a driver ~ N(mean, covariance), non-centred.

    The population mean has ASBC's log-normals as its prior, without their truncation: drivers may
    leave ASBC's feasible box if the data say so.

    Args:
        marginals: ASBC's prior.
        likelihood: of each driver.
        drivers: all of their statistics; the model is called with those `without_clipped`, since
            few drivers have clipped steps and room for them in all would double the work.
    """
    owner, place = np.nonzero(drivers.side)
    clipped, side = drivers.clipped[owner, place, None], drivers.side[owner, place, None]
    centre = np.log([m.centre for m in marginals])
    scale = np.array([m.log_scale for m in marginals])
    dim = len(marginals)

    def model(data: Statistics) -> None:
        count = data.steps.shape[0]
        unit = dist.Normal(0.0, 1.0)
        raw = numpyro.sample("raw_mean", unit.expand([dim]).to_event(1))
        mean = numpyro.deterministic("mean", centre + scale * raw)
        sd = numpyro.sample("sd", dist.HalfNormal(SD_SCALE).expand([dim]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(dim, LKJ_CONCENTRATION))
        numpyro.deterministic("correlation", factor @ factor.T)
        deviation = numpyro.sample("deviation", unit.expand([count, dim]).to_event(2))
        theta = jnp.exp(mean + deviation @ (sd[:, None] * factor).T)
        numpyro.deterministic("theta", theta)
        numpyro.factor("trajectories", likelihood(theta, data).sum())
        if len(owner):
            numpyro.factor("clipped", likelihood.tail(theta[owner], clipped, side).sum())

    return model


def population_draws(
    chains: Chains, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`count` evenly spaced draws of the mean (count, dim) and covariance factor of log theta."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.sites.items()}
    place = np.linspace(0, len(flat["mean"]) - 1, count).round().astype(int)
    return flat["mean"][place], (flat["sd"][..., None] * flat["factor"])[place]
