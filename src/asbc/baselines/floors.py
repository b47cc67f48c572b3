"""Methods that learn nothing about a driver: anything useful must beat them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from asbc.baselines.method import Fitted, Task, for_every_pair
from asbc.baselines.point_fit import fitted_residual, observed_states
from asbc.data.windows import leader_windows
from asbc.errors import InputError
from asbc.utils.random import stream


@dataclass(frozen=True)
class Recommended:
    """Textbook values for everyone, with the residual process fitted to the known pairs.

    Args:
        values: the law's parameters by name.
    """

    values: Mapping[str, float]

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"Recommended values ({residual})"

    def fit(self, task: Task) -> Fitted:
        """The recommended law and the residuals it leaves."""
        names = task.simulator.law.parameters
        if set(self.values) != set(names):
            raise InputError(
                f"baseline.values has {sorted(self.values)}, but the law needs {sorted(names)}"
            )
        law = torch.tensor([[float(self.values[name]) for name in names]])
        windows = leader_windows(task.known, task.context_steps, stride=task.context_steps)
        theta = fitted_residual(task.simulator, law, observed_states(task.known, windows)[None])
        draws = for_every_pair(theta.expand(task.samples, -1), task.test)
        return Fitted(task.simulator, draws, task.test)


@dataclass(frozen=True)
class PriorPredictive:
    """Draws from the prior, as if no trajectory had been seen."""

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"Prior predictive ({residual})"

    def fit(self, task: Task) -> Fitted:
        """The same prior draws for every pair."""
        theta = task.simulator.prior.sample(task.samples, stream(task.seed, "prior predictive"))
        return Fitted(task.simulator, for_every_pair(theta, task.test), task.test)
