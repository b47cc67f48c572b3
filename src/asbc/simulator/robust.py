"""Trajectories as a posterior is trained on: the simulator's own, or made unlike it on purpose.

Also here: drivers from the prior with such a trajectory each, the test cases whose truth is known.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.data.segments import Segments, concatenate_segments
from asbc.data.windows import LeaderWindows
from asbc.errors import InputError
from asbc.simulator.black_box import BlackBoxSimulator
from asbc.simulator.prior import Prior
from asbc.simulator.residuals import NoResidual
from asbc.simulator.rollout import Rollout
from asbc.simulator.simulator import Simulator
from asbc.utils.checks import check_number
from asbc.utils.random import standard_normal, stream, uniform

# Errors of measurement are between this share of their size and all of it, log-uniformly.
SMALLEST_NOISE = 0.01
# Batches of simulated drivers tried before giving up on drivers without a collision.
MAX_BATCHES = 20


class ContextSimulator:
    """The simulator seen through what it leaves out.

    Real drivers do not keep to one theta, and recordings have errors. A posterior trained on
    perfect contexts takes both for information about the driver, and is too sure. Here the law's
    parameters during a context may be a neighbour of the driver's own, the residual's may move on
    after it (calm now, busy later), and the context may carry measurement errors (as in noisy
    NPE). With all sizes at zero this is the simulator itself.

    A driver with several segments has another neighbour of its parameters in each, so that they
    average over moods. What wanders is alike in segments that are close in time, and the more
    unlike the present, the older a segment is.

    Args:
        simulator: the forward model.
        drift: standard deviation of the law's log parameters during a context, about those to
            infer.
        residual_drift: standard deviation of the residual's log parameters to infer, about those
            during the context. Of several segments each has its own, with half of this variance,
            about a level that is unknown: they count alike.
        gap_noise: standard deviation of errors of the gap, independent from step to step (m). How
            good a recording is, is not known: each trajectory has between 1 and 100% of it.
        speed_noise: the same for the speeds of follower and leader (m/s).
        wander: standard deviation of the part of the law's log parameters that changes slowly, as
            an Ornstein-Uhlenbeck process; it counts for several segments only.
        residual_wander: the same for the residual's.
        wander_seconds: over which these parts forget where they were.
    """

    def __init__(
        self,
        simulator: Simulator,
        drift: float = 0.0,
        residual_drift: float = 0.0,
        gap_noise: float = 0.0,
        speed_noise: float = 0.0,
        wander: float = 0.0,
        residual_wander: float = 0.0,
        wander_seconds: float = 60.0,
    ) -> None:
        self.sizes = {
            "drift": drift,
            "residual_drift": residual_drift,
            "gap_noise": gap_noise,
            "speed_noise": speed_noise,
            "wander": wander,
            "residual_wander": residual_wander,
        }
        for name, value in self.sizes.items():
            check_number(f"robust.{name}", value, minimum=0)
        check_number("robust.wander_seconds", wander_seconds, above=0)
        self.wander_seconds = wander_seconds
        self.simulator = simulator
        self._law = len(simulator.law.parameters)
        self._log_box = (simulator.prior.low.double().log(), simulator.prior.high.double().log())

    @property
    def exact(self) -> bool:
        """Whether contexts are the simulator's own."""
        return not any(self.sizes.values())

    @property
    def likelihood(self) -> Simulator | None:
        """The simulator, if the exact posterior of a context is that of its likelihood."""
        inner = self.simulator
        unknown = isinstance(inner, BlackBoxSimulator) or isinstance(inner.residual, NoResidual)
        return inner if self.exact and not unknown else None

    @property
    def prior(self) -> Prior:
        """The simulator's prior: what drifts or is measured wrongly does not change it."""
        return self.simulator.prior

    def later(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        """The parameters (batch, dim) to infer from a context that theta was drawn for."""
        law, residual = theta[:, : self._law], theta[:, self._law :]
        moved = self._move(residual, self.sizes["residual_drift"], slice(self._law, None), rng)
        return torch.cat([law, moved], dim=1)

    def rollout(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        rng: np.random.Generator,
        check: bool = True,
    ) -> Rollout:
        """As `Simulator.rollout`, of a driver about theta and with errors of measurement."""
        law, residual = theta[:, : self._law], theta[:, self._law :]
        driven = self._move(law, self.sizes["drift"], slice(0, self._law), rng)
        theta = torch.cat([driven, residual], dim=1)
        return self.drive(theta, leader_speed, gap, speed, rng, check)

    def moods(self, theta: Tensor, age: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The parameters (batch, J, dim) during segments, and those to infer (batch, dim).

        With one segment of age 0 these are the parameters of `rollout`, and `later`.

        Args:
            theta: (batch, dim): the law's to infer, and the residual's in the first segment.
            age: (batch, J) seconds, NaN where unknown, newest first; see `asbc.data.segments`.
            rng: source of the differences.
        """
        count, slots = age.shape
        law, residual = theta[:, : self._law], theta[:, self._law :]
        old = age.double().nan_to_num(nan=torch.inf)
        now = torch.zeros(count, 1, dtype=torch.float64)
        # The law is relative to the present, the residual to the newest segment.
        differences = self._differences(torch.cat([now, old], dim=1), "wander")[:, 1:, 1:]
        differences = differences + self.sizes["drift"] ** 2 * torch.eye(slots)
        driven = self._about(law, differences, slice(0, self._law), rng)
        own = self.sizes["residual_drift"] ** 2 / 2  # a segment's, and that of what comes
        differences = self._differences(torch.cat([old, now], dim=1), "residual_wander")
        differences = differences + own * (1 + torch.eye(slots + 1))
        differences[:, 0], differences[:, :, 0] = 0.0, 0.0
        moved = self._about(residual, differences, slice(self._law, None), rng)
        during, later = moved[:, :-1], moved[:, -1]
        return torch.cat([driven, during], dim=2), torch.cat([law, later], dim=1)

    def _differences(self, old: Tensor, name: str) -> Tensor:
        """Covariance (batch, n, n) of what wanders at times (batch, n) minus at the first."""
        apart = (old[:, :, None] - old[:, None, :]).abs().nan_to_num(torch.inf)
        same = torch.eye(old.shape[1], dtype=torch.bool)
        like = torch.where(same, 1.0, torch.exp(-apart / self.wander_seconds))
        first = like[:, :1]
        return self.sizes[name] ** 2 * (1 + like - first - first.transpose(1, 2))

    def _about(
        self, theta: Tensor, covariance: Tensor, columns: slice, rng: np.random.Generator
    ) -> Tensor:
        """theta (batch, dim) moved by log-normals of this covariance, (batch, n, dim)."""
        count, slots = covariance.shape[:2]
        normal = standard_normal(rng, count, slots, theta.shape[1], dtype=torch.float64)
        own = theta[:, None].expand_as(normal)
        size = covariance.diagonal(dim1=1, dim2=2).sqrt()[..., None]
        if not bool((size > 0).any()):
            return own
        # A little on the diagonal: two ages may be the same.
        factor = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(slots))
        quantile = torch.special.ndtr((factor @ normal) / size.clamp_min(1e-9))
        moved = self._neighbour(own, size.clamp_min(1e-9), columns, quantile)
        return torch.where(size > 0, moved, own)

    def drive(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        rng: np.random.Generator,
        check: bool = True,
    ) -> Rollout:
        """As `Simulator.rollout` with these very parameters, and with errors of measurement."""
        rollout = self.simulator.rollout(theta, leader_speed, gap, speed, rng, check=check)
        if self.sizes["gap_noise"] or self.sizes["speed_noise"]:
            rollout = self._measure(rollout, rng)
        return rollout

    def _move(
        self, theta: Tensor, size: float, columns: slice, rng: np.random.Generator
    ) -> Tensor:
        """Log-normal about theta, truncated to the prior's box."""
        if not size:
            return theta
        quantile = uniform(rng, *theta.shape, dtype=torch.float64)
        return self._neighbour(theta, size, columns, quantile)

    def _neighbour(
        self, theta: Tensor, size: float | Tensor, columns: slice, quantile: Tensor
    ) -> Tensor:
        """That quantile of the truncated log-normal about theta."""
        log_theta = theta.double().log()
        low, high = (
            torch.special.ndtr((bound[columns] - log_theta) / size) for bound in self._log_box
        )
        quantile = low + (high - low) * quantile
        moved = torch.exp(log_theta + size * torch.special.ndtri(quantile)).to(theta.dtype)
        # Rounding may lead out of the box.
        return moved.clamp(self.prior.low[columns], self.prior.high[columns])

    def _measure(self, rollout: Rollout, rng: np.random.Generator) -> Rollout:
        errors = standard_normal(rng, *rollout.gap.shape, 3, dtype=rollout.gap.dtype)
        errors *= SMALLEST_NOISE ** uniform(rng, len(errors), 1, 1, dtype=errors.dtype)
        gap, own, leader = errors.unbind(-1)
        own, leader = self.sizes["speed_noise"] * own, self.sizes["speed_noise"] * leader
        # A recording has no gap or speed below zero either.
        speed = (rollout.speed + own).clamp_min(0)
        leader = (rollout.speed - rollout.approach_rate + leader).clamp_min(0)
        return rollout._replace(
            gap=(rollout.gap + self.sizes["gap_noise"] * gap).clamp_min(0),
            speed=speed,
            approach_rate=speed - leader,
        )


class SimulatedDrivers(NamedTuple):
    """Drivers from the prior, with the trajectory each produced."""

    theta: Tensor  # (driver, dim)
    states: Tensor  # (driver, steps, 3)


class SimulatedHistories(NamedTuple):
    """Drivers from the prior, with the segments each produced."""

    theta: Tensor  # (driver, dim)
    states: Segments


def simulate_drivers(
    simulator: Simulator | ContextSimulator, windows: LeaderWindows, count: int, seed: int
) -> SimulatedDrivers:
    """`count` drivers from the prior behind random leader windows, none of which collided.

    As in training, a collision replaces driver and window together: whether a trajectory collides
    is a function of the trajectory, so p(theta | x) stays what it was.
    """
    theta, states, found = [], [], 0
    for batch in range(MAX_BATCHES):
        rng = stream(seed, "simulated drivers", batch)
        candidate = simulator.prior.sample(count, rng)
        window = windows.take(torch.from_numpy(rng.integers(len(windows.gap), size=count)))
        rollout = simulator.rollout(
            candidate, window.leader_speed, window.gap, window.speed, rng, check=False
        )
        if isinstance(simulator, ContextSimulator):
            candidate = simulator.later(candidate, rng)
        theta.append(candidate[~rollout.collided])
        states.append(rollout.states[~rollout.collided])
        found += len(theta[-1])
        if found >= count:
            return SimulatedDrivers(torch.cat(theta)[:count], torch.cat(states)[:count])
    raise _too_many_collide(found, count)


def simulate_histories(
    simulator: ContextSimulator,
    windows: LeaderWindows,
    count: int,
    seed: int,
    known: Callable[[int, int, float, np.random.Generator], tuple[Tensor, Tensor]],
) -> SimulatedHistories:
    """`count` drivers from the prior with several segments, none of which collided.

    Args:
        simulator: of the training.
        windows: leaders; each segment is behind a random one.
        count: drivers.
        seed: all randomness.
        known: lengths and ages of the segments of n drivers, called with n, the samples of a
            segment at most, the time step and a generator; see `asbc.design.history_law`.
    """
    theta: list[Tensor] = []
    states: list[Segments] = []
    steps = windows.leader_speed.shape[1]
    for batch in range(MAX_BATCHES):
        rng = stream(seed, "simulated histories", batch)
        candidate = simulator.prior.sample(count, rng)
        lengths, age = known(count, steps, simulator.simulator.dt, rng)
        chosen = rng.integers(len(windows.gap), size=int((lengths > 0).sum()))
        behind = windows.take(torch.from_numpy(chosen))
        segments, later, usable = drive_segments(simulator, candidate, behind, lengths, age, rng)
        theta.append(later[usable])
        states.append(segments[usable])
        if sum(map(len, theta)) >= count:
            return SimulatedHistories(
                torch.cat(theta)[:count], concatenate_segments(states)[:count]
            )
    raise _too_many_collide(sum(map(len, theta)), count)


def _too_many_collide(found: int, count: int) -> InputError:
    return InputError(
        f"only {found} of {count * MAX_BATCHES} simulated drivers did not collide; "
        "check the data's gaps and speeds, or narrow the prior"
    )


def drive_segments(
    simulator: ContextSimulator,
    theta: Tensor,
    windows: LeaderWindows,
    lengths: Tensor,
    age: Tensor,
    rng: np.random.Generator,
) -> tuple[Segments, Tensor, Tensor]:
    """Segments of drivers about theta, the parameters (n, dim) to infer, and who did not collide.

    Args:
        simulator: moves theta from segment to segment.
        theta: (n, dim), see `ContextSimulator.moods`.
        windows: a leader for each segment, drivers in order.
        lengths: (n, J) samples, 0 for no segment; samples after them are simulated but count for
            nothing, a collision neither.
        age: (n, J) seconds, NaN where unknown.
        rng: source of all noise.
    """
    present = lengths > 0
    driven, to_infer = simulator.moods(theta, age, rng)
    rollout = simulator.drive(
        driven[present], windows.leader_speed, windows.gap, windows.speed, rng, False
    )
    inside = torch.arange(rollout.gap.shape[1]) < lengths[present][:, None]
    states = rollout.states
    sound = torch.isfinite(states).all(dim=2) & (rollout.gap > 0)
    usable = torch.ones(present.shape, dtype=torch.bool)
    usable[present] = (sound | ~inside).all(dim=1)
    slots = states.new_zeros(*present.shape, *states.shape[1:])
    slots[present] = states.masked_fill(~inside[..., None], 0.0)
    return Segments(slots, lengths, age), to_infer, usable.all(dim=1)
