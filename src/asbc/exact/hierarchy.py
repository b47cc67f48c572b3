"""The posterior of a population, its drivers integrated out, and of drivers new to it.

A sampler of a population and all its drivers together meets funnels wherever the data hardly show
a parameter. Here the drivers are integrated first: each has draws of its own posterior under a
wide normal prior, and reweighting these gives its marginal likelihood under any population that is
narrower. What NUTS is left with is a smooth density of the population alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import logsumexp, ndtr, ndtri
from numpy.typing import NDArray

from asbc.exact import nuts
from asbc.exact.diagnostics import Chains, NutsSettings
from asbc.exact.importance import Normal, importance_draws, small_cholesky, small_inverse
from asbc.exact.likelihood import TrajectoryLikelihood, theta_of_normal
from asbc.exact.nuts import map_drivers, random_key
from asbc.simulator import Simulator
from asbc.utils.random import key as key_of

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


# Draws that stand for a known driver.
KEPT = 600
# The wide prior's covariance is the population's times WIDER; how often both are estimated.
WIDER, PASSES, EM_STEPS = 2.0, 2, 100
# Steps of the population's chains for a draw: the spread of what data hardly show moves slowly.
THINNING = 3
# A new driver whose proposals count for less than this share of its draws is sampled again.
WEAK, RETRIES = 0.5, 3


class DriverDraws(NamedTuple):
    """Equally weighted draws of every driver's posterior under a wide prior."""

    z: Array  # (driver, KEPT, dim)
    log_prior: Array  # (driver, KEPT), density of the wide prior
    ess: Array  # (driver,) effective number of the proposals they were drawn from


class PopulationDraws(NamedTuple):
    """The posterior, and how many of a driver's draws carried it."""

    chains: Chains  # mean, sd, factor and correlation; theta (driver, dim)
    driver_ess: NDArray[np.float64]  # (driver,) effective number of a driver's draws


class NewDrivers(NamedTuple):
    """Draws of drivers the population was not learned from."""

    theta: NDArray[np.float64]  # (repeat, draw, driver, dim)
    ess: NDArray[np.float64]  # (driver,) effective number of the proposals behind all draws


def sample_population(
    population: Population, data: Any, settings: NutsSettings, key: int, at_once: int
) -> PopulationDraws:
    """Draws of mean, sd, factor and correlation of the population and of each driver's theta.

    Args:
        population: the model.
        data: a tree of arrays whose first axis is the driver.
        settings: of NUTS.
        key: all randomness.
        at_once: drivers in one batch.
    """
    wide = Normal(
        jnp.zeros(population.dim), np.hypot(MEAN_SCALE, SD_SCALE) * jnp.eye(population.dim)
    )
    propose = driver_sampler(population)
    for step in range(PASSES):
        drivers = propose(data, wide, key_of(key, "drivers", step), at_once)
        if step < PASSES - 1:
            wide = jax.jit(_estimate)(drivers, wide)
    model = _marginal_model(population, drivers, wide)
    chains = nuts.sample(model, settings, key, None, thinning=THINNING)
    return _with_drivers(population, chains, drivers, random_key(key_of(key, "theta")))


def sample_new_drivers(
    population: Population,
    draws: Normal,
    data: Any,
    settings: NutsSettings,
    keys: Sequence[int],
    at_once: int,
) -> NewDrivers:
    """Posteriors of drivers whose prior is the population as it is known.

    Every driver is sampled `settings.chains` times over from scratch, so that r-hat shows whether
    the repeats found the same posterior. Where a proposal was not found in one of them, all are
    made again.

    Args:
        population: the model.
        draws: of the population, with a leading axis.
        data: a tree of arrays whose first axis is the driver.
        settings: how often, and how many draws.
        keys: one per driver.
        at_once: drivers in one batch.
    """
    mean, factor = draws
    away = mean - mean.mean(0)
    covariance = (factor @ factor.transpose(0, 2, 1)).mean(0) + away.T @ away / len(mean)
    overall = Normal(mean.mean(0), small_cholesky(covariance))

    @jax.vmap
    def one(random: Array, own: Any) -> tuple[Array, Array]:
        def log_density(z: Array) -> Array:
            members = jax.vmap(lambda *law: Normal(*law).log_prob(z))(mean, factor)
            return population.log_likelihood(population.theta(z), own) + logsumexp(members)

        return jax.lax.map(
            lambda random: importance_draws(log_density, overall, settings.draws, random),
            jax.random.split(random, settings.chains),
        )

    batch = jax.jit(one)
    z, ess = map_drivers(batch, keys, data, at_once, "test drivers")
    for attempt in range(RETRIES):
        weak = np.flatnonzero(ess.min(axis=1) < WEAK * settings.draws)
        if not len(weak):
            break
        again = [key_of(keys[i], "again", attempt) for i in weak.tolist()]
        own = jax.tree.map(lambda x, weak=weak: x[weak], data)
        new_z, new_ess = map_drivers(batch, again, own, at_once, "weak test drivers")
        better = new_ess.min(axis=1) > ess[weak].min(axis=1)
        z[weak[better]], ess[weak[better]] = new_z[better], new_ess[better]
    theta = np.asarray(population.theta(jnp.asarray(z)))
    return NewDrivers(theta.transpose(1, 2, 0, 3), np.minimum(ess, settings.draws).sum(1))


def driver_sampler(
    population: Population,
) -> Callable[[Any, Normal, int, int], DriverDraws]:
    """A function that draws from every driver's posterior under a wide prior, compiled once."""

    @partial(jax.vmap, in_axes=(0, 0, None))
    def one(random: Array, own: Any, wide: Normal) -> tuple[Array, Array]:
        def log_density(z: Array) -> Array:
            return population.log_likelihood(population.theta(z), own) + wide.log_prob(z)

        return importance_draws(log_density, wide, KEPT, random)

    batch = jax.jit(one)

    def sample(data: Any, wide: Normal, key: int, at_once: int) -> DriverDraws:
        keys = [key_of(key, driver) for driver in range(len(jax.tree.leaves(data)[0]))]
        found = map_drivers(
            lambda random, own: batch(random, own, wide), keys, data, at_once, "known drivers"
        )
        z, ess = map(jnp.asarray, found)
        return DriverDraws(z, wide.log_prob(z), ess)

    return sample


def _estimate(drivers: DriverDraws, wide: Normal) -> Normal:
    """A wide prior around the population that explains the drivers best (EM)."""
    count, _, dim = drivers.z.shape

    def step(state: Normal, _: None) -> tuple[Normal, None]:
        weight = jax.nn.softmax(state.log_prob(drivers.z) - drivers.log_prior, axis=1)
        mean = jnp.einsum("ij,ijk->k", weight, drivers.z) / count
        away = drivers.z - mean
        covariance = jnp.einsum("ij,ijk,ijl->kl", weight, away, away) / count
        # The spread at which the drivers and its prior agree, for each parameter by itself.
        seen = jnp.diag(covariance) / SD_SCALE**2
        spread = (jnp.sqrt(count**2 + 4 * count * seen) - count) / 2
        shrink = jnp.sqrt(spread / seen)
        covariance = covariance * shrink * shrink[:, None] + 1e-4 * jnp.eye(dim)
        return Normal(mean, small_cholesky(covariance)), None

    best, _ = jax.lax.scan(step, wide, None, EM_STEPS)
    # Few drivers, or drivers of whom little is known, leave room for wider populations.
    unsure = jnp.var(drivers.z, axis=1).mean(0) * 2 * jnp.sqrt(2 / count)
    covariance = WIDER * best.factor @ best.factor.T + jnp.diag(unsure)
    return Normal(best.mean, small_cholesky(covariance))


def _marginal_model(
    population: Population, drivers: DriverDraws, wide: Normal
) -> Callable[[Any], None]:
    """A NumPyro program: the population given all trajectories."""
    count, kept, dim = drivers.z.shape
    # A normal log-density is linear in these functions of the draws: one product does them all.
    whiten = small_inverse(wide.factor)
    place = (drivers.z - wide.mean).reshape(-1, dim) @ whiten.T
    row, column = np.tril_indices(dim)
    functions = jnp.concatenate([place[:, row] * place[:, column], place], axis=1)
    # Single precision is right to 1e-5 here and takes a third of the time.
    functions, log_prior = (x.astype(jnp.float32) for x in (functions, drivers.log_prior))
    twice = jnp.where(row == column, 1.0, 2.0)

    def model(_: Any) -> None:
        mean, factor = population.prior()
        centre = whiten @ (mean - wide.mean)
        whitener = small_inverse(whiten @ factor)
        precision = whitener.T @ whitener
        linear = jnp.concatenate([-0.5 * twice * precision[row, column], precision @ centre])
        density = (functions @ linear.astype(jnp.float32)).reshape(count, kept) - log_prior
        evidence = logsumexp(density, axis=1).astype(linear.dtype)
        constant = jnp.log(jnp.diag(factor)).sum() + 0.5 * centre @ precision @ centre
        constant = constant + 0.5 * dim * jnp.log(2 * jnp.pi) + jnp.log(kept)
        numpyro.factor("trajectories", (evidence - constant).sum())

    return model


def _with_drivers(
    population: Population, chains: Chains, drivers: DriverDraws, random: Array
) -> PopulationDraws:
    """A draw of every driver for each of the population."""
    sites = chains.sites
    shape = sites["mean"].shape[:2]
    mean, factor = population_draws(chains, chains.diverging.size)

    @jax.jit
    def one(args: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        random, *law = args
        log_weight = Normal(*law).log_prob(drivers.z) - drivers.log_prior
        chosen = jax.random.categorical(random, log_weight, axis=1)
        weight = jax.nn.softmax(log_weight, axis=1)
        z = jnp.take_along_axis(drivers.z, chosen[:, None, None], axis=1)[:, 0]
        return population.theta(z), 1 / jnp.square(weight).sum(1)

    keys = jax.random.split(random, len(mean))
    theta, ess = jax.lax.map(one, (keys, mean, factor))
    found = {
        **sites,
        "correlation": np.einsum("...ij,...kj->...ik", sites["factor"], sites["factor"]),
        "theta": np.asarray(theta).reshape(*shape, *theta.shape[1:]),
    }
    # Fewer proposals than draws counted where some were drawn several times.
    distinct = np.minimum(1.0, np.asarray(drivers.ess) / KEPT)
    return PopulationDraws(chains._replace(sites=found), np.asarray(ess.mean(0)) * distinct)
