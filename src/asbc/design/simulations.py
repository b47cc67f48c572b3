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

from asbc.design.bank import LeaderBank
from asbc.design.mixture import PooledProposal
from asbc.errors import InputError
from asbc.simulator.robust import ContextSimulator


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


@dataclass(frozen=True)
class Simulations:
    """Simulated training pairs; every field has one row per simulation, oldest first.

    The trajectory is kept, not its embedding: the encoder that makes the embedding still trains.
    """

    theta: Tensor  # (n, dim)
    states: Tensor  # (n, steps, 3)
    window_id: Tensor  # (n,) int64, index into the leader bank
    round: Tensor  # (n,) int64, the round that asked for the simulation
    # (n,) log of what a simulation counts for one from the prior: log prior density - log proposal
    # density of theta. Where a plan has a `proposal`, of its selection alone.
    log_ratio: Tensor
    # (n, size) what the posterior's transform says of each trajectory; none if it says nothing.
    columns: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def __post_init__(self) -> None:
        if not self.columns.numel():
            object.__setattr__(self, "columns", self.theta.new_zeros(len(self.theta), 0))
        for own in fields(self):
            if len(getattr(self, own.name)) != len(self.theta):
                raise InputError(
                    f"simulations.{own.name} has {len(getattr(self, own.name))} rows, "
                    f"expected {len(self.theta)} as in theta"
                )

    def __len__(self) -> int:
        return len(self.theta)

    def take(self, index: Tensor) -> "Simulations":
        """The simulations at these places."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def last(self, n: int) -> "Simulations":
        """The newest `n` simulations."""
        newest = {f.name: getattr(self, f.name)[max(len(self) - n, 0) :] for f in fields(self)}
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
        if self._content is None:
            return {}
        return {f.name: getattr(self._content, f.name) for f in fields(Simulations)}

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
) -> tuple[Simulations, int]:
    """n simulations of the plan's pairs, and how many were thrown away to get them.

    One that collides or is not finite is replaced by the plan's next pair. Whether it is usable
    depends on its trajectory alone, so leaving it out does not bias p(theta | x); drawing new
    noise for the same theta would.
    """
    parts: list[Simulations] = []
    missing, redraws = n, 0
    for _ in range(max_tries):
        parts.append(_simulate(plan.take(missing), round, simulator, bank, rng))
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
