"""A population of drivers: log theta of a driver ~ N(mean, covariance).

The population mean has ASBC's log-normals as its prior, without their truncation: drivers may
leave ASBC's feasible box if the data say so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray

from asbc.baselines.nuts import Chains
from asbc.simulator.prior import Marginal

# Spread between drivers on the log scale: a factor of 1.6 is one standard deviation of the prior.
SD_SCALE = 0.5
LKJ_CONCENTRATION = 2.0


@dataclass(frozen=True)
class Population:
    """The prior of a population, and the likelihood of its drivers.

    Attributes:
        centre, scale: (dim,) prior of the population mean.
        log_likelihood: of one driver, from theta (dim,) and its data.
    """

    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    log_likelihood: Callable[[Array, Any], Array]

    @classmethod
    def of(
        cls, marginals: Sequence[Marginal], log_likelihood: Callable[[Array, Any], Array]
    ) -> "Population":
        """With ASBC's prior."""
        centre = np.log([m.centre for m in marginals])
        return cls(centre, np.array([m.log_scale for m in marginals]), log_likelihood)

    def prior(self) -> tuple[Array, Array]:
        """The population alone: its mean and the Cholesky factor of its covariance."""
        dim = len(self.centre)
        mean = numpyro.sample("mean", dist.Normal(self.centre, self.scale).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(SD_SCALE).expand([dim]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(dim, LKJ_CONCENTRATION))
        return mean, sd[:, None] * factor


def population_draws(
    chains: Chains, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`count` evenly spaced draws of the mean (count, dim) and covariance factor of log theta."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.sites.items()}
    place = np.linspace(0, len(flat["mean"]) - 1, count).round().astype(int)
    return flat["mean"][place], (flat["sd"][..., None] * flat["factor"])[place]
