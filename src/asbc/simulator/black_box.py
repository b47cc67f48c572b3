"""A simulator that can only simulate: any program that drives followers behind given leaders.

It has no likelihood and no gradients. What needs them refuses in one line; everything else
(training with any acquisition, evaluation, calibration, populations) works as with our own.
"""

import logging
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.simulator.kinematics import NO_LAG, LaggedKinematics
from asbc.simulator.prior import Prior
from asbc.simulator.residuals import NoResidual, Prefix
from asbc.simulator.rollout import Behind, Rollout
from asbc.simulator.simulator import Simulator, check_rollout
from asbc.utils.checks import check_number

log = logging.getLogger(__name__)


class BlackBox(Protocol):
    """What a simulator of your own has to offer; its priors stand in its config file."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the columns of theta."""
        ...

    def simulate(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        dt: float,
        rng: np.random.Generator,
    ) -> Tensor:
        """Gap, speed and approach rate (batch, steps, 3); the first state is the given one.

        A simulation that failed has a NaN in its row. Numbers are drawn from `rng` by
        `asbc.utils.random` only, as (batch, ...): then row i depends on its own stretch of the
        stream, and not on the batch.

        Args:
            theta: (batch, parameters).
            leader_speed: (batch, steps) m/s.
            gap: (batch,) net gap in m at the start.
            speed: (batch,) speed in m/s at the start.
            dt: time step (s).
            rng: source of all randomness.
        """
        ...


class BlackBoxSimulator(Simulator):
    """A black box in the place of law, residual and kinematics.

    A simulation that failed is flagged like a collision: training replaces it by another pair of
    driver and leader, and evaluation counts it. Its states stay at the last that were finite.

    Args:
        law: the black box.
        prior: names and bounds of its parameters.
        residual: none; a black box has its own noise, or none.
        kinematics: none; a black box moves its vehicles itself.
        dt: time step (s).
        acceleration_bounds: hardest braking and strongest acceleration (m/s^2), for exports.

    Example:
        >>> marginal = {"unit": "1/s", "centre": 0.5, "log_scale": 0.5, "low": 0.1, "high": 2.0}
        >>> class Chaser:
        ...     parameters = ("gain",)
        ...     def simulate(self, theta, leader_speed, gap, speed, dt, rng):
        ...         states = [torch.stack([gap, speed, speed - leader_speed[:, 0]], -1)]
        ...         for leader in leader_speed[:, 1:].unbind(1):
        ...             speed = speed + theta[:, 0] * (leader - speed) * dt
        ...             gap = gap + (leader - speed) * dt
        ...             states.append(torch.stack([gap, speed, speed - leader], -1))
        ...         return torch.stack(states, 1)
        >>> simulator = BlackBoxSimulator(Chaser(), Prior({"gain": marginal}, {}))
        >>> leader = torch.tensor([[10.0, 11.0, 12.0]])
        >>> gain, start = torch.tensor([[1.0]]), (torch.tensor([20.0]), torch.tensor([10.0]))
        >>> simulator.rollout(gain, leader, *start, np.random.default_rng(0)).speed
        tensor([[10.0000, 10.2000, 10.5600]])
    """

    def __init__(
        self,
        law: Any,
        prior: Prior,
        residual: Any = None,
        kinematics: LaggedKinematics | None = None,
        dt: float = 0.2,
        acceleration_bounds: Sequence[float] = (-9.0, 5.0),
    ) -> None:
        if residual is not None and not isinstance(residual, NoResidual):
            raise InputError(
                f"{name_of(law)} is a black box, and no residual can be added to it; leave out "
                "residual="
            )
        if prior.names != tuple(law.parameters):
            raise InputError(
                f"the black box {name_of(law)} has the parameters {tuple(law.parameters)}, but "
                f"the prior {prior.names}; model.marginals must name them in this order"
            )
        check_number("simulator.dt", dt, above=0)
        self.law = self.box = law
        self.residual = NoResidual()
        self.prior = prior
        self.parameter_names = prior.names
        self.dt = dt
        self.learned, self.lags = None, NO_LAG  # it moves its vehicles itself
        self.acceleration_bounds = tuple(acceleration_bounds)

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
        """See `Simulator.rollout`; failed simulations are flagged as collided."""
        if check:
            check_rollout(self.prior, theta, leader_speed, gap, speed, prefix)
        # The acceleration at the last sample is what leads to the next one.
        longer = torch.cat([leader_speed, leader_speed[:, -1:]], dim=1)
        states = self.box.simulate(theta, longer, gap, speed, self.dt, rng)
        self._require_states(states, longer)
        states, failed = _held(states)
        if bool(failed.any()):
            log.warning(
                "%d of %d simulations failed; counted as collisions", failed.sum(), len(failed)
            )
        gaps, speeds, rates = states.unbind(-1)
        return Rollout(
            gap=gaps[:, :-1],
            speed=speeds[:, :-1],
            approach_rate=rates[:, :-1],
            acceleration=speeds.diff(dim=1) / self.dt,
            collided=failed | (gaps[:, :-1] <= 0).any(1),
        )

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
        """See `Simulator.begin`; a black box drives when all of the leader is there."""
        return AtOnce(self, theta, gap, speed, rng)

    def _require_states(self, states: Tensor, leader_speed: Tensor) -> None:
        expected = (*leader_speed.shape, 3)
        if tuple(states.shape) != expected:
            raise InputError(
                f"the black box {name_of(self.law)} returned states of shape "
                f"{tuple(states.shape)}; expected {expected}: gap, speed and approach rate"
            )

    # What a simulator with a likelihood could do.

    def residuals(
        self, theta: Tensor, states: Tensor, acceleration: Tensor | None = None
    ) -> Tensor:
        """Raises: what a black box does not explain is unknown."""
        self._refuse("residuals")

    def log_likelihood(self, theta: Tensor, states: Tensor) -> Tensor:
        """Raises: a black box can only simulate."""
        self._refuse("likelihood")

    def censored(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Raises: a black box can only simulate."""
        self._refuse("likelihood")

    def law_acceleration(
        self, theta: Tensor, gap: Tensor, speed: Tensor, approach_rate: Tensor
    ) -> Tensor:
        """Raises: a black box does not say why it moves."""
        self._refuse("law")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{name_of(self.law)} is a black box without {what}: it can be trained, evaluated and "
            "used to calibrate, but not refined, weighted, or compared with exact posteriors"
        )


class AtOnce:
    """Drives that cannot be stopped on their way, and so begin when their leader has driven."""

    def __init__(
        self,
        simulator: BlackBoxSimulator,
        theta: Tensor,
        gap: Tensor,
        speed: Tensor,
        rng: np.random.Generator,
    ) -> None:
        self._simulator, self._start, self._rng = simulator, (theta, gap, speed), rng
        self._leader: list[float] = []

    def follow(self, leader_speed: float) -> None:
        """Take the leader's next speed (m/s)."""
        self._leader.append(leader_speed)

    def rollout(self) -> Rollout:
        """The drives (batch, steps) behind the leader until now."""
        theta, gap, speed = self._start
        leader = gap.new_tensor(self._leader).repeat(len(theta), 1)
        return self._simulator.rollout(theta, leader, gap, speed, self._rng, check=False)


def name_of(law: Any) -> str:
    """How messages call a law or a black box."""
    return getattr(law, "name", None) or type(law).__name__


def require_likelihood(
    simulator: Simulator, method: str, what: str = "likelihood and the gradients"
) -> None:
    """Raise if a method that needs more than trajectories is given a black box."""
    if isinstance(simulator, BlackBoxSimulator):
        raise InputError(
            f"{method}: {name_of(simulator.law)} is a black box, without the {what} that this "
            "needs; choose a model such as model=idm"
        )


def _held(states: Tensor) -> tuple[Tensor, Tensor]:
    """The states with each row kept at its last finite one, and which rows (batch,) failed."""
    finite = states.isfinite().all(-1)  # (batch, step)
    failed = ~finite.all(1)
    if not bool(failed.any()):
        return states, failed
    good = finite.long().cumprod(1)
    step = torch.arange(states.shape[1]).expand_as(good)
    last = torch.where(good.bool(), step, (good.sum(1, keepdim=True) - 1).clamp_min(0))
    held = torch.gather(states, 1, last[..., None].expand_as(states))
    # A row without even its first state: nothing that came from the box can be kept.
    return torch.where(held.isfinite(), held, 0.0), failed
