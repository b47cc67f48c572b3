"""Loops whose rounds are one training: with all simulations kept, or each of them used once.

Weights that were trained to the end on few simulations generalise worse when more arrive than
weights that were not (a warm-start penalty). Here nothing ends before the last round.
"""

import copy
import time
from dataclasses import replace
from itertools import islice
from typing import Any

import pytorch_lightning as pl
import torch

from asbc.errors import InputError
from asbc.posterior.estimator import PosteriorEstimator
from asbc.run import Run
from asbc.training.datamodule import SimulationDataModule
from asbc.training.loop import Patience, RoundCallback, Weights, parts
from asbc.training.settings import LoopSettings
from asbc.utils.checks import check_number

# Steps behind the measured speed, after a few that warm up the processor's caches.
WARM_STEPS, TIMED_STEPS = 3, 10


class ContinuousCallback(RoundCallback):
    """Rounds bring simulations into one uninterrupted training.

    Weights and optimiser go on from round to round, and the learning rate follows its schedule
    over the gradient steps of all rounds: `training.steps`, or `max_epochs` passes over what each
    round keeps. The rate is a function of the step alone, so a resumed run needs nothing else to
    go on exactly. Proposals come from the best epoch of the round before, which is also what a
    round is judged by.
    """

    def _round_steps(self, round: int) -> int:
        settings, given = self.settings, self.settings.round_steps(round)
        if given is not None:
            return given
        simulated = settings.warmup_simulations + round * settings.pairs_per_round
        kept = min(simulated, settings.buffer_capacity)
        return settings.max_epochs * -(-kept // settings.batch_size)

    def _progress(self, trainer: pl.Trainer) -> float:
        return trainer.global_step / self._all_steps()

    def _all_steps(self) -> int:
        return sum(self._round_steps(round) for round in range(self.settings.rounds + 1))

    def _begin_round(self, trainer: pl.Trainer, last: Weights) -> None:
        """Weights and optimiser go on as they were."""
        _, estimator = parts(trainer)
        estimator.load_state_dict(last)
        self.epochs_rule = Patience(self.settings.patience)

    def _saturated(self) -> bool:
        """Never: the rate has not fallen before the last round."""
        return False

    def check(self) -> None:
        """Any schedule will do: the length of the training is known."""


class StreamCallback(ContinuousCallback):
    """A round is a chunk of fresh simulations and one pass over them.

    Args:
        settings: budget; `rounds` is how many chunks follow the first.
        seed: the run's seed.
        run: as for `RoundCallback`.
        schedule: `one_cycle` or `constant`.
        minutes: wall time to fill, if shorter than the budget. The speed is measured
            before the first step and fixes the number of chunks, which a resumed run keeps.
    """

    def __init__(
        self,
        settings: LoopSettings,
        seed: int,
        run: Run,
        schedule: str = "one_cycle",
        minutes: float | None = None,
    ) -> None:
        super().__init__(settings, seed, run, schedule)
        if minutes is not None:
            check_number("loop.minutes", minutes, above=0)
        self.minutes = minutes
        self.rounds = settings.rounds

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Simulate the first chunk and settle how many there will be."""
        fresh = not self.epoch_rows
        super().on_fit_start(trainer, pl_module)
        if fresh and self.minutes is not None:
            seconds = _seconds_per_chunk(*parts(trainer))
            rounds = min(self.rounds, max(1, int(60 * self.minutes / seconds)) - 1)
            self.rounds = trainer.strategy.broadcast(rounds)  # by the first process's clock
        self.settings = replace(self.settings, rounds=self.rounds, min_rounds=self.rounds)

    def check(self) -> None:
        """Raise if a number of steps is asked for: a stream's follow from its budget."""
        if self.settings.steps is not None:
            raise InputError(
                f"training.steps={self.settings.steps}; a stream takes one pass over its "
                "simulations, set acquisition.simulations and leave training.steps at null"
            )

    def _all_steps(self) -> int:
        per_chunk = -(-self.settings.pairs_per_round // self.settings.batch_size)
        return per_chunk * (self.rounds + 1)

    def _round_steps(self, round: int) -> int:
        return -(-self.settings.pairs_per_round // self.settings.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """With the number of chunks, which a time budget has measured."""
        return super().state_dict() | {"rounds": self.rounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state_dict)
        self.rounds = state_dict["rounds"]


def _seconds_per_chunk(data: SimulationDataModule, estimator: PosteriorEstimator) -> float:
    """Wall time of a chunk and the hold-out after it, from a few steps of a copy."""
    trial = copy.deepcopy(estimator.posterior).train()
    optimizer = torch.optim.Adam(trial.parameters(), lr=0.0, fused=True)
    batches = list(islice(data.train_dataloader(), WARM_STEPS + TIMED_STEPS))
    batches = [estimator.transfer_batch_to_device(b, estimator.device, 0) for b in batches]
    start = time.perf_counter()
    for step, batch in enumerate(batches):
        if step == min(WARM_STEPS, len(batches) - 1):
            start = time.perf_counter()
        optimizer.zero_grad()
        columns = batch.get("columns")
        loss = trial.training_log_prob(batch["theta"], batch["states"], columns).mean()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for another device
    timed = batches[WARM_STEPS:] or batches[-1:]
    rows = sum(batch.get("rows", len(batch["theta"])) for batch in timed)
    per_row = (time.perf_counter() - start) / rows
    start = time.perf_counter()
    trial.eval()
    with torch.no_grad():
        for batch in data.val_dataloader():
            batch = estimator.transfer_batch_to_device(batch, estimator.device, 0)
            loss = trial.training_log_prob(batch["theta"], batch["states"], batch.get("columns"))
            loss.sum().item()
    return per_row * data.settings.pairs_per_round + time.perf_counter() - start
