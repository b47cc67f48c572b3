"""The posterior of a population in JAX, its drivers integrated out.

A sampler of a population and all its drivers together meets funnels wherever the data hardly show
a parameter. Here the drivers are integrated first: each has draws of its own posterior under a
wide normal prior, and reweighting these gives its marginal likelihood under any population that is
narrower. What NUTS is left with is a smooth density of the population alone.
"""

from collections.abc import Callable
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

from asbc.engine import Engine, Pool
from asbc.exact import nuts
from asbc.exact.diagnostics import Chains, NutsSettings
from asbc.exact.drivers import DriverModel
from asbc.exact.importance import Normal, importance_draws, small_cholesky, small_inverse
from asbc.exact.nuts import Batch, driver_pool, map_drivers, random_key
from asbc.utils.random import key as key_of

# Prior standard deviation of each population mean, and scale of the spread between drivers.
MEAN_SCALE, SD_SCALE = 1.0, 1.0
LKJ_CONCENTRATION = 2.0
# Draws that stand for a known driver.
KEPT = 600
# The wide prior's covariance is the population's times WIDER; how often both are estimated.
WIDER, PASSES, EM_STEPS = 2.0, 2, 100
# Steps of the population's chains for a draw: the spread of what data hardly show moves slowly.
THINNING = 3


class DriverDraws(NamedTuple):
    """Equally weighted draws of every driver's posterior under a wide prior."""

    z: Array  # (driver, KEPT, dim)
    log_prior: Array  # (driver, KEPT), density of the wide prior
    ess: Array  # (driver,) effective number of the proposals they were drawn from


class PopulationDraws(NamedTuple):
    """The posterior, and how many of a driver's draws carried it."""

    chains: Chains  # mean, sd, factor and correlation; theta (driver, dim)
    driver_ess: NDArray[np.float64]  # (driver,) effective number of a driver's draws
    worker_seconds: float = 0.0  # CPU seconds of other processes than this


def population_prior(dim: int) -> Normal:
    """The population alone, as a NumPyro program."""
    law = dist.Normal(0.0, MEAN_SCALE).expand([dim]).to_event(1)
    mean = numpyro.sample("mean", law)
    # Half-normal, through a standard normal: of a parameter that the data hardly show only
    # the prior is left, and a sampler walks freely where that is normal.
    law = dist.Normal(0.0, 1.0).expand([dim]).to_event(1)
    sd = numpyro.deterministic(
        "sd", -SD_SCALE * ndtri(0.5 * ndtr(-numpyro.sample("sd_normal", law)))
    )
    factor = numpyro.sample("factor", dist.LKJCholesky(dim, LKJ_CONCENTRATION))
    return Normal(mean, sd[:, None] * factor)


def sample_population(
    model: DriverModel,
    data: Any,
    settings: NutsSettings,
    key: int,
    at_once: int,
    engine: Engine | None = None,
) -> PopulationDraws:
    """Draws of mean, sd, factor and correlation of the population and of each driver's theta.

    Args:
        model: of one driver.
        data: a tree of arrays whose first axis is the driver.
        settings: of NUTS.
        key: all randomness.
        at_once: drivers in one batch.
        engine: where batches are sampled; None: one by one in this process.
    """
    spread = np.hypot(MEAN_SCALE, SD_SCALE)
    wide = Normal(jnp.zeros(model.dim), spread * jnp.eye(model.dim))
    count = len(jax.tree.leaves(data)[0])
    with driver_pool(engine, partial(known_batch, model), count, at_once) as pool:
        for step in range(PASSES):
            drivers = known_drivers(pool, data, wide, key_of(key, "drivers", step), at_once)
            if step < PASSES - 1:
                wide = jax.jit(_estimate)(drivers, wide)
    marginal = marginal_model(drivers, wide)
    chains = nuts.sample(marginal, settings, key, None, thinning=THINNING)
    found = _with_drivers(model, chains, drivers, random_key(key_of(key, "theta")))
    return found._replace(worker_seconds=pool.worker_seconds)


def population_draws(chains: Chains, count: int) -> Normal:
    """`count` evenly spaced draws of the population, a leading axis of mean and factor."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.sites.items()}
    place = np.linspace(0, len(flat["mean"]) - 1, count).round().astype(int)
    factor = flat["sd"][..., None] * flat["factor"]
    return Normal(jnp.asarray(flat["mean"][place]), jnp.asarray(factor[place]))


def known_batch(model: DriverModel) -> Batch:
    """A batch function of `map_drivers`: draws of drivers' posteriors under a wide prior."""

    @partial(jax.vmap, in_axes=(0, 0, None))
    def one(random: Array, own: Any, wide: Normal) -> tuple[Array, Array]:
        def log_density(z: Array) -> Array:
            return model.log_likelihood(model.theta(z), own) + wide.log_prob(z)

        return importance_draws(log_density, wide, KEPT, random)

    return jax.jit(one)


def known_drivers(pool: Pool, data: Any, wide: Normal, key: int, at_once: int) -> DriverDraws:
    """Draws of every driver's posterior under a wide prior.

    Args:
        pool: whose workers have built `known_batch`.
        data: a tree of arrays whose first axis is the driver.
        wide: the prior.
        key: all randomness.
        at_once: drivers in one batch.
    """
    keys = [key_of(key, driver) for driver in range(len(jax.tree.leaves(data)[0]))]
    found = map_drivers(pool, keys, data, at_once, "known drivers", (wide,))
    z, ess = map(jnp.asarray, found)
    return DriverDraws(z, wide.log_prob(z), ess)


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


def marginal_model(drivers: DriverDraws, wide: Normal) -> Callable[[Any], None]:
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
        mean, factor = population_prior(dim)
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
    model: DriverModel, chains: Chains, drivers: DriverDraws, random: Array
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
        return model.theta(z), 1 / jnp.square(weight).sum(1)

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
