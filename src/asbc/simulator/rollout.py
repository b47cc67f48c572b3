"""Simulated trajectories, and drives that go on one time step at a time.

Behind a leader who is still being watched, `StepByStep` does the work of each step when its time
comes. The trajectories are those of `Simulator.rollout` behind the whole leader, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.simulator.kinematics import Kinematics
from asbc.simulator.residual_steps import ResidualSteps
from asbc.simulator.residuals import Prefix

if TYPE_CHECKING:
    from asbc.simulator.simulator import Simulator


class Rollout(NamedTuple):
    """Simulated trajectories; the first state is the one the simulation started from.

    The (batch, steps) tensors are views that keep time first in memory.
    """

    gap: Tensor  # (batch, steps)
    speed: Tensor  # (batch, steps)
    approach_rate: Tensor  # (batch, steps), follower minus leader
    acceleration: Tensor  # (batch, steps), as applied, bounds included
    collided: Tensor  # (batch,) bool: the gap reached 0 somewhere

    @property
    def states(self) -> Tensor:
        """The paper's trajectory x: (batch, steps, 3) of gap, speed and approach rate."""
        return torch.stack([self.gap, self.speed, self.approach_rate], dim=-1)


class Underway:
    """Drives whose residuals are drawn, and which go on by a time step when told to.

    Args:
        simulator: law, residual process and kinematics.
        theta: (batch, dim).
        gap: (batch,) initial net gap in m.
        speed: (batch,) initial speed in m/s.
        steps: samples of a drive, the first included.
        rng: source of the residuals.
        prefix: residuals observed just before the start.
        kinematics: how speeds move the gap; None: as the simulator says.
    """

    def __init__(
        self,
        simulator: Simulator,
        theta: Tensor,
        gap: Tensor,
        speed: Tensor,
        steps: int,
        rng: np.random.Generator,
        prefix: Prefix | None,
        kinematics: Kinematics | None = None,
    ) -> None:
        self.simulator, self.dtype = simulator, gap.dtype
        self.kinematics = kinematics or simulator.kinematics
        self._residuals = ResidualSteps(simulator, theta, steps, rng, prefix)
        # Parameters by column: every operation runs on contiguous memory.
        self._theta = theta.t().contiguous().t()
        # Lists and no buffers: gradients flow to theta.
        self._gaps, self._speeds = [gap], [speed]
        self._accelerations: list[Tensor] = []

    def advance(self, leader_speed: Tensor, leader_distance: Tensor) -> None:
        """Go on by a time step.

        Args:
            leader_speed: at the step's beginning, (batch,) or one for all.
            leader_distance: how far the leader comes in it, likewise.
        """
        simulator, gap, speed = self.simulator, self._gaps[-1], self._speeds[-1]
        acceleration = self._accelerate(leader_speed)
        next_speed = speed.add(acceleration, alpha=simulator.dt).clamp_min(0)
        distance = self.kinematics.follower_distance(speed, next_speed, simulator.dt)
        self._gaps.append(gap + leader_distance - distance)
        self._speeds.append(next_speed)
        self._accelerations.append(acceleration)

    def rollout(self, leader_speed: Tensor) -> Rollout:
        """All that was driven, behind leader_speed (steps, batch or 1)."""
        last = self._accelerate(leader_speed[-1])
        gap, speed = torch.stack(self._gaps), torch.stack(self._speeds)
        acceleration = torch.stack([*self._accelerations, last])
        return Rollout(
            gap=gap.t(),
            speed=speed.t(),
            approach_rate=(speed - leader_speed).t(),
            acceleration=torch.maximum(acceleration, speed / -self.simulator.dt).t(),
            collided=(gap <= 0).any(0),
        )

    def _accelerate(self, leader_speed: Tensor) -> Tensor:
        simulator, gap, speed = self.simulator, self._gaps[-1], self._speeds[-1]
        law = simulator.law_acceleration(self._theta, gap, speed, speed - leader_speed)
        step = len(self._accelerations)
        residual = self._residuals.at(step, gap, speed, leader_speed, law)
        return (law + residual).clamp(*simulator.acceleration_bounds)


class Behind(Protocol):
    """Drives behind one leader, whose speeds come one by one."""

    def follow(self, leader_speed: float) -> None:
        """Take the leader's next speed (m/s); the first is that at the start."""
        ...

    def rollout(self) -> Rollout:
        """The drives (batch, steps), once the leader's speeds are all there."""
        ...


class StepByStep:
    """Drives that are simulated while their leader drives.

    Args:
        drives: at their start.
    """

    def __init__(self, drives: Underway) -> None:
        self._drives = drives
        self._leader: list[float] = []

    def follow(self, leader_speed: float) -> None:
        """Take the leader's next speed (m/s), and drive until there."""
        self._leader.append(leader_speed)
        if len(self._leader) > 1:
            simulator, step = self._drives.simulator, self._speeds(self._leader[-2:])
            (distance,) = self._drives.kinematics.leader_distance(step, simulator.dt)
            self._drives.advance(step[0], distance)

    def rollout(self) -> Rollout:
        """The drives (batch, steps) behind the leader until now."""
        return self._drives.rollout(self._speeds(self._leader))

    def _speeds(self, leader: list[float]) -> Tensor:
        return torch.tensor(leader, dtype=self._drives.dtype)[:, None]
