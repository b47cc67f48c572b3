"""The pooled baselines in JAX: NumPyro programs, and MA-IDM's likelihood.

MA-IDM's residuals are correlated within slices of a few seconds, and slices are independent.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from asbc.baselines.method import Task
from asbc.errors import InputError
from asbc.exact.likelihood import (
    LOG_TWO_PI,
    Model,
    ThetaPrior,
    TrajectoryLikelihood,
    asbc_prior,
    reference_prior,
    theta_model,
    weights,
)
from asbc.exact.statistics import COLUMNS, Statistics, Transitions, runs, statistics, transitions
from asbc.simulator import Simulator
from asbc.simulator.matern import MaternResidual

# Relative to sigma^2: keeps the Cholesky factor of a smooth kernel real.
JITTER = 1e-8

# Correlation matrix of one slice, relative to sigma^2, from lag (s) and theta.
Correlation = Callable[[np.ndarray, Array], Array]


class SliceStatistics(NamedTuple):
    """Products of the design's columns at two places of a slice, summed over all slices."""

    products: np.ndarray  # (steps, steps, 9, 9)
    slices: int


def slice_statistics(drivers: Sequence[Transitions], steps: int) -> SliceStatistics:
    """Cut all stretches into slices of `steps` that do not overlap, so that no step counts twice.

    What is left at the end of a stretch and does not fill a slice is left out.
    """
    slices = [
        run[: len(run) // steps * steps].reshape(-1, steps, COLUMNS)
        for driver in drivers
        for run in runs(driver)
    ]
    cut = np.concatenate(slices) if slices else np.zeros((0, steps, COLUMNS))
    if not len(cut):
        raise InputError(f"no stretch of {steps} steps; lower baseline.slice_seconds")
    products = np.einsum("nia,njb->ijab", cut, cut, optimize=True)
    return SliceStatistics(products, len(cut))


def slice_log_likelihood(
    theta: Array, statistics: SliceStatistics, correlation: Array, delta: float
) -> Array:
    """Log-density of all slices under theta (dim,) and the correlation matrix of one slice."""
    steps = len(statistics.products)
    factor = cho_factor(correlation + JITTER * jnp.eye(steps), lower=True)
    precision = cho_solve(factor, jnp.eye(steps))
    weight, sigma = weights(theta, delta), theta[5]
    form = jnp.einsum("ij,ijab->ab", precision, statistics.products)
    log_det = 2 * jnp.log(jnp.diag(factor[0])).sum() + steps * (2 * jnp.log(sigma) + LOG_TWO_PI)
    return -0.5 * (weight @ form @ weight / sigma**2 + statistics.slices * log_det)


def squared_exponential(lag: np.ndarray, theta: Array) -> Array:
    """exp(-lag^2 / (2 ell^2)) plus white noise; theta: ..., sigma, ell, white."""
    sigma, ell, white = theta[5], theta[6], theta[7]
    return jnp.exp(-0.5 * (lag / ell) ** 2) + (white / sigma) ** 2 * jnp.eye(len(lag))


def matern52(nugget: float) -> Correlation:
    """The Matern-5/2 kernel with ASBC's nugget; theta: ..., sigma, ell."""

    def correlation(lag: np.ndarray, theta: Array) -> Array:
        scaled = np.sqrt(5) * lag / theta[6]
        kernel = (1 + scaled + scaled**2 / 3) * jnp.exp(-scaled)
        return kernel + nugget * jnp.eye(len(lag))

    return correlation


def b_idm(task: Task, prior: str) -> tuple[Model, Statistics]:
    """Pooled B-IDM and the statistics of all known pairs."""
    simulator = task.simulator
    likelihood = TrajectoryLikelihood.of(simulator)
    pooled = statistics(simulator, transitions(simulator, task.known)).pooled()
    model = theta_model(
        _prior(simulator, prior), lambda theta, data: likelihood(theta[None], data)[0]
    )
    return model, pooled


def ma_idm(
    task: Task, simulator: Simulator, prior: str, slice_seconds: float
) -> tuple[Model, SliceStatistics]:
    """Pooled MA-IDM with the simulator's kernel and the statistics of all slices."""
    steps = round(slice_seconds / simulator.dt)
    time = np.arange(steps) * simulator.dt
    lag = np.abs(time[:, None] - time)
    residual, delta = simulator.residual, simulator.law.delta  # type: ignore[attr-defined]
    kernel = matern52(residual.nugget) if isinstance(residual, MaternResidual) else None
    correlation = kernel or squared_exponential

    def log_likelihood(theta: Array, data: SliceStatistics) -> Array:
        return slice_log_likelihood(theta, data, correlation(lag, theta), delta)

    cut = slice_statistics(transitions(simulator, task.known), steps)
    return theta_model(_prior(simulator, prior), log_likelihood), cut


def _prior(simulator: Simulator, name: str) -> ThetaPrior:
    if name == "reference":
        return reference_prior(simulator.residual.parameters)
    return asbc_prior(simulator.prior.marginals)
