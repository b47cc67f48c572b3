"""What every baseline is given, and what it hands to the evaluation."""

import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.baselines.convergence import Convergence
from asbc.data.pairset import PairSet
from asbc.simulator import Simulator
from asbc.utils.checks import InputError

if TYPE_CHECKING:
    from arviz import InferenceData


@dataclass(frozen=True)
class Task:
    """A calibration problem.

    Attributes:
        simulator: law, residual process, prior and kinematics of the config.
        known: pairs a method may learn from, with their whole trajectories.
        test: pairs to predict; a method sees their first `context_steps` samples only.
        context_steps: samples of context.
        samples: parameter draws wanted for each test pair.
        seed: all randomness.
    """

    simulator: Simulator
    known: PairSet
    test: PairSet
    context_steps: int
    samples: int
    seed: int


@dataclass(frozen=True)
class Fitted:
    """Parameter draws, and the simulator to roll them out with.

    Attributes:
        simulator: as in the task, or with the method's own residual process.
        theta: (pair, draw, dim) float32.
        pairs: the test pairs the draws belong to.
        details: what metrics.json keeps of the fit.
        inference: all draws with their diagnostics, where the method is Bayesian.
        convergence: the verdict on them.
    """

    simulator: Simulator
    theta: Tensor
    pairs: PairSet
    details: dict[str, Any] = field(default_factory=dict)
    inference: "InferenceData | None" = None
    convergence: Convergence | None = None


class Baseline(Protocol):
    """A comparison method; built from a file of the `baseline` config group."""

    def label(self, residual: str) -> str:
        """How tables name the method with this residual model."""
        ...

    def fit(self, task: Task) -> Fitted:
        """Calibrate on the task's pairs."""
        ...


def require_extra() -> None:
    """Raise unless the packages of the `baselines` extra are installed."""
    needed = ("jax", "numpyro", "arviz", "h5netcdf")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"this baseline needs {', '.join(missing)}: pip install -e '.[baselines]'"
        )


def take_draws(theta: np.ndarray, samples: int) -> Tensor:
    """`samples` of the draws (chain, draw, ..., dim), evenly spaced, as float32 (samples, ...)."""
    flat = theta.reshape(-1, *theta.shape[2:])
    place = np.linspace(0, len(flat) - 1, samples).round().astype(int)
    return torch.from_numpy(flat[place]).float()


def for_every_pair(theta: Tensor, pairs: PairSet) -> Tensor:
    """The same draws (samples, dim) for each pair: (pair, samples, dim)."""
    return theta.expand(len(pairs), *theta.shape).contiguous()
