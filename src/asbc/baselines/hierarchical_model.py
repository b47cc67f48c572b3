"""A population of drivers: z of a driver ~ N(mean, covariance).

z are the coordinates of theta in which ASBC's prior is standard normal, so that no driver leaves
ASBC's feasible box, and a population with mean 0 and covariance I is ASBC's prior itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import ndtr, ndtri

from asbc.baselines.adaptive_importance import Normal
from asbc.baselines.likelihood import TrajectoryLikelihood
from asbc.baselines.nuts import Chains
from asbc.baselines.priors import theta_of_normal
from asbc.simulator import Simulator

# Prior standard deviation of each population mean, and scale of the spread between drivers.
MEAN_SCALE, SD_SCALE = 1.0, 1.0
LKJ_CONCENTRATION = 2.0


@dataclass(frozen=True)
class Population:
    """The prior of a population, and the likelihood of its drivers.

    Attributes:
        dim: number of parameters.
        theta: (..., dim) of z (..., dim).
        log_likelihood: of one driver, from theta (dim,) and its data.
    """

    dim: int
    theta: Callable[[Array], Array]
    log_likelihood: Callable[[Array, Any], Array]

    @classmethod
    def of(cls, simulator: Simulator) -> "Population":
        """With ASBC's prior and likelihood."""
        prior = simulator.prior
        likelihood = TrajectoryLikelihood.of(simulator)
        return cls(prior.dim, theta_of_normal(prior.marginals), likelihood)

    def prior(self) -> Normal:
        """The population alone, as a NumPyro program."""
        law = dist.Normal(0.0, MEAN_SCALE).expand([self.dim]).to_event(1)
        mean = numpyro.sample("mean", law)
        # Half-normal, through a standard normal: of a parameter that the data hardly show only
        # the prior is left, and a sampler walks freely where that is normal.
        law = dist.Normal(0.0, 1.0).expand([self.dim]).to_event(1)
        sd = numpyro.deterministic(
            "sd", -SD_SCALE * ndtri(0.5 * ndtr(-numpyro.sample("sd_normal", law)))
        )
        factor = numpyro.sample("factor", dist.LKJCholesky(self.dim, LKJ_CONCENTRATION))
        return Normal(mean, sd[:, None] * factor)


def prior_population(dim: int) -> Normal:
    """ASBC's prior as the only draw of a population, with a leading axis."""
    return Normal(jnp.zeros((1, dim)), jnp.eye(dim)[None])


def population_draws(chains: Chains, count: int) -> Normal:
    """`count` evenly spaced draws of the population, a leading axis of mean and factor."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.sites.items()}
    place = np.linspace(0, len(flat["mean"]) - 1, count).round().astype(int)
    factor = flat["sd"][..., None] * flat["factor"]
    return Normal(jnp.asarray(flat["mean"][place]), jnp.asarray(factor[place]))
