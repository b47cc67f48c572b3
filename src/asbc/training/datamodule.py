"""The DataModule: a FIFO buffer that the design fills, and a fixed synthetic hold-out."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.data.segments import Segments
from asbc.design.acquisition import Acquisition, prior_plan
from asbc.design.history_law import HistoryLaw
from asbc.design.mixture import PooledProposal, prior_alone
from asbc.design.proposal import DesignSpace
from asbc.design.simulations import (
    FifoBuffer,
    Plan,
    Simulations,
    concatenate,
    simulate_plan,
)
from asbc.design.weights import effective_sample_size
from asbc.errors import InputError
from asbc.posterior.transform import Transform, describe_all
from asbc.simulator.robust import ContextSimulator
from asbc.simulator.symmetry import ScaleSymmetry, scale_symmetry
from asbc.training.settings import LoopSettings
from asbc.types import Density
from asbc.utils.progress import Stopwatch
from asbc.utils.random import key, stream

# What Lightning hands to a step: theta, states and, in training, their weights. Where it is one
# process's share, also `rows`, the number of rows of the whole batch.
Batch = dict[str, Any]
# The hold-out is evaluated without gradients, so batches may be larger than in training.
HOLDOUT_BATCH = 500
# Simulations are scaled by factors between 1 / 1.1 and 1.1, log-uniformly.
LARGEST_SCALE = 1.1


class Batches:
    """An iterable of batches; nothing is read or drawn before the first batch is taken.

    Lightning asks for an iterator several times before an epoch, and when resuming before the
    epoch is known. So data and order are looked up as late as possible.

    Args:
        data: returns the tensors to slice, all with the same number of rows.
        batch_size: rows per batch; the last batch may be smaller.
        order: given the number of rows, returns the order in which to take them.
        limit: batches at most; None for all.
        rows: how many rows there are, if that can be had without the tensors.
        share: which of how many processes this is; each takes its rows of every batch.
    """

    def __init__(
        self,
        data: Callable[[], Batch],
        batch_size: int,
        order: Callable[[int], Tensor] = torch.arange,
        limit: Callable[[], int | None] = lambda: None,
        rows: Callable[[], int] | None = None,
        share: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        self._data = data
        self._batch_size = batch_size
        self._order = order
        self._limit = limit
        self._rows = rows or (lambda: _rows(data()))
        self._share = share

    def __len__(self) -> int:
        return self._batches(self._rows())

    def _batches(self, rows: int) -> int:
        batches, limit = -(-rows // self._batch_size), self._limit()
        return batches if limit is None else min(limit, batches)

    def __iter__(self) -> Iterator[Batch]:
        data = self._data()
        rows = _rows(data)
        rank, processes = self._share()
        for index in self._order(rows).split(self._batch_size)[: self._batches(rows)]:
            if processes == 1:
                yield {name: values[index] for name, values in data.items()}
            else:
                yield _share_of(data, index, rank, processes)


def _share_of(data: Batch, index: Tensor, rank: int, processes: int) -> Batch:
    """One process's rows of a batch, weighted so that the mean of all processes' means is exact.

    Shares differ by a row where the batch does not divide evenly, and gradients are averaged over
    processes, not rows. A process without a row takes one that does not count.
    """
    own = index[rank::processes]
    taken = own if len(own) else index[:1]
    batch = {name: values[taken] for name, values in data.items()}
    weight = batch.get("weight", torch.ones(len(taken)))
    return batch | {"weight": weight * (processes * len(own) / len(index)), "rows": len(index)}


def _rows(data: Batch) -> int:
    return len(next(iter(data.values())))


class SimulationDataModule(pl.LightningDataModule):
    """Simulated training pairs, replaced round by round.

    Args:
        space: prior, leader bank, observed subset and the run's seed.
        simulator: the forward model.
        acquisition: strategy that plans what an active round simulates.
        settings: budget of the loop.
        transform: of the posterior; where it describes trajectories, each is described once and
            not in every step.
        history: how many segments a simulated driver has; None: each is one trajectory.
    """

    def __init__(
        self,
        space: DesignSpace,
        simulator: ContextSimulator,
        acquisition: Acquisition,
        settings: LoopSettings,
        transform: Transform | None = None,
        history: HistoryLaw | None = None,
    ) -> None:
        super().__init__()
        self.space = space
        self.history = history
        self.simulator = simulator
        self.acquisition = acquisition
        self.settings = settings
        self.transform = transform if transform is not None and transform.size else None
        self.symmetry = symmetry_of(simulator, settings.symmetry, history)
        self.buffer = FifoBuffer(settings.buffer_capacity)
        self.proposals: dict[int, PooledProposal] = {}  # of rounds whose plan had one
        self.weight = torch.ones(0)  # of each simulation in the buffer
        self.known: Simulations | None = None  # training pairs beside the buffer
        self.known_share = 0.0  # of the loss
        self.simulations = 0  # spent so far, thrown away ones included
        # Both are set by the round callback.
        self.order_key = 0  # of the epoch
        self.batches_left: int | None = None  # until the round is over; None: unknown
        self.replacement: Iterable[Batch] | None = None  # of these batches, in a later stage
        self.holdout: Batch = {}

    def setup(self, stage: str | None = None) -> None:
        """Simulate the hold-out: a function of its own seed, so it is never saved."""
        if not self.holdout:
            space = replace(
                self.space,
                seed=key(self.settings.holdout_seed, "hold-out"),
                bank=self.space.holdout or self.space.bank,
            )
            simulated, _ = self._simulate(prior_plan(space), self.settings.holdout_size, 0, space)
            self.holdout = self._batch(simulated.theta, simulated.observed, simulated.columns)

    def warm_up(self) -> dict[str, float]:
        """Fill the buffer from the prior (round 0); returns what there is to log."""
        return self._fill(
            self.acquisition.warm_up(self.space), self.settings.warmup_simulations, 0
        )

    def plan(self, round: int, posterior: Density) -> Plan:
        """What the strategy would simulate in this round."""
        return self.acquisition.plan(round, posterior, self.space, self.buffer.content)

    def carry_out(self, plan: Plan, round: int) -> dict[str, float]:
        """Simulate this round's pairs; returns what there is to log."""
        return self._fill(plan, self.settings.pairs_per_round, round)

    def _fill(self, plan: Plan, n: int, round: int) -> dict[str, float]:
        watch = Stopwatch()
        with watch("simulate"):
            simulated, redraws = self._simulate(plan, n, round, self.space)
        self.buffer.push(simulated)
        self.proposals[round] = plan.proposal or prior_alone(self.space.prior)
        self.weight = self.acquisition.weights(self.buffer.content, self.proposals, self.space)
        if plan.known is not None:
            self.known, self.known_share = self._prepared(plan.known), plan.known_share
        self.simulations += n + redraws
        window_id = simulated.window_id
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
            "kept": len(self.buffer),
            "known": self._rows() - len(self.buffer),
            "effective_sample_size": effective_sample_size(self.weight),
            "largest_weight": float(self.weight.max()),
            **{f"seconds_{stage}": value for stage, value in seconds.items()},
        }

    def _simulate(
        self, plan: Plan, n: int, round: int, space: DesignSpace
    ) -> tuple[Simulations, int]:
        rng = stream(space.seed, "simulation", round)
        simulated, redraws = simulate_plan(
            plan, n, round, self.simulator, space.bank, rng, self.settings.max_tries, self.history
        )
        return self._prepared(simulated, fixed=space is not self.space), redraws

    def _prepared(self, pairs: Simulations, fixed: bool = False) -> Simulations:
        """With their description, unless the symmetry makes others of them in every epoch."""
        if self.transform is None or (self.symmetry is not None and not fixed):
            return pairs
        return replace(pairs, columns=describe_all(self.transform, pairs.observed))

    def _rows(self) -> int:
        """Training pairs of an epoch."""
        return len(self.buffer) + (0 if self.known is None else len(self.known))

    def _batch(self, theta: Tensor, states: Tensor | Segments, columns: Tensor) -> Batch:
        batch: Batch = {"theta": theta, "states": states}
        return batch | {"columns": columns} if self.transform is not None else batch

    def train_dataloader(self) -> Iterable[Batch]:
        """The buffer in an order that belongs to the epoch, or what has taken its place."""
        return self.replacement or Batches(
            self.training_data,
            self.settings.batch_size,
            self._epoch_order,
            lambda: self.batches_left,
            self._rows,
            self.share,
        )

    def val_dataloader(self) -> Batches:
        """The hold-out."""
        return Batches(lambda: self.holdout, HOLDOUT_BATCH, share=self.share)

    def share(self) -> tuple[int, int]:
        """Which of how many processes this is."""
        trainer = self.trainer
        return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)

    def _epoch_order(self, rows: int) -> Tensor:
        return torch.from_numpy(stream(self.order_key, "order").permutation(rows))

    def training_data(self) -> Batch:
        """Buffer and known pairs; with the scale symmetry, each by a factor of the epoch's."""
        content, weight = self.buffer.content, self.weight
        if self.known is not None:
            content = concatenate([content, self.known])
            weight = torch.cat([weight, torch.full((len(self.known),), self._known_weight())])
            weight = weight / weight.mean()
        theta, states, columns = content.theta, content.observed, content.columns
        if self.symmetry is not None and isinstance(states, Tensor):
            rng = stream(self.order_key, "symmetry")
            reach = math.log(LARGEST_SCALE)
            log_k = torch.from_numpy(rng.uniform(-reach, reach, len(theta))).float()
            scaled = self.symmetry.scale(theta, states, log_k)
            theta, states = scaled.theta, scaled.states
            weight = weight * scaled.log_weight.exp()
            weight = weight / weight.mean()
            if self.transform is not None:
                columns = describe_all(self.transform, states)
        return self._batch(theta, states, columns) | {"weight": weight}

    def _known_weight(self) -> float:
        """Of each known pair, where those of the buffer are 1 on average."""
        share = self.known_share / (1 - self.known_share)
        return share * len(self.buffer) / (self._rows() - len(self.buffer))

    def state_dict(self) -> dict[str, Any]:
        """The buffer, how it came about, and its weights; all else follows from the seed."""
        return {
            "buffer": self.buffer.state_dict(),
            "proposals": {round: tuple(p) for round, p in self.proposals.items()},
            "weight": self.weight,
            "known": {} if self.known is None else self.known.tensors(),
            "known_share": self.known_share,
            "simulations": self.simulations,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved."""
        self.buffer.load_state_dict(state_dict["buffer"])
        self.proposals = {r: PooledProposal(*p) for r, p in state_dict["proposals"].items()}
        self.weight = state_dict["weight"]
        self.known = Simulations(**state_dict["known"]) if state_dict["known"] else None
        self.known_share = state_dict["known_share"]
        self.simulations = state_dict["simulations"]


def symmetry_of(
    simulator: ContextSimulator, wanted: bool | str, history: HistoryLaw | None = None
) -> ScaleSymmetry | None:
    """The scale symmetry that training uses, if any.

    Args:
        simulator: what training trajectories come from.
        wanted: `training.symmetry`; with True what has none is refused, with "auto" left alone.
        history: of drivers with several segments, whose symmetry is not used.
    """
    if wanted is True and history is not None:
        raise InputError(
            "training.symmetry=true rescales single trajectories; use history=none, or "
            "training.symmetry=false"
        )
    if wanted is False or history is not None:
        return None
    if simulator.exact:
        return (
            ScaleSymmetry(simulator.simulator)
            if wanted is True
            else (scale_symmetry(simulator.simulator))
        )
    if wanted is True:
        raise InputError(
            "training.symmetry=true: errors of measurement and drift within the prior's box do "
            "not scale with the rest; use robust=none, or training.symmetry=false"
        )
    return None
