"""The DataModule: a FIFO buffer that the design fills, and a fixed synthetic hold-out."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.design.acquisition import Acquisition, Plan, prior_plan
from asbc.design.proposal import DesignSpace
from asbc.design.simulations import FifoBuffer, Simulations, simulate_plan
from asbc.design.weights import correction, effective_sample_size, importance_weights
from asbc.simulator.robust import ContextSimulator
from asbc.training.settings import LoopSettings
from asbc.types import Density
from asbc.utils.progress import Stopwatch
from asbc.utils.random import key, stream

# What Lightning hands to a step: theta, states and, in training, their weights.
Batch = dict[str, Tensor]
# The hold-out is evaluated without gradients, so batches may be larger than in training.
HOLDOUT_BATCH = 500


class Batches:
    """An iterable of batches; nothing is read or drawn before the first batch is taken.

    Lightning asks for an iterator several times before an epoch, and when resuming before the
    epoch is known. So data and order are looked up as late as possible.

    Args:
        data: returns the tensors to slice, all with the same number of rows.
        order: given the number of rows, returns the order in which to take them.
        batch_size: rows per batch; the last batch may be smaller.
    """

    def __init__(
        self,
        data: Callable[[], Batch],
        batch_size: int,
        order: Callable[[int], Tensor] = torch.arange,
    ) -> None:
        self._data = data
        self._batch_size = batch_size
        self._order = order

    def __len__(self) -> int:
        return -(-_rows(self._data()) // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        data = self._data()
        for index in self._order(_rows(data)).split(self._batch_size):
            yield {name: values[index] for name, values in data.items()}


def _rows(data: Batch) -> int:
    return len(next(iter(data.values())))


class SimulationDataModule(pl.LightningDataModule):
    """Simulated training pairs, replaced round by round.

    Args:
        space: prior, leader bank, observed subset and the run's seed.
        simulator: the forward model.
        acquisition: strategy that plans what an active round simulates.
        settings: budget of the loop.
    """

    def __init__(
        self,
        space: DesignSpace,
        simulator: ContextSimulator,
        acquisition: Acquisition,
        settings: LoopSettings,
    ) -> None:
        super().__init__()
        self.space = space
        self.simulator = simulator
        self.acquisition = acquisition
        self.settings = settings
        self.weights = correction(acquisition.correction)
        self.buffer = FifoBuffer(settings.buffer_capacity)
        self.simulations = 0  # spent so far, thrown away ones included
        self.order_key = 0  # set by the round callback at the start of each epoch
        self.holdout: Batch = {}

    def setup(self, stage: str | None = None) -> None:
        """Simulate the hold-out: a function of its own seed, so it is never saved."""
        if not self.holdout:
            space = replace(self.space, seed=key(self.settings.holdout_seed, "hold-out"))
            simulated, _ = self._simulate(prior_plan(space), self.settings.holdout_size, 0, space)
            self.holdout = {"theta": simulated.theta, "states": simulated.states}

    def warm_up(self) -> dict[str, float]:
        """Fill the buffer from the prior (round 0); returns what there is to log."""
        return self._fill(prior_plan(self.space), self.settings.warmup_simulations, 0)

    def acquire(self, round: int, posterior: Density) -> dict[str, float]:
        """Let the strategy choose this round's pairs and simulate them; returns what to log."""
        plan = self.acquisition.plan(round, posterior, self.space)
        return self._fill(plan, self.settings.pairs_per_round, round)

    def _fill(self, plan: Plan, n: int, round: int) -> dict[str, float]:
        watch = Stopwatch()
        with watch("simulate"):
            simulated, redraws = self._simulate(plan, n, round, self.space)
        self.buffer.push(simulated)
        self.simulations += n + redraws
        window_id = simulated.window_id
        log_ratio = self.buffer.content.log_ratio
        seconds = watch.seconds | plan.seconds
        # Picking goes on while simulating; count it as its own stage only.
        seconds["simulate"] -= plan.seconds.get("select", 0.0)
        return {
            **plan.diagnostics,
            "synthetic_share": float(self.space.bank.is_synthetic(window_id).double().mean()),
            "distinct_windows": len(window_id.unique()),
            "distinct_theta": len(simulated.theta.unique(dim=0)),
            "redraws": redraws,
            "simulations": self.simulations,
            "effective_sample_size": effective_sample_size(importance_weights(log_ratio)),
            **{f"seconds_{stage}": value for stage, value in seconds.items()},
        }

    def _simulate(
        self, plan: Plan, n: int, round: int, space: DesignSpace
    ) -> tuple[Simulations, int]:
        rng = stream(space.seed, "simulation", round)
        return simulate_plan(
            plan, n, round, self.simulator, space.bank, rng, self.settings.max_tries
        )

    def train_dataloader(self) -> Batches:
        """The buffer in an order that belongs to the epoch."""
        return Batches(self._training_data, self.settings.batch_size, self._epoch_order)

    def val_dataloader(self) -> Batches:
        """The hold-out."""
        return Batches(lambda: self.holdout, HOLDOUT_BATCH)

    def _epoch_order(self, rows: int) -> Tensor:
        return torch.from_numpy(stream(self.order_key, "order").permutation(rows))

    def _training_data(self) -> Batch:
        content = self.buffer.content
        weight = self.weights(content.log_ratio)
        return {"theta": content.theta, "states": content.states, "weight": weight}

    def state_dict(self) -> dict[str, Any]:
        """The buffer and the count of simulations; everything else follows from the seed."""
        return {"buffer": self.buffer.state_dict(), "simulations": self.simulations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved."""
        self.buffer.load_state_dict(state_dict["buffer"])
        self.simulations = state_dict["simulations"]
