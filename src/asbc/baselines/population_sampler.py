"""The posterior of a population, its drivers integrated out.

A sampler of a population and all its drivers together meets funnels wherever the data hardly show
a parameter. Here the drivers are integrated first: each has draws of its own posterior under a
wide normal prior, and reweighting these gives its marginal likelihood under any population that is
narrower. What NUTS is left with is a smooth density of the population alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.scipy.special import logsumexp
from numpy.typing import NDArray

from asbc.baselines import nuts
from asbc.baselines.hierarchical_model import SD_SCALE, Population, population_draws
from asbc.baselines.nuts import Chains, random_key
from asbc.baselines.settings import NutsSettings
from asbc.utils.random import key as key_of

# Draws of a driver that are proposed each time, and kept in the end.
PROPOSED, KEPT = 4000, 500
# Newton steps to a driver's mode; times its proposal is fitted to the weighted draws.
NEWTON_STEPS, ADAPTATIONS = 60, 8
# The wide prior's covariance is the population's times WIDER; how often both are estimated.
WIDER, PASSES, EM_STEPS = 2.0, 3, 100
# Degrees of freedom of the proposal.
TAIL = 5.0


class Wide(NamedTuple):
    """A normal prior for the drivers' own posteriors."""

    mean: Array  # (dim,)
    factor: Array  # (dim, dim)


class DriverDraws(NamedTuple):
    """Equally weighted draws of every driver's posterior under a wide prior."""

    log_theta: Array  # (driver, KEPT, dim)
    log_prior: Array  # (driver, KEPT), density of the wide prior
    ess: Array  # (driver,) effective number of the proposals they were drawn from


class PopulationDraws(NamedTuple):
    """The posterior, and how many of a driver's draws carried it."""

    chains: Chains  # mean, sd, factor and correlation; theta (driver, dim)
    driver_ess: NDArray[np.float64]  # (driver,) effective number of a driver's draws


def sample_population(
    population: Population, data: Any, settings: NutsSettings, key: int
) -> PopulationDraws:
    """Draws of mean, sd, factor and correlation of the population and of each driver's theta.

    Args:
        population: the model.
        data: a tree of arrays whose first axis is the driver.
        settings: of NUTS.
        key: all randomness.
    """
    data = jax.tree.map(jnp.asarray, data)
    spread = np.hypot(population.scale, SD_SCALE)
    wide = Wide(jnp.asarray(population.centre), jnp.diag(spread))
    propose = jax.jit(lambda wide, random: _driver_draws(population, data, wide, random))
    estimate = jax.jit(_estimate)
    for step in range(PASSES):
        drivers = propose(wide, random_key(key_of(key, "drivers", step)))
        if step < PASSES - 1:
            wide = estimate(drivers, wide)
    chains = nuts.sample(_marginal_model(population, drivers, wide), settings, key, None)
    return _with_drivers(chains, drivers, random_key(key_of(key, "theta")))


def log_normal(log_theta: Array, mean: Array, factor: Array) -> Array:
    """Log-density (...) of a normal with covariance factor factor.T at log_theta (..., dim)."""
    away = _solve(factor, (log_theta - mean).reshape(-1, len(mean)).T)
    constant = jnp.log(jnp.diag(factor)).sum() + 0.5 * len(mean) * jnp.log(2 * jnp.pi)
    return (-0.5 * jnp.square(away).sum(0) - constant).reshape(log_theta.shape[:-1])


def _solve(factor: Array, right: Array) -> Array:
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True)


def _driver_draws(population: Population, data: Any, wide: Wide, random: Array) -> DriverDraws:
    def one(own: Any, random: Array) -> tuple[Array, Array]:
        def log_density(log_theta: Array) -> Array:
            return population.log_likelihood(jnp.exp(log_theta), own) + log_normal(
                log_theta, *wide
            )

        mode, covariance = _laplace(log_density, wide)
        return _adaptive_importance(log_density, mode, covariance, random)

    count = len(jax.tree.leaves(data)[0])
    log_theta, ess = jax.vmap(one)(data, jax.random.split(random, count))
    return DriverDraws(log_theta, jax.vmap(lambda x: log_normal(x, *wide))(log_theta), ess)


def _laplace(log_density: Callable[[Array], Array], wide: Wide) -> tuple[Array, Array]:
    """Mode and inverse curvature by damped Newton steps in the wide prior's own scale."""

    def value(z: Array) -> Array:
        return -log_density(wide.mean + wide.factor @ z)

    def precision(z: Array) -> tuple[Array, Array]:
        curvature, vectors = jnp.linalg.eigh(jax.hessian(value)(z))
        # No direction is less certain than under the prior, whose curvature is 1.
        return jnp.clip(jnp.abs(curvature), 1.0), vectors

    def move(state: tuple[Array, Array, Array], _: None) -> tuple[Any, None]:
        z, now, damping = state
        curvature, vectors = precision(z)
        step = vectors @ (vectors.T @ jax.grad(value)(z) / (curvature * (1 + damping)))
        step = step * jnp.minimum(1.0, 1.0 / jnp.abs(step).max())
        there = value(z - step)
        better = there < now
        damping = jnp.where(better, damping * 0.2, jnp.clip(damping, 0.1) * 5)
        return (jnp.where(better, z - step, z), jnp.where(better, there, now), damping), None

    start = jnp.zeros_like(wide.mean)
    (z, *_), _ = jax.lax.scan(move, (start, value(start), jnp.array(1.0)), None, NEWTON_STEPS)
    curvature, vectors = precision(z)
    root = wide.factor @ (vectors / jnp.sqrt(curvature))
    return wide.mean + wide.factor @ z, root @ root.T


def _adaptive_importance(
    log_density: Callable[[Array], Array], mean: Array, covariance: Array, random: Array
) -> tuple[Array, Array]:
    """Equally weighted draws, and the effective number of the proposals behind them."""
    dim = len(mean)

    def propose(state: tuple[Array, Array], random: Array) -> tuple[Array, Array]:
        mean, covariance = state
        factor = jnp.linalg.cholesky(covariance)
        normal, chi = jax.random.split(random)
        away = jax.random.normal(normal, (PROPOSED, dim))
        away = away / jnp.sqrt(jax.random.chisquare(chi, TAIL, (PROPOSED, 1)) / TAIL)
        draws = mean + away @ factor.T
        log_q = -0.5 * (TAIL + dim) * jnp.log1p(jnp.square(away).sum(1) / TAIL)
        log_weight = jax.vmap(log_density)(draws) - log_q
        return draws, jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)

    def adapt(state: tuple[Array, Array], random: Array) -> tuple[tuple[Array, Array], None]:
        draws, log_weight = propose(state, random)
        # Tempered until a tenth of the proposals count, so that one draw never decides.
        power = _tempering(log_weight)
        weight = jax.nn.softmax(power * log_weight)
        mean = weight @ draws
        away = draws - mean
        return (mean, (away * weight[:, None]).T @ away + 1e-10 * jnp.eye(dim)), None

    keys = jax.random.split(random, ADAPTATIONS + 2)
    state, _ = jax.lax.scan(adapt, (mean, covariance), keys[2:])
    draws, log_weight = propose(state, keys[0])
    weight = jax.nn.softmax(log_weight)
    # Systematic resampling.
    place = (jnp.arange(KEPT) + jax.random.uniform(keys[1])) / KEPT
    chosen = jnp.searchsorted(jnp.cumsum(weight), place).clip(0, PROPOSED - 1)
    return draws[chosen], 1 / jnp.square(weight).sum()


def _tempering(log_weight: Array) -> Array:
    """The largest power up to 1 that leaves a tenth of the draws effective."""
    powers = 0.8 ** jnp.arange(30)

    def ess(power: Array) -> Array:
        return 1 / jnp.square(jax.nn.softmax(power * log_weight)).sum()

    enough = jax.vmap(ess)(powers) >= 0.1 * len(log_weight)
    return powers[jnp.argmax(enough.at[-1].set(True))]


def _estimate(drivers: DriverDraws, wide: Wide) -> Wide:
    """A wide prior around the population that explains the drivers best (EM)."""
    dim = len(wide.mean)

    def step(state: Wide, _: None) -> tuple[Wide, None]:
        density = jax.vmap(lambda x: log_normal(x, *state))(drivers.log_theta)
        weight = jax.nn.softmax(density - drivers.log_prior, axis=1)
        mean = jnp.einsum("ij,ijk->k", weight, drivers.log_theta) / len(weight)
        away = drivers.log_theta - mean
        covariance = jnp.einsum("ij,ijk,ijl->kl", weight, away, away) / len(weight)
        return Wide(mean, jnp.linalg.cholesky(covariance + 1e-4 * jnp.eye(dim))), None

    best, _ = jax.lax.scan(step, wide, None, EM_STEPS)
    return Wide(best.mean, best.factor * jnp.sqrt(WIDER))


def _marginal_model(
    population: Population, drivers: DriverDraws, wide: Wide
) -> Callable[[Any], None]:
    """A NumPyro program: the population given all trajectories."""
    count, kept, dim = drivers.log_theta.shape
    # A normal log-density is linear in these functions of the draws: one product does them all.
    place = _solve(wide.factor, (drivers.log_theta - wide.mean).reshape(-1, dim).T).T
    row, column = np.tril_indices(dim)
    functions = jnp.concatenate([place[:, row] * place[:, column], place], axis=1)
    twice = jnp.where(row == column, 1.0, 2.0)

    def model(_: Any) -> None:
        mean, factor = population.prior()
        centre = _solve(wide.factor, mean - wide.mean)
        root = _solve(wide.factor, factor)
        whitener = _solve(root, jnp.eye(dim))
        precision = whitener.T @ whitener
        linear = jnp.concatenate([-0.5 * twice * precision[row, column], precision @ centre])
        density = (functions @ linear).reshape(count, kept) - drivers.log_prior
        constant = jnp.log(jnp.diag(factor)).sum() + 0.5 * centre @ precision @ centre
        constant = constant + 0.5 * dim * jnp.log(2 * jnp.pi) + jnp.log(kept)
        numpyro.factor("trajectories", (logsumexp(density, axis=1) - constant).sum())

    return model


def _with_drivers(chains: Chains, drivers: DriverDraws, random: Array) -> PopulationDraws:
    """A draw of every driver for each of the population."""
    sites = chains.sites
    shape = sites["mean"].shape[:2]
    mean, factor = population_draws(chains, chains.diverging.size)

    @jax.jit
    def one(args: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        random, mean, factor = args
        log_weight = log_normal(drivers.log_theta, mean, factor) - drivers.log_prior
        chosen = jax.random.categorical(random, log_weight, axis=1)
        weight = jax.nn.softmax(log_weight, axis=1)
        theta = jnp.take_along_axis(drivers.log_theta, chosen[:, None, None], axis=1)[:, 0]
        return jnp.exp(theta), 1 / jnp.square(weight).sum(1)

    keys = jax.random.split(random, len(mean))
    theta, ess = jax.lax.map(one, (keys, jnp.asarray(mean), jnp.asarray(factor)))
    found = {
        **sites,
        "correlation": np.einsum("...ij,...kj->...ik", sites["factor"], sites["factor"]),
        "theta": np.asarray(theta).reshape(*shape, *theta.shape[1:]),
    }
    # Fewer proposals than draws counted where some were drawn several times.
    distinct = np.minimum(1.0, np.asarray(drivers.ess) / KEPT)
    return PopulationDraws(chains._replace(sites=found), np.asarray(ess.mean(0)) * distinct)
