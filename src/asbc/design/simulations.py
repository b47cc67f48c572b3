"""Simulated training pairs: what they are, how a plan is simulated, and the buffer they are in.

A plan hands out (theta, leader window) pairs, best first, for as long as it is asked. A pair whose
simulation is unusable is thus replaced by the next one of the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.data.segments import Segments
from asbc.design.bank import LeaderBank
from asbc.design.history_law import HistoryLaw
from asbc.design.mixture import PooledProposal
from asbc.errors import InputError
from asbc.simulator.robust import ContextSimulator, drive_segments


class Choice(NamedTuple):
    """Pairs to simulate."""

    theta: Tensor  # (n, dim)
    window_id: Tensor  # (n,) int64, index into the leader bank
    log_ratio: Tensor  # (n,) see `Simulations`


@dataclass(frozen=True)
class Plan:
    """Pairs in the order in which to simulate them, and what there is to log about the choice."""

    take: Callable[[int], Choice]  # the next n pairs
    diagnostics: dict[str, float]
    seconds: dict[str, float]  # by stage; selecting adds up while pairs are taken
    proposal: PooledProposal | None = None  # where the strategy weighs all rounds together
    # Training pairs that cost no simulation, and their share of the loss.
    known: "Simulations | None" = None
    known_share: float = 0.0


@dataclass(frozen=True)
class Simulations:
    """Simulated training pairs; every field has one row per simulation, oldest first.

    The trajectory is kept, not its embedding: the encoder that makes the embedding still trains.
    """

    theta: Tensor  # (n, dim)
    states: Tensor  # (n, steps, 3); of several segments (n, J, steps, 3)
    window_id: Tensor  # (n,) int64, index into the leader bank; the newest segment's
    round: Tensor  # (n,) int64, the round that asked for the simulation
    # (n,) log of what a simulation counts for one from the prior: log prior density - log proposal
    # density of theta. Where a plan has a `proposal`, of its selection alone.
    log_ratio: Tensor
    # (n, size) what the posterior's transform says of each trajectory; none if it says nothing.
    columns: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    # (n, J) of several segments; none where each simulation is one trajectory.
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    age: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def __post_init__(self) -> None:
        for name in ("columns", "lengths", "age"):
            value = getattr(self, name)
            if not value.numel():
                object.__setattr__(self, name, value.new_zeros(len(self.theta), 0))
        for name, value in self.tensors().items():
            if len(value) != len(self.theta):
                raise InputError(
                    f"simulations.{name} has {len(value)} rows, "
                    f"expected {len(self.theta)} as in theta"
                )

    def __len__(self) -> int:
        return len(self.theta)

    @property
    def observed(self) -> Tensor | Segments:
        """What a posterior is conditioned on: trajectories, or segments."""
        if self.states.ndim == 3:
            return self.states
        return Segments(self.states, self.lengths, self.age)

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, to save them."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    def take(self, index: Tensor) -> "Simulations":
        """The simulations at these places."""
        return replace(self, **{name: value[index] for name, value in self.tensors().items()})

    def last(self, n: int) -> "Simulations":
        """The newest `n` simulations."""
        newest = {k: value[max(len(self) - n, 0) :] for k, value in self.tensors().items()}
        # A view would keep the discarded rows alive, and checkpoints save whole storages.
        return replace(self, **{name: value.clone() for name, value in newest.items()})


def concatenate(parts: list[Simulations]) -> Simulations:
    """All simulations of `parts` in order."""
    names = [own.name for own in fields(Simulations)]
    return Simulations(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


class FifoBuffer:
    """Keeps the newest `capacity` simulations.

    Example:
        >>> buffer = FifoBuffer(capacity=3)
        >>> for round in range(2):
        ...     buffer.push(Simulations(
        ...         theta=torch.full((2, 1), float(round)), states=torch.zeros(2, 5, 3),
        ...         window_id=torch.zeros(2, dtype=torch.int64),
        ...         round=torch.full((2,), round), log_ratio=torch.zeros(2)))
        >>> buffer.content.round.tolist()
        [0, 1, 1]
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InputError(f"buffer capacity is {capacity}, expected at least 1")
        self.capacity = capacity
        self._content: Simulations | None = None

    def __len__(self) -> int:
        return 0 if self._content is None else len(self._content)

    @property
    def content(self) -> Simulations:
        """Everything in the buffer, oldest first."""
        if self._content is None:
            raise InputError("the simulation buffer is empty; push simulations first")
        return self._content

    def push(self, simulations: Simulations) -> None:
        """Append simulations and discard the oldest beyond the capacity."""
        parts = [simulations] if self._content is None else [self._content, simulations]
        self._content = concatenate(parts).last(self.capacity)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors of the buffer, empty when nothing was pushed."""
        return {} if self._content is None else self._content.tensors()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace the content by a saved one."""
        self._content = Simulations(**state) if state else None


def simulate_plan(
    plan: Plan,
    n: int,
    round: int,
    simulator: ContextSimulator,
    bank: LeaderBank,
    rng: np.random.Generator,
    max_tries: int,
    law: HistoryLaw | None = None,
) -> tuple[Simulations, int]:
    """n simulations of the plan's pairs, and how many were thrown away to get them.

    With a `law` each is a driver's history: its newest segment is the plan's pair, the others are
    behind leaders of the plan's other pairs.

    One that collides or is not finite is replaced by the plan's next pair. Whether it is usable
    depends on its trajectory alone, so leaving it out does not bias p(theta | x); drawing new
    noise for the same theta would.
    """
    parts: list[Simulations] = []
    missing, redraws = n, 0
    for _ in range(max_tries):
        pairs = plan.take(missing)
        parts.append(
            _simulate(pairs, round, simulator, bank, rng)
            if law is None
            else _simulate_histories(pairs, round, simulator, bank, rng, law)
        )
        redraws += missing - len(parts[-1])
        missing -= len(parts[-1])
        if missing == 0:
            return concatenate(parts), redraws
    raise InputError(
        f"round {round}: {missing} of {n} simulations still collide or are not finite after "
        f"{max_tries} tries; narrow the prior, check the data's gaps and speeds, or raise "
        "training.max_tries"
    )


def _simulate(
    pairs: Choice,
    round: int,
    simulator: ContextSimulator,
    bank: LeaderBank,
    rng: np.random.Generator,
) -> Simulations:
    """The usable ones among the simulations of these pairs."""
    windows = bank.windows.take(pairs.window_id)
    rollout = simulator.rollout(pairs.theta, windows.leader_speed, windows.gap, windows.speed, rng)
    states = rollout.states
    usable: Tensor = ~rollout.collided & torch.isfinite(states).all(dim=2).all(dim=1)
    return Simulations(
        theta=simulator.later(pairs.theta, rng)[usable],
        states=states[usable],
        window_id=pairs.window_id[usable],
        round=torch.full((int(usable.sum()),), round),
        log_ratio=pairs.log_ratio[usable],
    )


def _simulate_histories(
    pairs: Choice,
    round: int,
    simulator: ContextSimulator,
    bank: LeaderBank,
    rng: np.random.Generator,
    law: HistoryLaw,
) -> Simulations:
    """The usable ones among drivers with several segments."""
    count = len(pairs.theta)
    lengths, age = law.draw(count, bank.windows.leader_speed.shape[1], bank.dt, rng)
    other = torch.from_numpy(rng.integers(count, size=tuple(lengths.shape)))
    other[:, 0] = torch.arange(count)
    windows = bank.windows.take(pairs.window_id[other[lengths > 0]])
    segments, theta, usable = drive_segments(simulator, pairs.theta, windows, lengths, age, rng)
    return Simulations(
        theta=theta[usable],
        states=segments.states[usable],
        window_id=pairs.window_id[usable],
        round=torch.full((int(usable.sum()),), round),
        log_ratio=pairs.log_ratio[usable],
        lengths=lengths[usable],
        age=age[usable],
    )
