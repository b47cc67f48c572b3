"""One population for everybody, trained by the objective of `objective=predictive`.

What a posterior of each driver adds to it is what its context says about the driver: the same
simulator, score, windows and stopping rule, but the draws are the same law for all.
"""

import copy
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from asbc.baselines.method import Fitted, Task, for_every_pair
from asbc.data.source import split_by_follower
from asbc.posterior.posterior import Posterior
from asbc.posterior.transform import Bounded
from asbc.predictive.objective import Predictive
from asbc.predictive.recorded_windows import Examples, RecordedWindows
from asbc.simulator import Prior
from asbc.simulator.black_box import require_likelihood
from asbc.simulator.prior import quantile_grid
from asbc.training.loop import Patience, one_cycle
from asbc.utils.progress import progress
from asbc.utils.random import key, standard_normal, stream

# Known drivers that train, that stop the training, and none.
SHARES = (0.8, 0.1, 0.1)
CHUNK = 32  # windows scored at once


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

    def training_sample(self, noise: Tensor, states: Tensor) -> Tensor:
        """Draws theta (B, n, D) that noise (B, n, D) maps to; the contexts are not looked at."""
        return self.transform(self.centre + noise @ torch.tril(self.factor).t())


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
        """Train on the known drivers, stop by some of them, and give everybody the same draws."""
        require_likelihood(task.simulator, "baseline=pooled_predictive", "gradients")
        train, stop, rest = split_by_follower(task.known, SHARES, key(task.seed, "pooled") % 2**31)
        sizes = (task.context_steps, self.objective.horizon, self.objective.residual_prefix_steps)
        known = train.pair_id + rest.pair_id
        recorded = RecordedWindows(
            task.known.select([task.known.find(name) for name in known]), *sizes, "known"
        )
        held = RecordedWindows(stop, *sizes, "known")
        grid = held.grid("first", self.objective.stride, self.objective.max_windows)
        population, checks = self._train(DriverLaw(task.simulator.prior), task, recorded, grid)
        noise = standard_normal(
            stream(task.seed, "pooled draws"), 1, task.samples, task.simulator.dim
        )
        with torch.no_grad():
            theta = population.training_sample(noise, noise)[0]
        return Fitted(
            task.simulator, for_every_pair(theta, task.test), task.test, {"checks": checks}
        )

    def _train(
        self, population: DriverLaw, task: Task, recorded: RecordedWindows, grid: Examples
    ) -> tuple[DriverLaw, int]:
        """The best population by the score of the held-out drivers, and how often it was asked."""
        settings, adam = self.objective, torch.optim.Adam(population.parameters())
        scales = self._scores(population, task, grid)
        rule, best = Patience(settings.patience), copy.deepcopy(population)
        rule.update(1.0)
        for step in progress(range(settings.steps), "population", total=settings.steps):
            seed = key(task.seed, "pooled", step)
            examples = recorded.draw(
                settings.windows, "first", settings.largest_scale, stream(seed, "windows")
            )
            adam.param_groups[0]["lr"] = self.learning_rate * one_cycle(step / settings.steps)
            adam.zero_grad()
            # It is asked for draws only.
            posterior = cast(Posterior, population)
            settings.loss(posterior, task.simulator, examples, scales, seed).backward()
            torch.nn.utils.clip_grad_norm_(population.parameters(), settings.clip)
            adam.step()
            if (step + 1) % settings.check_every == 0:
                score = float((self._scores(population, task, grid) / scales).mean())
                if rule.update(score):
                    best = copy.deepcopy(population)
                if rule.exhausted:
                    break
        return best, rule.updates

    @torch.no_grad()
    def _scores(self, population: DriverLaw, task: Task, grid: Examples) -> Tensor:
        settings, rng = self.objective, stream(0, "pooled", "validation")
        found = []
        for part in grid.split(CHUNK):
            shape = (len(part), settings.validation_draws, task.simulator.dim)
            theta = population.training_sample(standard_normal(rng, *shape), part.states)
            found.append(settings.scores(settings.roll_out(task.simulator, theta, part, 0), part))
        return torch.cat(found).mean(0)
