"""What a posterior is trained for: the choices of the config group `objective`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asbc.data.history import CONTEXTS, FIRST, LATEST
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.source import Splits
from asbc.errors import InputError
from asbc.evaluation.observation import draw_errors, recorded
from asbc.evaluation.predict import drive_windows
from asbc.evaluation.protocol import PREFIX_NOISE, PREFIX_STEPS
from asbc.evaluation.recording_lag import expected_lags, unexplained
from asbc.evaluation.scores import VARIABLES, central_coverage, sorted_by_step
from asbc.posterior.posterior import Posterior
from asbc.posterior.segment_pool import SegmentPool
from asbc.predictive.proper_scores import PROPER, bounded_gradient
from asbc.predictive.recorded_windows import (
    RANDOM,
    TRAINING_CONTEXTS,
    Examples,
    RecordedWindows,
)
from asbc.run import Run
from asbc.simulator import Rollout, Simulator
from asbc.simulator.learned_residual import READS
from asbc.training.loop import RoundCallback, Weights
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import key, standard_normal, stream

if TYPE_CHECKING:
    from asbc.predictive.stage import PredictiveStage

# What is scored of a rollout, each over its own scale.
SERIES = tuple(variable.series for variable in VARIABLES.values())
# The gradient of a window's loss, in units of its own size, with respect to the logarithms of all
# of its draws is of order one; a single draw may have this many times its share.
DRAW_LIMIT = 10.0
LARGEST_STEP = 16_384  # rollouts of a step: what a simulator drives at once
CHUNK = 32  # validation windows in memory at once
SMALLEST_SCORE = 0.01  # of somebody who keeps a speed; where nobody changes it, it says nothing
VALIDATION_SEED = 0

# Rollouts (window, draw, step) of examples: called with how many of each, and a seed.
Predict = Callable[[Examples, int, int], Rollout]


@dataclass(frozen=True, kw_only=True)
class Predictive:
    """After the loop, train on recorded drivers by the score of their own predictions.

    The values that follow were chosen on validation drivers of NGSIM and Lyft.

    Args:
        name: of the objective.
        learned_residual: hidden units of residuals that are learned too; 0: none are.
        score: `energy` (windows as vectors) or `crps` (step by step).
        context: what a window is predicted from in training: `random`, any stretch before it, or
            as in an evaluation, `first`, `latest` or (with history=segments) `all`.
        steps: gradient steps at most.
        check_every: steps between scores on the validation drivers.
        patience: checks without improvement that end the training.
        windows: recorded windows of a step.
        draws: of theta for each.
        learning_rate: peak of its one cycle.
        clip: largest norm of a step's gradient.
        simulated_weight: of the paper's loss on simulated drivers, added to the score.
        average: share of the averaged weights that a step keeps; 0 takes the last weights.
        largest_scale: windows are scaled by factors up to this; 1 leaves them as recorded.
        horizon: steps of a window.
        stride: steps between the windows of a validation driver.
        max_windows: of a validation driver.
        validation_draws: of theta for each of these windows.
        residual_prefix_steps, residual_prefix_noise: as in an evaluation.
    """

    name: str = "predictive"
    learned_residual: int = 0
    score: str = "energy"
    context: str = "random"
    steps: int = 800
    check_every: int = 100
    patience: int = 4
    windows: int = 24
    draws: int = 16
    learning_rate: float = 1.5e-4
    clip: float = 1.0
    simulated_weight: float = 0.01
    average: float = 0.98
    largest_scale: float = 1.0
    horizon: int = 50
    stride: int = 20
    max_windows: int = 20
    validation_draws: int = 64
    residual_prefix_steps: int = PREFIX_STEPS
    residual_prefix_noise: float = PREFIX_NOISE

    def __post_init__(self) -> None:
        for choice, known in (("score", PROPER), ("context", TRAINING_CONTEXTS)):
            if getattr(self, choice) not in known:
                raise InputError(
                    f"objective.{choice}={getattr(self, choice)}; expected one of "
                    f"{', '.join(known)}"
                )
        for field in fields(self):
            value, name = getattr(self, field.name), f"objective.{field.name}"
            if field.name in ("draws", "validation_draws"):
                check_integer(name, value, minimum=2)
            elif field.name in ("residual_prefix_steps", "learned_residual"):
                check_integer(name, value, minimum=0)
            elif field.name in ("learning_rate", "clip"):
                check_number(name, value, above=0)
            elif field.name in ("simulated_weight", "residual_prefix_noise", "average"):
                check_number(name, value, minimum=0)
            elif field.name == "largest_scale":
                check_number(name, value, minimum=1)
            elif field.name not in ("name", "score", "context"):
                check_integer(name, value, minimum=1)
        if self.windows * self.draws > LARGEST_STEP:
            raise InputError(
                f"objective.windows={self.windows} times objective.draws={self.draws}; expected "
                f"at most {LARGEST_STEP} rollouts a step"
            )
        if self.average >= 1:
            raise InputError(f"objective.average={self.average}; expected a share below 1")

    def stage(
        self,
        loop: RoundCallback,
        simulator: Simulator,
        splits: Splits,
        context_steps: int,
        pool: SegmentPool | None,
        seed: int,
        run: Run,
    ) -> PredictiveStage:
        """The callback that trains for it after the loop."""
        from asbc.predictive.stage import PredictiveStage

        recorded, validation = self.examples(
            splits.train, splits.validation, context_steps, simulator, pool
        )
        return PredictiveStage(self, loop, simulator, recorded, self.grids(validation), seed, run)

    @property
    def samples_before(self) -> int:
        """Samples right before a window that a prediction of it may go on from."""
        return max(self.residual_prefix_steps, READS) if self.residual_prefix_steps else 0

    @property
    def checks(self) -> int:
        """Scores on the validation drivers at most, after that of the start."""
        return -(-self.steps // self.check_every)

    def examples(
        self,
        train: Pairs,
        validation: Pairs,
        context_steps: int,
        simulator: Simulator,
        pool: SegmentPool | None = None,
    ) -> tuple[RecordedWindows, RecordedWindows]:
        """Training and validation drivers, for a posterior with this pool."""
        sizes = (context_steps, self.horizon, self.samples_before)
        rule = simulator.kinematics
        lags = expected_lags(train, rule, context_steps)
        return (
            RecordedWindows(train, *sizes, "training", pool, rule, lags),
            RecordedWindows(validation, *sizes, "validation", pool, rule, lags),
        )

    def grids(self, validation: RecordedWindows) -> list[Examples]:
        """What is scored at a check: the validation windows, from each context that counts."""
        contexts: tuple[str, ...] = (self.context,)
        if self.context == RANDOM:
            contexts = (FIRST, LATEST) if validation.pool is None else CONTEXTS
        return [validation.grid(name, self.stride, self.max_windows) for name in contexts]

    def loss(
        self,
        posterior: Posterior,
        simulator: Simulator,
        examples: Examples,
        scales: Tensor,
        seed: int,
    ) -> Tensor:
        """Mean over windows and series of score over scale, with gradients to the posterior."""
        rollout = self.predict(posterior.training_sample, simulator, examples, self.draws, seed)
        rollout = self.as_recorded(rollout, simulator, examples, seed)
        return (self.scores(rollout, examples).mean(0) / scales).mean()

    def predict(
        self,
        sample: Callable[[Tensor, Tensor | Segments], Tensor],
        simulator: Simulator,
        examples: Examples,
        draws: int,
        seed: int,
    ) -> Rollout:
        """Rollouts with draws of theta, whose gradients are bounded.

        Args:
            sample: from noise (window, draw, dim) and contexts to theta (window, draw, dim).
            simulator: drives with them.
            examples: what to predict.
            draws: of theta for each window.
            seed: all randomness.
        """
        shape = (len(examples), draws, simulator.dim)
        theta = sample(standard_normal(stream(seed, "draws"), *shape), examples.states)
        theta = bounded_gradient(theta, DRAW_LIMIT / (shape[0] * shape[1]))
        return self.roll_out(simulator, theta, examples, seed)

    @torch.no_grad()
    def check(
        self,
        predict: Predict,
        simulator: Simulator,
        grids: Sequence[Examples],
        draws: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean scores and coverages of gap, speed and acceleration, both (3,).

        Each of the grids counts alike. The noise is the same at every check.
        """
        found = []
        for grid in grids:
            each = self._each(predict, simulator, grid, draws)
            found.append(torch.stack([values.mean(0) for values in each]))
        score, share = torch.stack(found).mean(0)
        return score, share

    @torch.no_grad()
    def window_scores(
        self, predict: Predict, simulator: Simulator, grids: Sequence[Examples]
    ) -> Tensor:
        """Scores of each validation window, (window, 3), as for a check.

        The grids have the same windows, predicted from one context or another.
        """
        return torch.stack([self._each(predict, simulator, g)[0] for g in grids]).mean(0)

    def _each(
        self, predict: Predict, simulator: Simulator, grid: Examples, draws: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores and coverages of each window, both (window, 3)."""
        scores, held = [], []
        for i, part in enumerate(grid.split(CHUNK)):
            seed = key(VALIDATION_SEED, i)
            drives = predict(part, draws or self.validation_draws, seed)
            rollout = self.as_recorded(drives, simulator, part, seed)
            scores.append(self.scores(rollout, part))
            held.append(self.held(rollout, part))
        return torch.cat(scores), torch.cat(held)

    def scales(self, simulator: Simulator, grids: Sequence[Examples], start: Tensor) -> Tensor:
        """What the scores of gap, speed and acceleration are counted in, (3,).

        In relation to each other they are those of somebody who keeps the speed, for every method
        and whatever it knows; in size, such that the scores at the start are 1 on average.

        Args:
            simulator: says how gaps change.
            grids: as for a check.
            start: scores (3,) at the start.
        """
        found = [self._steady(simulator, grid) for grid in grids]
        steady = torch.stack(found).mean(0).clamp_min(SMALLEST_SCORE)
        return steady * (start / steady).mean()

    def add_to_average(self, average: Weights, module: nn.Module, step: int) -> None:
        """Let the averaged weights follow those of the module after `step` steps."""
        # Young averages forget faster: the weights of the start would stay in them for long.
        kept = min(self.average, step / (step + 10))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                average[name].lerp_(value.detach(), 1 - kept)

    def roll_out(
        self, simulator: Simulator, theta: Tensor, examples: Examples, seed: int
    ) -> Rollout:
        """Predictions of the windows with draws theta (window, draw, dim)."""
        return drive_windows(
            simulator,
            theta,
            examples.pairs,
            examples.windows,
            self.residual_prefix_steps,
            self.residual_prefix_noise,
            key(seed, "rollouts"),
            examples.kinematics,
        )

    def as_recorded(
        self, drives: Rollout, simulator: Simulator, examples: Examples, seed: int
    ) -> Rollout:
        """Drives (window, draw, step) with the recording's own error.

        No parameter of a driver should have to explain it (`asbc.evaluation.observation`).
        """
        rule, dt = examples.kinematics or simulator.kinematics, simulator.dt
        draws, rng = drives.gap.shape[1], stream(seed, "observation")
        errors = draw_errors(examples.newest, rule, dt, self.horizon, draws, rng, drives.gap.dtype)
        return recorded(drives, errors, dt)

    def scores(self, rollout: Rollout, examples: Examples) -> Tensor:
        """Scores of gap, speed and acceleration, (window, 3)."""
        pairs = zip(*self._predicted(rollout, examples), strict=True)
        return torch.stack([PROPER[self.score](*pair) for pair in pairs], dim=-1)

    def held(self, rollout: Rollout, examples: Examples) -> Tensor:
        """Share of gaps, speeds and accelerations inside their 95% intervals, (window, 3)."""
        columns = [
            central_coverage(sorted_by_step(samples), observed, 0.95)
            for samples, observed in zip(*self._predicted(rollout, examples), strict=True)
        ]
        return torch.stack(columns, dim=-1).float()

    def _predicted(
        self, rollout: Rollout, examples: Examples
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Samples (window, draw, step) and observations (window, step) of the three series."""
        # The state at the start is given, so scoring begins one step later.
        samples = [getattr(rollout, name)[..., 1:] for name in SERIES]
        series = [getattr(examples.pairs, name).view(len(examples), -1) for name in SERIES]
        return samples, [values[:, -self.horizon :] for values in series]

    def _steady(self, simulator: Simulator, examples: Examples) -> Tensor:
        """Scores of predicting that everybody keeps the speed of the start, (3,)."""
        gap, speed, leader, acceleration = (
            getattr(examples.pairs, name).view(len(examples), -1)[:, -self.horizon - 1 :]
            for name in ("gap", "speed", "leader_speed", "acceleration")
        )
        kept = speed[:, :1].expand_as(speed)
        rule = examples.kinematics or simulator.kinematics
        states = torch.stack([gap, kept, kept - leader], dim=-1)
        errors = unexplained(states, rule, simulator.dt), speed - kept, acceleration
        # A score needs two draws at least; these are alike.
        missed = (error[:, None, 1:].expand(-1, 2, -1) for error in errors)
        scores = [PROPER[self.score](both, torch.zeros_like(both[:, 0])) for both in missed]
        return torch.stack(scores).mean(1)
