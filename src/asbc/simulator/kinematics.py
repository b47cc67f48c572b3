"""How speeds move the gap: three update rules behind one small interface.

The follower's speed always follows v' = v + a dt. A rule says how far leader and follower travel
in the step; the gap changes by the difference.
"""

from typing import Protocol

from torch import Tensor

# How late recorded speeds of leader and follower are (s).
Lags = tuple[float, float]
NO_LAG: Lags = (0.0, 0.0)


class Kinematics(Protocol):
    """Distances travelled in one time step."""

    def leader_distance(self, leader_speed: Tensor, dt: float) -> Tensor:
        """Distances (steps - 1, ...) between the samples of leader_speed (steps, ...)."""
        ...

    def follower_distance(self, speed: Tensor, next_speed: Tensor, dt: float) -> Tensor:
        """Distance (...) travelled while the speed goes from `speed` to `next_speed`."""
        ...


class PaperKinematics:
    """The paper's gap update, s' = s + (v_l - v) dt - a dt^2 / 2.

    The leader is taken to keep its speed during the step, so over time the gap drifts by about
    -dt/2 times the leader's change of speed.
    """

    def leader_distance(self, leader_speed: Tensor, dt: float) -> Tensor:
        """v_l dt."""
        return leader_speed[:-1] * dt

    def follower_distance(self, speed: Tensor, next_speed: Tensor, dt: float) -> Tensor:
        """v dt + a dt^2 / 2, with a = (v' - v) / dt."""
        return (speed + next_speed) * (dt / 2)


class LeaderAccelerationKinematics(PaperKinematics):
    """The paper's update with the leader's acceleration integrated as well: no drift."""

    def leader_distance(self, leader_speed: Tensor, dt: float) -> Tensor:
        """v_l dt + a_l dt^2 / 2, with a_l = (v_l' - v_l) / dt."""
        return self.follower_distance(leader_speed[:-1], leader_speed[1:], dt)


class SumoKinematics:
    """SUMO's semi-implicit Euler update, s' = s + (v_l' - v') dt."""

    def leader_distance(self, leader_speed: Tensor, dt: float) -> Tensor:
        """v_l' dt."""
        return leader_speed[1:] * dt

    def follower_distance(self, speed: Tensor, next_speed: Tensor, dt: float) -> Tensor:
        """v' dt."""
        return next_speed * dt


class LaggedKinematics:
    """Gaps as they are recorded beside speeds that are recorded late.

    A speed that a tracker reports `lag` seconds late was v(t) + lag a(t) in truth, to first order:
    over a step its vehicle comes lag times the change of the recorded speed farther than the
    recorded speeds say.

    Args:
        rule: how gaps change without lags.
        leader_lag: s, one for each of the rows that are driven, or one for all, (rows,) or (1,).
        follower_lag: likewise.
    """

    def __init__(self, rule: Kinematics, leader_lag: Tensor, follower_lag: Tensor) -> None:
        self.rule, self.leader_lag, self.follower_lag = rule, leader_lag, follower_lag

    def leader_distance(self, leader_speed: Tensor, dt: float) -> Tensor:
        """That of the recorded speeds, and what the lag hides of it."""
        hidden = self.leader_lag * leader_speed.diff(dim=0)
        return self.rule.leader_distance(leader_speed, dt) + hidden

    def follower_distance(self, speed: Tensor, next_speed: Tensor, dt: float) -> Tensor:
        """As for the leader."""
        hidden = self.follower_lag * (next_speed - speed)
        return self.rule.follower_distance(speed, next_speed, dt) + hidden

    def of(self, rows: slice | Tensor) -> "LaggedKinematics":
        """Those of some of the rows, or of rows several times."""
        return LaggedKinematics(self.rule, self.leader_lag[rows], self.follower_lag[rows])
