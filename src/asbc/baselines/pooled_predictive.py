"""One population for everybody, trained by the objective of `objective=predictive`.

What a posterior of each driver adds to it is what its context says about the driver: the same
simulator, score, windows and stopping rule, but the draws are the same law for all.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from asbc.baselines.method import Fitted, Task, for_every_pair
from asbc.data.segments import Segments
from asbc.posterior.transform import Bounded
from asbc.predictive.objective import Predictive
from asbc.predictive.recorded_fit import RecordedModel, fit_recorded
from asbc.predictive.recorded_windows import Examples
from asbc.simulator import Prior, Rollout, Simulator
from asbc.simulator.black_box import require_likelihood
from asbc.simulator.prior import quantile_grid
from asbc.utils.random import standard_normal, stream


class DriverLaw(nn.Module):
    """A normal law, with correlations, of the logit of theta in the prior's box.

    Args:
        prior: the box, and where training starts: its own centre and spread.
    """

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.transform = Bounded.from_prior(prior)
        u = self.transform.inverse(quantile_grid(prior))
        self.centre = nn.Parameter(u.mean(0))
        self.factor = nn.Parameter(torch.diag(u.std(0)))

    def sample(self, noise: Tensor, states: Tensor | Segments) -> Tensor:
        """Draws theta (B, n, D) that noise (B, n, D) maps to; the contexts are not looked at."""
        return self.transform(self.centre + noise @ torch.tril(self.factor).t())


class Population(RecordedModel):
    """Predictions with draws of one law.

    Args:
        law: of theta.
        simulator: drives with it.
        objective: how windows are predicted.
    """

    def __init__(self, law: DriverLaw, simulator: Simulator, objective: Predictive) -> None:
        super().__init__()
        self.law, self.simulator, self.objective = law, simulator, objective

    def predict(self, examples: Examples, draws: int, seed: int) -> Rollout:
        """Rollouts (window, draw, step), with gradients to the law."""
        return self.objective.predict(self.law.sample, self.simulator, examples, draws, seed)


@dataclass(frozen=True)
class PooledPredictive:
    """One population by the score of its predictions.

    Args:
        objective: score, windows and stopping rule; its learning rate is that of `learning_rate`.
        learning_rate: peak of one cycle; a population of few numbers takes larger steps than a
            network.
    """

    objective: Predictive = field(default_factory=Predictive)
    learning_rate: float = 0.02

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"One population, trained to predict ({residual})"

    def fit(self, task: Task) -> Fitted:
        """Train on the training drivers, stop by the others, and give everybody the same draws."""
        require_likelihood(task.simulator, "baseline=pooled_predictive", "gradients")
        recorded, validation = self.objective.examples(
            *task.train_and_validation(), task.context_steps, task.simulator
        )
        law = DriverLaw(task.simulator.prior)
        details = fit_recorded(
            Population(law, task.simulator, self.objective),
            self.objective,
            recorded,
            self.objective.grids(validation),
            self.learning_rate,
            task.seed,
        )
        noise = standard_normal(
            stream(task.seed, "pooled draws"), 1, task.samples, task.simulator.dim
        )
        with torch.no_grad():
            theta = law.sample(noise, noise)[0]
        simulator = task.simulator.taught(None, recorded.lags)
        return Fitted(simulator, for_every_pair(theta, task.test), task.test, details)
