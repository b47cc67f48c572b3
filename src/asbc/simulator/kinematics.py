"""How speeds move the gap: three update rules behind one small interface.

The follower's speed always follows v' = v + a dt. A rule says how far leader and follower travel
in the step; the gap changes by the difference.
"""

from typing import Protocol

from torch import Tensor


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
