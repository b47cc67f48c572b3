"""The loop for a cheap simulator: every simulation is new and is used once.

With it the schedules of the learning rate, which run over the whole budget.
"""

import copy
import math
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
from asbc.training.loop import RoundCallback, parts
from asbc.training.settings import LoopSettings
from asbc.utils.checks import check_number

# A one-cycle rate starts at PEAK / 25 and rises over the first 30% of the steps, as torch's does.
START, RISE, END = 1 / 25, 0.3, 1e-5
# Steps behind the measured speed, after a few that warm up the processor's caches.
WARM_STEPS, TIMED_STEPS = 3, 10


class StreamCallback(RoundCallback):
    """A round is a chunk of fresh simulations and one pass over them.

    The chunks form one uninterrupted training: the optimiser keeps its moments, and the learning
    rate follows a schedule over the whole budget. The rate is a function of the step alone, so a
    resumed run needs nothing else to go on exactly.

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
        super().__init__(settings, seed, run)
        if schedule not in SCHEDULES:
            raise InputError(f"loop.schedule={schedule}; expected {' or '.join(SCHEDULES)}")
        if minutes is not None:
            check_number("loop.minutes", minutes, above=0)
        self.schedule = SCHEDULES[schedule]
        self.minutes = minutes
        self.rounds = settings.rounds

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Simulate the first chunk and settle how many there will be."""
        fresh = not self.epoch_rows
        super().on_fit_start(trainer, pl_module)
        if fresh and self.minutes is not None:
            seconds = _seconds_per_chunk(*parts(trainer))
            self.rounds = min(self.rounds, max(1, int(60 * self.minutes / seconds)) - 1)
        self.settings = replace(self.settings, rounds=self.rounds, min_rounds=self.rounds)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set this step's learning rate."""
        per_chunk = -(-self.settings.pairs_per_round // self.settings.batch_size)
        progress = trainer.global_step / (per_chunk * (self.rounds + 1))
        _, estimator = parts(trainer)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = estimator.hparams["learning_rate"] * self.schedule(progress)

    def _renew_optimizers(self, trainer: pl.Trainer) -> None:
        """The chunks are one training: the optimiser goes on as it is."""

    def state_dict(self) -> dict[str, Any]:
        """With the number of chunks, which a time budget has measured."""
        return super().state_dict() | {"rounds": self.rounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved."""
        super().load_state_dict(state_dict)
        self.rounds = state_dict["rounds"]


def one_cycle(progress: float) -> float:
    """Share of the peak rate after a share `progress` of the steps: cosines up, then down.

    Example:
        >>> [round(one_cycle(p), 3) for p in (0.0, 0.15, 0.3, 0.65, 1.0)]
        [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    if progress < RISE:
        return _cosine(START, 1.0, progress / RISE)
    return _cosine(1.0, END, min(1.0, (progress - RISE) / (1 - RISE)))


SCHEDULES = {"one_cycle": one_cycle, "constant": lambda progress: 1.0}


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _seconds_per_chunk(data: SimulationDataModule, estimator: PosteriorEstimator) -> float:
    """Wall time of a chunk and the hold-out after it, from a few steps of a copy."""
    trial = copy.deepcopy(estimator.posterior).train()
    optimizer = torch.optim.Adam(trial.parameters(), lr=0.0, fused=True)
    batches = list(islice(data.train_dataloader(), WARM_STEPS + TIMED_STEPS))
    start = time.perf_counter()
    for step, batch in enumerate(batches):
        if step == min(WARM_STEPS, len(batches) - 1):
            start = time.perf_counter()
        optimizer.zero_grad()
        trial.training_log_prob(batch["theta"], batch["states"]).mean().backward()
        optimizer.step()
    rows = sum(len(batch["theta"]) for batch in batches[WARM_STEPS:] or batches[-1:])
    per_row = (time.perf_counter() - start) / rows
    start = time.perf_counter()
    trial.eval()
    with torch.no_grad():
        for batch in data.val_dataloader():
            trial.training_log_prob(batch["theta"], batch["states"])
    return per_row * data.settings.pairs_per_round + time.perf_counter() - start
