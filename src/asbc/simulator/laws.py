"""What a car-following law has to offer; one file per law beside this one."""

from typing import Protocol

from torch import Tensor


class CarFollowingLaw(Protocol):
    """A deterministic law: parameters and state in, acceleration out.

    The law's parameters are the first columns of theta, in the order of `parameters`. Leading
    axes broadcast, so one theta can be evaluated along a whole trajectory.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the law's columns of theta."""
        ...

    def acceleration(
        self, theta: Tensor, gap: Tensor, speed: Tensor, approach_rate: Tensor
    ) -> Tensor:
        """Acceleration (m/s^2) at net gap (m), own speed and approach rate v - v_leader (m/s)."""
        ...

    def equilibrium_gap(self, theta: Tensor, speed: Tensor) -> Tensor:
        """Gap (m) at which the law holds `speed` behind a leader that drives the same."""
        ...
