"""Residuals of drives, step by step: drawn beforehand, or moved by what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from asbc.simulator.learned_residual import LearnedResidual, Situation
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
            self._before = {0: self._learned.empty(theta[:, 0])}
            self._leaders: dict[int, Tensor] = {}
            if prefix is not None:
                self._watch(simulator, self._learned, prefix)
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
        now = self._situation(step, gap, speed, leader_speed.expand_as(gap), law)
        found = self._learned(self._theta, now, self._before[step], self._drawn[step], self._dt)
        self._before[step + 1] = found
        self._before.pop(step - 1, None)
        return found.residual

    def _watch(self, simulator: Simulator, learned: LearnedResidual, prefix: Prefix) -> None:
        """Go through what was observed just before the start, as steps below 0."""
        state = self._before[0]
        for step in range(-prefix.residuals.shape[1], 0):
            now = None
            if prefix.states is not None:
                gap, speed, approach_rate = prefix.states[:, step].to(self._theta).unbind(-1)
                law = simulator.law_acceleration(self._theta, gap, speed, approach_rate)
                now = self._situation(step, gap, speed, speed - approach_rate, law)
            state = learned.watch(self._theta, now, state, prefix, step, self._dt)
        self._before[0] = state

    def _situation(
        self, step: int, gap: Tensor, speed: Tensor, leader_speed: Tensor, law: Tensor
    ) -> Situation:
        """What is seen of a step; steps have to come in order, but for the last one again."""
        self._leaders[step] = leader_speed
        self._leaders.pop(step - LOOK_BACK - 1, None)
        return Situation(gap, speed, speed - leader_speed, self._ahead(step), law)

    def _ahead(self, step: int) -> Tensor:
        """The leader's acceleration over the last steps that are known; 0 where there are none."""
        first = min(self._leaders)
        if first == step:
            return torch.zeros_like(self._leaders[step])
        return (self._leaders[step] - self._leaders[first]) / ((step - first) * self._dt)
