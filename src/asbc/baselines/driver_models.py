"""NUTS for drivers one by one, under ASBC's prior or under a population's."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray

from asbc.baselines.likelihood import TrajectoryLikelihood
from asbc.baselines.nuts import Chains, sample_drivers
from asbc.baselines.pooled_models import theta_model
from asbc.baselines.priors import ThetaPrior, asbc_prior
from asbc.baselines.settings import NutsSettings
from asbc.baselines.statistics import statistics
from asbc.baselines.transitions import transitions
from asbc.data.pairset import PairSet
from asbc.simulator import Simulator
from asbc.utils.random import key


def driver_posteriors(
    simulator: Simulator,
    pairs: PairSet,
    context_steps: int,
    settings: NutsSettings,
    seed: int,
    at_once: int,
    prior: ThetaPrior | None = None,
) -> list[Chains]:
    """Draws of each pair's own posterior given its first `context_steps` samples.

    Args:
        simulator: its residual process and prior define the posterior.
        pairs: one posterior each.
        context_steps: samples of context.
        settings: sampler settings.
        seed: a pair's draws depend on it and on the pair only.
        at_once: pairs sampled side by side.
        prior: the simulator's own where None.
    """
    model = theta_model(
        prior or asbc_prior(simulator.prior.marginals), TrajectoryLikelihood.of(simulator)
    )
    data = statistics(simulator, transitions(simulator, pairs, context_steps))
    keys = [key(seed, "nuts", name) for name in pairs.pair_id]
    return sample_drivers(model, settings, keys, data, at_once)


def population_prior(mean: NDArray[np.float64], factor: NDArray[np.float64]) -> ThetaPrior:
    """A new driver's prior: log theta from one of many draws of the population.

    Args:
        mean: (draws, dim) population means of log theta.
        factor: (draws, dim, dim) Cholesky factors of its covariance.
    """
    equal = dist.Categorical(logits=jnp.zeros(len(mean)))
    mixture = dist.MixtureSameFamily(equal, dist.MultivariateNormal(mean, scale_tril=factor))
    centre = mean.mean(axis=0)
    scale = np.sqrt(np.square(factor).sum(axis=-1).mean(axis=0))

    def sample() -> Array:
        # Standardised, so that the sampler starts and steps on the population's own scale.
        flat = dist.ImproperUniform(dist.constraints.real_vector, (), event_shape=centre.shape)
        log_theta = centre + scale * numpyro.sample("standardised", flat)
        numpyro.factor("population", mixture.log_prob(log_theta))
        return jnp.exp(log_theta)

    return sample


def draws_of(chains: Sequence[Chains]) -> NDArray[np.float64]:
    """theta of all drivers, (chain, draw, driver, dim)."""
    return np.stack([chain.sites["theta"] for chain in chains], axis=2)
