"""The residual-augmented car-following model: forward simulation and trajectory likelihood.

What comes from outside is checked before a rollout; messages name the argument and the index.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.simulator.kinematics import NO_LAG, Kinematics, LaggedKinematics, Lags
from asbc.simulator.laws import CarFollowingLaw
from asbc.simulator.learned_residual import READS, LearnedResidual
from asbc.simulator.prior import Prior
from asbc.simulator.residuals import Prefix, ResidualProcess
from asbc.simulator.rollout import Behind, Rollout, StepByStep, Underway
from asbc.utils.checks import check_number, require, require_shape

# The law sees no smaller gap than this (m), so that a collision yields hard braking and not NaN.
SMALLEST_GAP = 0.1
# Speeds are float32: an acceleration this close to a bound (m/s^2) was clipped to it.
BOUND_TOLERANCE = 1e-4


class Simulator:
    """a_t = law(state; theta) + residual_t, integrated behind a given leader.

    Speed stays >= 0 and the acceleration within its bounds. Gradients flow from a rollout and from
    the likelihood to theta.

    Args:
        law: car-following law; its parameters are the first columns of theta.
        residual: residual process; its parameters are the other columns.
        prior: names and bounds of the columns.
        kinematics: gap update.
        dt: time step (s).
        acceleration_bounds: hardest braking and strongest acceleration (m/s^2).

    Example:
        >>> from asbc.config import build, compose
        >>> simulator = build(compose("train", ["residual=matern"]).simulator)
        >>> simulator.parameter_names
        ('v0', 's0', 'T', 'a_max', 'b', 'sigma', 'ell')
        >>> rng = np.random.default_rng(0)
        >>> theta, leader = simulator.prior.sample(4, rng), torch.full((4, 75), 10.0)
        >>> drives = simulator.rollout(theta, leader, torch.full((4,), 20.0), leader[:, 0], rng)
        >>> drives.states.shape, simulator.log_likelihood(theta, drives.states).shape
        (torch.Size([4, 75, 3]), torch.Size([4]))
    """

    def __init__(
        self,
        law: CarFollowingLaw,
        residual: ResidualProcess,
        prior: Prior,
        kinematics: Kinematics,
        dt: float = 0.2,
        acceleration_bounds: Sequence[float] = (-9.0, 5.0),
    ) -> None:
        self.parameter_names = (*law.parameters, *residual.parameters)
        if self.parameter_names != prior.names:
            raise InputError(
                f"prior has the parameters {prior.names}, but law and residual need "
                f"{self.parameter_names} in this order"
            )
        check_number("simulator.dt", dt, above=0)
        lowest, highest = acceleration_bounds
        if not lowest < 0 < highest:
            raise InputError(
                f"simulator.acceleration_bounds={[lowest, highest]}; expected the hardest braking "
                "below 0 and the strongest acceleration above it"
            )
        self.law = law
        self.residual = residual
        self.prior = prior
        self.kinematics = kinematics
        self.dt = dt
        self.acceleration_bounds = tuple(acceleration_bounds)
        # What recorded drivers have taught it: what drives in place of the residual process, and
        # how late speeds were recorded.
        self.learned: LearnedResidual | None = None
        self.lags = NO_LAG

    def taught(self, learned: LearnedResidual | None, lags: Lags) -> "Simulator":
        """This simulator with what a training on recorded drivers has found.

        Args:
            learned: residuals of its drives; None: those of its own process.
            lags: of recorded speeds (s), where a context does not show them.
        """
        other = copy.copy(self)
        other.learned, other.lags = learned, lags
        return other

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return len(self.parameter_names)

    def reads(self, prefix_steps: int) -> int:
        """Samples that are read before a drive, where a residual process is to go on from some."""
        return READS if prefix_steps and self.learned is not None else prefix_steps

    def rollout(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
        check: bool = True,
        kinematics: LaggedKinematics | None = None,
    ) -> Rollout:
        """Simulate followers behind given leaders.

        Args:
            theta: (batch, dim).
            leader_speed: (batch, steps) m/s.
            gap: (batch,) initial net gap in m.
            speed: (batch,) initial speed in m/s.
            rng: source of the residuals; row i does not depend on the batch size.
            prefix: residuals observed just before the start, for the process to continue.
            check: whether to look for bad input first.
            kinematics: of each row, in place of the simulator's.
        """
        if check:
            check_rollout(self.prior, theta, leader_speed, gap, speed, prefix)
        # The residuals of consecutive calls are those of one call, so chunks change nothing.
        parts = [
            self._rollout(
                *(theta[i], leader_speed[i], gap[i], speed[i], rng, _rows(prefix, i)),
                None if kinematics is None else kinematics.of(i),
            )
            for i in _chunks(theta.shape[0])
        ]
        return parts[0] if len(parts) == 1 else Rollout(*map(_join, zip(*parts, strict=True)))

    def begin(
        self,
        theta: Tensor,
        gap: Tensor,
        speed: Tensor,
        steps: int,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
        kinematics: LaggedKinematics | None = None,
    ) -> Behind:
        """The drives of `rollout` behind one leader, whose speeds will come one by one.

        Args:
            theta, gap, speed, rng, prefix, kinematics: as for `rollout`.
            steps: samples that there will be of the leader, the first included.
        """
        return StepByStep(Underway(self, theta, gap, speed, steps, rng, prefix, kinematics))

    def _rollout(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        rng: np.random.Generator,
        prefix: Prefix | None,
        kinematics: LaggedKinematics | None,
    ) -> Rollout:
        # Time first: every operation of a drive runs on contiguous memory.
        leader = leader_speed.t().contiguous()
        drives = Underway(self, theta, gap, speed, len(leader), rng, prefix, kinematics)
        distances = drives.kinematics.leader_distance(leader, self.dt).unbind(0)
        for now, distance in zip(leader.unbind(0), distances, strict=False):
            drives.advance(now, distance)
        return drives.rollout(leader)

    def residuals(
        self, theta: Tensor, states: Tensor, acceleration: Tensor | None = None
    ) -> Tensor:
        """What the law does not explain of observed trajectories.

        Args:
            theta: (..., dim).
            states: (..., T, 3) of gap, speed and approach rate.
            acceleration: (..., T) where it was observed; otherwise speed differences are taken.

        Returns:
            (..., T) with an observed acceleration, else (..., T - 1).
        """
        check_trajectory(self.prior, theta, states)
        if acceleration is None:
            acceleration = states[..., 1].diff(dim=-1) / self.dt
            states = states[..., :-1, :]
        return acceleration - self.law_acceleration(theta.unsqueeze(-2), *states.unbind(-1))

    def log_likelihood(self, theta: Tensor, states: Tensor) -> Tensor:
        """log p(x | theta) (...) in float64, for theta (..., dim) and states (..., T, 3).

        The density is that of the accelerations (m/s^2); gaps follow from them. A step that ends
        at standstill or at an acceleration bound is a censored observation.
        """
        theta, states = theta.double(), states.double()
        lower, upper = self.censored(states)
        clipped = bool((lower | upper).any())
        return self.residual.log_likelihood(
            self.residuals(theta, states),
            theta[..., len(self.law.parameters) :],
            self.dt,
            lower if clipped else None,
            upper if clipped else None,
        )

    def censored(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Steps (..., T - 1) of states (..., T, 3) that end at standstill or hardest braking,
        and those at the strongest acceleration: of these the likelihood knows a side only."""
        lowest, highest = self.acceleration_bounds
        speed = states[..., 1]
        acceleration = speed.diff(dim=-1) / self.dt
        lower = (speed[..., 1:] <= 0) | (acceleration <= lowest + BOUND_TOLERANCE)
        return lower, acceleration >= highest - BOUND_TOLERANCE

    def law_acceleration(
        self, theta: Tensor, gap: Tensor, speed: Tensor, approach_rate: Tensor
    ) -> Tensor:
        """What the law does in a state (...); theta (..., >= its parameters)."""
        return self.law.acceleration(theta, gap.clamp_min(SMALLEST_GAP), speed, approach_rate)


def _chunks(batch: int, size: int = 16_384) -> list[slice]:
    """Slices of the batch small enough for the processor's cache; one empty slice for no rows."""
    return [slice(i, i + size) for i in range(0, max(batch, 1), size)]


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Chunks as one tensor, with time first in memory as they have it."""
    return torch.cat([part.t() for part in parts], dim=-1).t()


def _rows(prefix: Prefix | None, rows: slice) -> Prefix | None:
    if prefix is None:
        return None
    states = None if prefix.states is None else prefix.states[rows]
    return Prefix(prefix.residuals[rows], prefix.observed[rows], prefix.noise, states)


def check_rollout(
    prior: Prior,
    theta: Tensor,
    leader_speed: Tensor,
    gap: Tensor,
    speed: Tensor,
    prefix: Prefix | None,
) -> None:
    """Raise unless these are arguments `Simulator.rollout` can use."""
    require_shape("theta", theta, (None, prior.dim))
    batch = theta.shape[0]
    require_shape("leader_speed", leader_speed, (batch, None))
    require_shape("gap", gap, (batch,))
    require_shape("speed", speed, (batch,))
    if leader_speed.shape[1] == 0:
        raise InputError("leader_speed has no time steps, expected one at least")
    _check_support(prior, theta)
    require("leader_speed", leader_speed, _not_negative(leader_speed), "0 or more (m/s)")
    require("gap", gap, (gap > 0) & (gap < torch.inf), "a positive number (metres)")
    require("speed", speed, _not_negative(speed), "0 or more (m/s)")
    if prefix is not None:
        values, observed = prefix.residuals, prefix.observed
        require_shape("prefix.residuals", values, (batch, None))
        require_shape("prefix.observed", observed, tuple(values.shape))
        require("prefix.residuals", values, values.isfinite() | ~observed, "a finite number")


def check_trajectory(prior: Prior, theta: Tensor, states: Tensor) -> None:
    """Raise unless theta is (..., dim) and states (..., steps, 3)."""
    if theta.shape[-1:] != (prior.dim,):
        raise InputError(f"theta has shape {tuple(theta.shape)}, expected (..., {prior.dim})")
    if states.ndim < 2 or states.shape[-1] != 3:
        raise InputError(f"states has shape {tuple(states.shape)}, expected (..., steps, 3)")


def _check_support(prior: Prior, theta: Tensor) -> None:
    inside = prior.inside(theta)
    if bool(inside.all()):
        return
    marginal = prior.marginals[int(torch.nonzero(~inside)[0, 1])]
    expected = f"{marginal.name} in [{marginal.low}, {marginal.high}] {marginal.unit}"
    require("theta", theta, inside, expected)


def _not_negative(value: Tensor) -> Tensor:
    """Where the value is 0 or more and finite; false for NaN."""
    return (value >= 0) & (value < torch.inf)
