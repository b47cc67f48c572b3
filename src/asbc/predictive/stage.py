"""The second stage of a training: recorded drivers, by the score of their own predictions.

It follows the loop inside the same `Trainer.fit`. An epoch is `check_every` steps; at its end the
averaged weights are scored on the validation drivers, and the best of them are kept, if they are
better than those that the loop ended with beyond chance: a stage that does not help declines. Of
many checks of drivers who have nothing to teach, one looks better than the start. All state is
in `state_dict` and all randomness is keyed by the step, so a killed run resumes bit for bit.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.evaluation.scores import VARIABLES
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.posterior import Posterior
from asbc.predictive.objective import SERIES, Predictive
from asbc.predictive.recorded_windows import Examples, RecordedWindows
from asbc.predictive.widening import fit_widening, widen
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.black_box import require_likelihood
from asbc.training.datamodule import Batch
from asbc.training.loop import (
    COUNTERS,
    PREDICTIVE_SCORE,
    Patience,
    RoundCallback,
    Row,
    Weights,
    copy_weights,
    one_cycle,
    parts,
)
from asbc.utils.random import key, stream

log = logging.getLogger(__name__)

# What a checkpoint keeps of the stage besides its rule.
STATE = (
    "check",
    "step",
    "started",
    "finished",
    "scales",
    "average",
    "best_weights",
    "best_row",
    "first_row",
    "widening",
)
# Standard errors by which the best weights have to be better than those of the start.
BEYOND_CHANCE = 2.0
# Ends of intervals need more draws of a window than its score; of windows, which are alike within
# a driver, a part will do.
COVERAGE_DRAWS, COVERAGE_WINDOWS = 250, 120


class Steps:
    """The steps of one check: what Lightning iterates over in place of simulations."""

    def __init__(self, stage: "PredictiveStage") -> None:
        self._stage = stage

    def __len__(self) -> int:
        return self._stage.steps_of_check()

    def __iter__(self) -> Iterator[Batch]:
        first = self._stage.step
        for step in range(first, first + len(self)):
            yield self._stage.batch(step)


class PredictiveStage(pl.Callback):
    """Trains on recorded drivers once the loop has ended.

    Args:
        objective: its settings.
        loop: what comes before.
        simulator: predicts; it must have gradients.
        recorded: training drivers.
        grids: windows of the validation drivers.
        seed: the run's seed.
        run: where tables and the best weights go.
    """

    def __init__(
        self,
        objective: Predictive,
        loop: RoundCallback,
        simulator: Simulator,
        recorded: RecordedWindows,
        grids: Sequence[Examples],
        seed: int,
        run: Run,
    ) -> None:
        require_likelihood(simulator, "objective=predictive", "gradients")
        self.objective, self.loop, self.simulator = objective, loop, simulator
        self.recorded, self.grids = recorded, grids
        self.seed, self.run = seed, run
        loop.later_checks = objective.checks
        self.check = 0  # of the next epoch's end; that of the start is 0
        self.step = 0  # within the stage
        self.started = self.finished = False
        self.scales = torch.ones(len(SERIES))
        self.average: Weights = {}
        self.best_weights: Weights = {}
        self.best_row: Row = {}
        self.first_row: Row = {}  # of the start
        self.widening = 1.0
        self.rule = Patience(objective.patience)
        self._epoch_start = 0.0
        self._simulated: Batch = {}

    @property
    def active(self) -> bool:
        """Whether it is the stage's turn."""
        return self.loop.finished and not self.finished

    def steps_of_check(self) -> int:
        """Gradient steps until the next check."""
        return min(self.objective.check_every, self.objective.steps - self.step)

    def batch(self, step: int) -> Batch:
        """What a step trains on: its number, and as many simulated pairs for the paper's loss.

        A batch of the loop's would cost as much as the windows, for a hundredth of the loss.
        """
        batch: Batch = {"step": step, "rows": self.objective.windows}
        if self.objective.simulated_weight:
            rows = len(self._simulated["theta"])
            count = min(self.objective.windows, rows)
            chosen = stream(self.seed, "predict", step, "simulated").permutation(rows)[:count]
            batch |= {name: value[chosen] for name, value in self._simulated.items()}
        return batch

    def loss(self, posterior: Posterior, batch: Batch) -> Tensor:
        """The step's loss: the score of recorded windows, and some of the paper's."""
        seed = key(self.seed, "predict", batch["step"])
        settings = self.objective
        examples = self.recorded.draw(
            settings.windows, settings.context, settings.largest_scale, stream(seed, "windows")
        )
        loss = settings.loss(posterior, self.simulator, examples, self.scales, seed)
        if settings.simulated_weight:
            columns = batch.get("columns")
            log_q = posterior.training_log_prob(batch["theta"], batch["states"], columns)
            loss = loss - settings.simulated_weight * (log_q * batch["weight"]).mean()
        return loss

    # Hooks, in the order in which they are called; the loop's own come first.

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin where the loop, or a run it starts from, has ended; stop a finished run."""
        if trainer.world_size > 1 or trainer.strategy.root_device.type != "cpu":
            raise InputError(
                "objective=predictive trains on one CPU: use trainer.devices=1 "
                "trainer.accelerator=cpu"
            )
        if self.active:
            trainer.should_stop = False
            self._enter(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Key this check's dropout."""
        if self.active:
            torch.manual_seed(key(self.seed, "dropout", "predict", self.check))
            self._epoch_start = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set this step's learning rate."""
        if self.active:
            rate = self.objective.learning_rate * one_cycle(self.step / self.objective.steps)
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = rate * group.get("faster", 1.0)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Bound the gradient."""
        if self.active:
            torch.nn.utils.clip_grad_norm_(pl_module.parameters(), self.objective.clip)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Average the weights."""
        if not self.active:
            return
        self.step += 1
        self.objective.add_to_average(self.average, pl_module, self.step)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Score the averaged weights; enter the stage when the loop has just ended."""
        if not self.active:
            return
        if not self.started:
            trainer.should_stop = False
            self._enter(trainer)
            return
        self._note(trainer, time.perf_counter() - self._epoch_start)
        if self.step >= self.objective.steps or self.rule.exhausted:
            self._finish(trainer)
            self.finished = trainer.should_stop = True

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the best weights in the model."""
        if self.best_weights:
            pl_module.load_state_dict(self.best_weights)

    def _enter(self, trainer: pl.Trainer) -> None:
        """Put the stage in the place of the loop; at its very beginning, score what there is."""
        data, estimator = parts(trainer)
        if self.objective.simulated_weight and not len(data.buffer):
            self.loop.design = data.warm_up()
        if self.objective.simulated_weight:
            data.order_key = key(self.seed, "predict", "symmetry")
            self._simulated = data.training_data()
        # Simulated drivers keep the residual process; what drives here is trained as well.
        self.simulator = estimator.posterior.teach(self.simulator)
        data.replacement, estimator.objective = Steps(self), self.loss
        if self.started:
            return
        self._load_start(estimator)
        for optimizer in trainer.optimizers:
            optimizer.state.clear()
        self.average = copy_weights(estimator)
        self.started = True
        start, _ = self._check(estimator.posterior, self.grids)
        self.scales = self.objective.scales(self.simulator, self.grids, start)
        self._note(trainer, 0.0, self.loop.design)

    def _load_start(self, estimator: PosteriorEstimator) -> None:
        """The weights that the stage begins with."""
        estimator.load_state_dict(self.loop.best_weights)
        widen(estimator.posterior, 1.0)  # a run it starts from may have been widened
        estimator.posterior.lags.copy_(torch.tensor(self.recorded.lags))

    def _beyond_chance(self, estimator: PosteriorEstimator) -> bool:
        """Whether the best weights predict the validation windows better than the start does."""
        scores = []
        for load in (self._load_start, self._load_best):
            load(estimator)
            predict = partial(self.objective.predict, estimator.posterior.draw, self.simulator)
            scores.append(self.objective.window_scores(predict, self.simulator, self.grids))
        lower = ((scores[0] - scores[1]) / self.scales).mean(-1)
        return float(lower.mean()) > BEYOND_CHANCE * float(lower.std()) / len(lower) ** 0.5

    def _load_best(self, estimator: PosteriorEstimator) -> None:
        estimator.load_state_dict(self.best_weights)

    def _finish(self, trainer: pl.Trainer) -> None:
        """Widen the best weights' intervals as the validation drivers ask for, and save them."""
        _, estimator = parts(trainer)
        if self.best_row["steps"] and not self._beyond_chance(estimator):
            log.info("no better than the start beyond chance: the stage declines")
            self._load_start(estimator)
            self.best_weights, self.best_row = copy_weights(estimator), self.first_row
        self._load_best(estimator)
        factor, held = fit_widening(estimator.posterior, self._coverage)
        self.best_weights = copy_weights(estimator)
        self.widening = factor
        self._save(trainer, {"coverage95": held.tolist()})
        log.info(
            "intervals widened by %.2f: they hold %.0f%%, %.0f%% and %.0f%% of the validation "
            "drivers' gaps, speeds and accelerations",
            *(factor, *(100 * held).tolist()),
        )

    def _coverage(self, posterior: Posterior) -> Tensor:
        grids = [grid.thinned(COVERAGE_WINDOWS) for grid in self.grids]
        return self._check(posterior, grids, COVERAGE_DRAWS)[1]

    def _save(self, trainer: pl.Trainer, more: dict[str, Any]) -> None:
        _, estimator = parts(trainer)
        self.loop.later_score = score = self.best_row[PREDICTIVE_SCORE]
        content = {"objective": self.objective.name, "score": score} | more
        content["widening"] = self.widening
        self.loop.save_best(estimator, self.best_weights, int(self.best_row["round"]), content)

    def _note(self, trainer: pl.Trainer, seconds: float, design: Row | None = None) -> None:
        """Score the averaged weights on the validation drivers and keep them if they are best."""
        data, estimator = parts(trainer)
        last = copy_weights(estimator)
        estimator.load_state_dict(self.average)
        fresh = {} if self.loop.epoch_rows else design or {}  # else the loop has noted them
        row = {**self._row(trainer, estimator.posterior), **fresh, "seconds_train": seconds}
        estimator.load_state_dict(last)
        self.first_row = self.first_row or row
        if self.rule.update(row[PREDICTIVE_SCORE]):
            self.best_weights = {name: value.clone() for name, value in self.average.items()}
            self.best_row = row
            self._save(trainer, {})
        self.check += 1
        self.loop.note(trainer, row)
        log.info(
            "predictive check %d: score %.4f (%.4f at best), coverage %.2f %.2f %.2f",
            *(self.check - 1, row[PREDICTIVE_SCORE], self.rule.best),
            *(row[f"predictive_coverage95_{x}"] for x in VARIABLES),
        )

    def _row(self, trainer: pl.Trainer, posterior: Posterior) -> Row:
        data, _ = parts(trainer)
        score, held = self._check(posterior, self.grids)
        loss = float(trainer.callback_metrics.get("val/loss", math.nan))
        row: Row = {
            "round": self.loop.round + 1 + self.check,
            "loss": loss,
            "trained_loss": loss,
            "steps": self.step,
            "simulations": data.simulations,
            PREDICTIVE_SCORE: float((score / self.scales).mean()),
        }
        short = {"energy": "es"}.get(self.objective.score, self.objective.score)
        for i, x in enumerate(VARIABLES):
            row[f"predictive_{short}_{x}"] = float(score[i])
            row[f"predictive_coverage95_{x}"] = float(held[i])
        return row

    def _check(
        self, posterior: Posterior, grids: Sequence[Examples], draws: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean scores and coverages of the validation drivers, both (3,)."""
        predict = partial(self.objective.predict, posterior.draw, self.simulator)
        return self.objective.check(predict, self.simulator, grids, draws)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on."""
        return {name: getattr(self, name) for name in STATE} | {"rule": self.rule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved."""
        for name in STATE:
            setattr(self, name, state_dict[name])
        counters = {k: v for k, v in state_dict["rule"].items() if k in COUNTERS}
        self.rule = Patience(self.objective.patience, **counters)
        self.loop.later_score = self.best_row.get(PREDICTIVE_SCORE)
