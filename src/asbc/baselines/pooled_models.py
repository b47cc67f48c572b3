"""NumPyro models of the pooled baselines."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro
from jax import Array

from asbc.baselines.likelihood import TrajectoryLikelihood
from asbc.baselines.memory import (
    SliceStatistics,
    matern52,
    slice_log_likelihood,
    slice_statistics,
    squared_exponential,
)
from asbc.baselines.method import Task
from asbc.baselines.priors import ThetaPrior, asbc_prior, reference_prior
from asbc.baselines.statistics import Statistics, statistics
from asbc.baselines.transitions import transitions
from asbc.simulator import Simulator
from asbc.simulator.matern import MaternResidual

Model = Callable[[Any], None]


def theta_model(prior: ThetaPrior, log_likelihood: Callable[[Array, Any], Array]) -> Model:
    """theta from the prior, data through `log_likelihood(theta, statistics)`."""

    def model(data: Any) -> None:
        theta = numpyro.deterministic("theta", prior())
        numpyro.factor("trajectories", log_likelihood(theta, data))

    return model


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
