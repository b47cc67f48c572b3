"""Training of any model that predicts recorded windows, by the objective of the second stage.

Windows, score, averaged weights and stopping rule are those of `asbc.predictive.stage`. It is what
a posterior is compared with: a model of the same drivers by the same rules, with another inside.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from asbc.predictive.objective import SERIES, Predictive
from asbc.predictive.recorded_windows import Examples, RecordedWindows
from asbc.simulator import Rollout, Simulator
from asbc.training.loop import Patience, Weights, copy_weights, one_cycle
from asbc.training.train import quiet_lightning
from asbc.utils.progress import bar
from asbc.utils.random import key, stream

log = logging.getLogger(__name__)


class RecordedModel(nn.Module, ABC):
    """A module that predicts; `simulator` has the time step and the kinematics."""

    simulator: Simulator

    @abstractmethod
    def predict(self, examples: Examples, draws: int, seed: int) -> Rollout:
        """Rollouts (window, draw, step) with gradients to the weights."""


class RecordedFit(pl.LightningModule):
    """Trains a model until the validation drivers' score no longer improves.

    Args:
        model: what is trained.
        objective: score, windows and stopping rule.
        recorded: training drivers.
        grids: validation windows.
        learning_rate: peak of one cycle, in place of the objective's.
        seed: all randomness.
    """

    def __init__(
        self,
        model: RecordedModel,
        objective: Predictive,
        recorded: RecordedWindows,
        grids: Sequence[Examples],
        learning_rate: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self.objective, self.recorded, self.grids = model, objective, recorded, grids
        self.learning_rate, self.seed = learning_rate, seed
        self.step = 0
        self.rule = Patience(objective.patience)
        self.scales = torch.ones(len(SERIES))
        self.average: Weights = {}
        self.best: Weights = {}
        self._bar = bar("training", objective.steps)

    def train_dataloader(self) -> range:
        """The steps until the next check."""
        return range(min(self.objective.check_every, self.objective.steps - self.step))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, whose rate each step sets."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def on_fit_start(self) -> None:
        """Score what there is: it sets the scales, and is a candidate."""
        self.average = copy_weights(self.model)
        objective, simulator = self.objective, self.model.simulator
        start, _ = objective.check(self.model.predict, simulator, self.grids)
        self.scales = objective.scales(simulator, self.grids, start)
        self._note()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set this step's learning rate."""
        rate = self.learning_rate * one_cycle(self.step / self.objective.steps)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The score of windows that belong to the step."""
        settings, seed = self.objective, key(self.seed, "recorded", self.step)
        examples = self.recorded.draw(
            settings.windows, settings.context, settings.largest_scale, stream(seed, "windows")
        )
        rollout = self.model.predict(examples, settings.draws, seed)
        rollout = settings.as_recorded(rollout, self.model.simulator, examples, seed)
        return (settings.scores(rollout, examples).mean(0) / self.scales).mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Average the weights."""
        self.step += 1
        self._bar.update()
        self.objective.add_to_average(self.average, self.model, self.step)

    def on_train_epoch_end(self) -> None:
        """Score the averaged weights, and stop if they have not improved for long."""
        last = copy_weights(self.model)
        self.model.load_state_dict(self.average)
        self._note()
        self.model.load_state_dict(last)
        if self.step >= self.objective.steps or self.rule.exhausted:
            self.trainer.should_stop = True

    def on_fit_end(self) -> None:
        """Leave the best weights in the model."""
        self._bar.close()
        self.model.load_state_dict(self.best)

    def _note(self) -> None:
        score, held = self.objective.check(self.model.predict, self.model.simulator, self.grids)
        if self.rule.update(float((score / self.scales).mean())):
            self.best = copy_weights(self.model)
        log.info(
            "step %d: ES or CRPS %.2f %.2f %.2f, coverage %.2f %.2f %.2f, score %.4f at best",
            *(self.step, *score.tolist(), *held.tolist(), self.rule.best),
        )


def fit_recorded(
    model: RecordedModel,
    objective: Predictive,
    recorded: RecordedWindows,
    grids: Sequence[Examples],
    learning_rate: float,
    seed: int,
) -> dict[str, Any]:
    """What there is to say of the training; the model is left with its best weights.

    Args:
        model: as for `RecordedFit`, like the other arguments.
        objective: score, windows and stopping rule.
        recorded: training drivers.
        grids: validation windows.
        learning_rate: peak of one cycle.
        seed: all randomness.
    """
    quiet_lightning()
    fit = RecordedFit(model, objective, recorded, grids, learning_rate, seed)
    trainer = pl.Trainer(
        max_epochs=objective.checks,
        reload_dataloaders_every_n_epochs=1,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=objective.clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(fit)
    return {
        "steps": fit.step,
        "validation_score": fit.rule.best,
        "weights": sum(value.numel() for value in model.parameters()),
    }
