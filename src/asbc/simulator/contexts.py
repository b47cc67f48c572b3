"""Trajectories as a posterior is trained on: the simulator's own, or made unlike it on purpose."""

import numpy as np
import torch
from torch import Tensor

from asbc.simulator.prior import Prior
from asbc.simulator.simulator import Rollout, Simulator
from asbc.utils.checks import InputError
from asbc.utils.random import standard_normal


class ContextSimulator:
    """The simulator seen through what it leaves out.

    Real drivers do not keep to one theta, and recordings have errors. A posterior trained on
    perfect contexts takes both for information about theta, and is too sure. Here the observed
    trajectory may come from a neighbour of theta (drift: the driver during the context is not
    quite the driver afterwards) and may carry measurement errors (as in noisy NPE). With all three
    at zero this is the simulator itself.

    Args:
        simulator: the forward model.
        drift: standard deviation of log theta between the context and what it is to predict.
        gap_noise: standard deviation of errors of the gap, independent from step to step (m).
        speed_noise: the same for the speeds of follower and leader (m/s).
    """

    def __init__(
        self,
        simulator: Simulator,
        drift: float = 0.0,
        gap_noise: float = 0.0,
        speed_noise: float = 0.0,
    ) -> None:
        sizes = {"drift": drift, "gap_noise": gap_noise, "speed_noise": speed_noise}
        for name, value in sizes.items():
            if not 0 <= value < float("inf"):
                raise InputError(f"robust.{name}={value}; expected a number of at least 0")
        self.simulator = simulator
        self.drift = drift
        self.gap_noise = gap_noise
        self.speed_noise = speed_noise

    @property
    def exact(self) -> bool:
        """Whether contexts are the simulator's own."""
        return not (self.drift or self.gap_noise or self.speed_noise)

    @property
    def prior(self) -> Prior:
        """The simulator's prior: what drifts or is measured wrongly does not change it."""
        return self.simulator.prior

    def rollout(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        rng: np.random.Generator,
        check: bool = True,
    ) -> Rollout:
        """As `Simulator.rollout`, from drifted parameters and with errors of measurement."""
        if self.drift:
            noise = self.drift * standard_normal(rng, *theta.shape, dtype=theta.dtype)
            theta = torch.clamp(theta * noise.exp(), self.prior.low, self.prior.high)
        rollout = self.simulator.rollout(theta, leader_speed, gap, speed, rng, check=check)
        if self.gap_noise or self.speed_noise:
            rollout = self._measure(rollout, rng)
        return rollout

    def _measure(self, rollout: Rollout, rng: np.random.Generator) -> Rollout:
        errors = standard_normal(rng, *rollout.gap.shape, 3, dtype=rollout.gap.dtype)
        gap, own, leader = errors.unbind(-1)
        own, leader = self.speed_noise * own, self.speed_noise * leader
        # A recording has no gap or speed below zero either.
        speed = (rollout.speed + own).clamp_min(0)
        leader = (rollout.speed - rollout.approach_rate + leader).clamp_min(0)
        return rollout._replace(
            gap=(rollout.gap + self.gap_noise * gap).clamp_min(0),
            speed=speed,
            approach_rate=speed - leader,
        )
