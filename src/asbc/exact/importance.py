"""Draws of a posterior with few parameters by adaptive importance sampling.

The proposal is a mixture of Student t laws, started at the modes found from several points and
then fitted to its own weighted draws by expectation maximisation ("population Monte Carlo", Cappé
et al. 2008). It follows bent and two-humped posteriors that stop a Markov chain, and its weights
say how far to trust it. The single Student t of `asbc.simulator.weighted_draws` would be faster,
but lost one of two humps in six dimensions without its weights showing it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from asbc.exact.likelihood import LOG_TWO_PI

# Draws proposed for each of the fits, and in the end.
TRIED, PROPOSED = 2500, 8000
# Parts of the mixture; times it is fitted; Newton steps to a mode.
PARTS, ADAPTATIONS, NEWTON_STEPS = 12, 60, 40
# Degrees of freedom of the parts.
TAIL = 8.0

LogDensity = Callable[[Array], Array]


class Normal(NamedTuple):
    """A normal law."""

    mean: Array  # (dim,)
    factor: Array  # (dim, dim), Cholesky factor of its covariance

    def log_prob(self, z: Array) -> Array:
        """Log-density (...) at z (..., dim)."""
        away = (z - self.mean) @ small_inverse(self.factor).T
        constant = jnp.log(jnp.diag(self.factor)).sum() + 0.5 * len(self.mean) * LOG_TWO_PI
        return -0.5 * jnp.square(away).sum(-1) - constant


class Mixture(NamedTuple):
    """A mixture of Student t laws."""

    weight: Array  # (part,)
    mean: Array  # (part, dim)
    covariance: Array  # (part, dim, dim), of the scale


def small_cholesky(matrix: Array) -> Array:
    """The lower factor of a small symmetric matrix; NaN unless it is positive definite.

    Written out: LAPACK's calls inside of a compiled loop can wait for each other for ever.
    """
    dim = len(matrix)
    rows: list[Array] = []
    for i in range(dim):
        row: list[Array] = []
        for j in range(i):
            inner = sum((row[k] * rows[j][k] for k in range(j)), start=jnp.zeros(()))
            row.append((matrix[i, j] - inner) / rows[j][j])
        pivot = matrix[i, i] - sum((part**2 for part in row), start=jnp.zeros(()))
        row.append(jnp.sqrt(pivot))
        rows.append(jnp.stack([*row, *[jnp.zeros(())] * (dim - i - 1)]))
    return jnp.stack(rows)


def small_inverse(factor: Array) -> Array:
    """The inverse of a small lower triangular matrix, written out as well."""
    rows: list[Array] = []
    for i, unit in enumerate(jnp.eye(len(factor))):
        above = sum((factor[i, j] * row for j, row in enumerate(rows)), start=jnp.zeros(()))
        rows.append((unit - above) / factor[i, i])
    return jnp.stack(rows)


def importance_draws(
    log_density: LogDensity, prior: Normal, kept: int, random: Array
) -> tuple[Array, Array]:
    """Equally weighted draws (kept, dim), and the effective number of the proposals behind them.

    Args:
        log_density: of the posterior at one point (dim,), up to a constant.
        prior: about as wide as the posterior's prior; modes are searched from its draws.
        kept: draws.
        random: key.
    """
    starts, adapt, propose, choose, shuffle = jax.random.split(random, 5)
    dim = len(prior.mean)
    away = jax.random.normal(starts, (PARTS, dim)).at[0].set(0.0)
    mean, covariance = jax.vmap(lambda z: _laplace(log_density, prior, z))(away)
    mixture = Mixture(jnp.full(PARTS, 1 / PARTS), mean, covariance)

    def step(mixture: Mixture, random: Array) -> tuple[Mixture, None]:
        draws, log_weight, parts = _propose(log_density, mixture, TRIED, random)
        # Tempered until a tenth of the proposals count, so that one draw never decides.
        weight = jax.nn.softmax(_tempering(log_weight) * log_weight)
        return _fitted(mixture, draws, weight, parts), None

    mixture, _ = jax.lax.scan(step, mixture, jax.random.split(adapt, ADAPTATIONS))
    draws, log_weight, _ = _propose(log_density, mixture, PROPOSED, propose)
    weight = jax.nn.softmax(log_weight)
    chosen = jax.random.permutation(shuffle, _systematic(weight, kept, choose))
    return draws[chosen], 1 / jnp.square(weight).sum()


def _laplace(log_density: LogDensity, prior: Normal, start: Array) -> tuple[Array, Array]:
    """Mode and inverse curvature by damped Newton steps from `start`, in the prior's own scale."""

    def value(z: Array) -> Array:
        return -log_density(prior.mean + prior.factor @ z)

    def inverse(precision: Array) -> Array:
        whitener = small_inverse(small_cholesky(precision))
        return whitener.T @ whitener

    def move(state: tuple[Array, Array, Array], _: None) -> tuple[Any, None]:
        z, now, damping = state
        covariance = inverse(jax.hessian(value)(z) + damping * jnp.eye(dim))
        step = covariance @ jax.grad(value)(z)
        step = step * jnp.minimum(1.0, 1.0 / jnp.abs(step).max())
        there = value(z - step)
        better = there < now  # never where the curvature is not positive
        damping = jnp.where(better, damping * 0.2, jnp.clip(damping, 0.1) * 5)
        return (jnp.where(better, z - step, z), jnp.where(better, there, now), damping), None

    dim = len(start)
    (z, *_), _ = jax.lax.scan(move, (start, value(start), jnp.array(1.0)), None, NEWTON_STEPS)
    # The least damping that leaves all curvatures positive.
    dampings = jnp.concatenate([jnp.zeros(1), 4.0 ** jnp.arange(16)])
    curvature = jax.hessian(value)(z)
    candidates = jax.vmap(lambda d: inverse(curvature + d * jnp.eye(dim)))(dampings)
    usable = jnp.isfinite(candidates).all((1, 2))
    covariance = jnp.where(usable.any(), candidates[jnp.argmax(usable)], jnp.eye(dim))
    return prior.mean + prior.factor @ z, prior.factor @ covariance @ prior.factor.T


def _propose(
    log_density: LogDensity, mixture: Mixture, count: int, random: Array
) -> tuple[Array, Array, tuple[Array, Array]]:
    """Draws (count, dim) of the mixture, their log-weights, and what `_parts` says of them."""
    part, normal, chi = jax.random.split(random, 3)
    chosen = _systematic(mixture.weight, count, part)
    away = jax.random.normal(normal, (count, mixture.mean.shape[1]))
    away = away / jnp.sqrt(jax.random.chisquare(chi, TAIL, (count, 1)) / TAIL)
    factor = jax.vmap(small_cholesky)(mixture.covariance)
    draws = mixture.mean[chosen] + jnp.einsum("nij,nj->ni", factor[chosen], away)
    parts = _parts(mixture, draws)
    log_weight = jax.vmap(log_density)(draws) - jax.nn.logsumexp(parts[0], axis=0)
    return draws, jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf), parts


def _parts(mixture: Mixture, draws: Array) -> tuple[Array, Array]:
    """Log-densities (part, n), weights included, up to a constant; squared distances (part, n)."""

    def one(weight: Array, mean: Array, covariance: Array) -> tuple[Array, Array]:
        factor = small_cholesky(covariance)
        square = jnp.square((draws - mean) @ small_inverse(factor).T).sum(1)
        tail = -0.5 * (TAIL + len(mean)) * jnp.log1p(square / TAIL)
        return jnp.log(weight) - jnp.log(jnp.diag(factor)).sum() + tail, square

    return jax.vmap(one)(*mixture)


def _fitted(mixture: Mixture, draws: Array, weight: Array, parts: tuple[Array, Array]) -> Mixture:
    """A step of expectation maximisation; parts with few draws move little."""
    dim = draws.shape[1]
    log_parts, square = parts
    share = jax.nn.softmax(log_parts, axis=0) * weight
    total = share.sum(1)
    # What a part has seen, counted in draws, against as many as its covariance needs.
    seen = jnp.square(total) / (jnp.square(share).sum(1) + 1e-300)
    trust = (seen / (seen + 2 * dim))[:, None]
    near = share * (TAIL + dim) / (TAIL + square)
    mean = (near @ draws) / (near.sum(1)[:, None] + 1e-300)
    mean = trust * mean + (1 - trust) * mixture.mean
    away = draws - mean[:, None]
    covariance = jnp.einsum("kn,kni,knj->kij", near, away, away) / (total[:, None, None] + 1e-300)
    covariance = trust[..., None] * covariance + (1 - trust[..., None]) * mixture.covariance
    # Every part keeps enough draws to be heard again.
    heard = total + 0.02 / len(total)
    return Mixture(heard / heard.sum(), mean, covariance + 1e-12 * jnp.eye(dim))


def _tempering(log_weight: Array) -> Array:
    """The largest power up to 1 that leaves a tenth of the draws effective."""
    powers = 0.8 ** jnp.arange(30)

    def ess(power: Array) -> Array:
        return 1 / jnp.square(jax.nn.softmax(power * log_weight)).sum()

    enough = jax.vmap(ess)(powers) >= 0.1 * len(log_weight)
    return powers[jnp.argmax(enough.at[-1].set(True))]


def _systematic(weight: Array, count: int, random: Array) -> Array:
    """`count` places drawn by weight, each as often as its weight says up to one."""
    place = (jnp.arange(count) + jax.random.uniform(random)) / count
    return jnp.searchsorted(jnp.cumsum(weight), place).clip(0, len(weight) - 1)
