"""Residuals of drives, step by step: drawn beforehand, or moved by what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from asbc.simulator.learned_residual import Situation
from asbc.simulator.residuals import Prefix
from asbc.utils.random import standard_normal

if TYPE_CHECKING:
    from asbc.simulator.simulator import Simulator

# Steps over which the leader's acceleration is taken that a learned residual sees.
LOOK_BACK = 3


class ResidualSteps:
    """The residuals of drives with parameters theta.

    Args:
        simulator: its residual process, or what it has learned in place of one.
        theta: (rows, dim).
        steps: samples of a drive.
        rng: source of all of them.
        prefix: residuals observed just before the start.
    """

    def __init__(
        self,
        simulator: Simulator,
        theta: Tensor,
        steps: int,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> None:
        self._learned, self._dt = simulator.learned, simulator.dt
        self._theta = theta
        hyper = theta[:, len(simulator.law.parameters) :]
        if self._learned is None:
            drawn = simulator.residual.sample(hyper, steps, simulator.dt, rng, prefix)
        else:
            drawn = standard_normal(rng, len(theta), steps).to(theta)
            # By step; of a long drive only what may be asked for again is kept.
            self._before = {0: self._learned.first(prefix, theta[:, 0])}
            self._leaders: dict[int, Tensor] = {}
        # Time first: every operation runs on contiguous memory.
        self._drawn = drawn.t().contiguous().unbind(0)

    def at(
        self, step: int, gap: Tensor, speed: Tensor, leader_speed: Tensor, law: Tensor
    ) -> Tensor:
        """Those of a step (rows,), of the last one again or of the next.

        Args:
            step: counted from 0.
            gap, speed, law: state, and the law's acceleration in it, (rows,).
            leader_speed: (rows,), or one for all.
        """
        if self._learned is None:
            return self._drawn[step]
        leader_speed = leader_speed.expand_as(gap)
        self._leaders[step] = leader_speed
        self._leaders.pop(step - LOOK_BACK - 1, None)
        now = Situation(gap, speed, speed - leader_speed, self._ahead(step), law)
        found = self._learned(self._theta, now, self._before[step], self._drawn[step], self._dt)
        self._before[step + 1] = found
        self._before.pop(step - 1, None)
        return found.residual

    def _ahead(self, step: int) -> Tensor:
        """The leader's acceleration; 0 at the start, before which nothing is known of it."""
        back = min(step, LOOK_BACK)
        if not back:
            return torch.zeros_like(self._leaders[step])
        return (self._leaders[step] - self._leaders[step - back]) / (back * self._dt)
