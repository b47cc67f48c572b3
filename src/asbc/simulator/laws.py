"""Car-following laws: what one has to offer, the IDM, SUMO's form of it, and the FVD model."""

from typing import Protocol

from torch import Tensor

from asbc.utils.checks import check_number


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


class IDM:
    """The paper's deterministic core: a_max [1 - (v/v0)^delta - (s*/s)^2].

    Args:
        delta: acceleration exponent; the paper fixes 4.

    Example:
        >>> import torch
        >>> recommended = torch.tensor([33.3, 2.0, 1.6, 1.5, 1.67])
        >>> IDM().equilibrium_gap(recommended, torch.tensor(20.0))
        tensor(36.4543)
    """

    parameters = ("v0", "s0", "T", "a_max", "b")
    scale_powers = (1.0, 1.0, 0.0, 1.0, 1.0)  # see asbc.simulator.symmetry

    def __init__(self, delta: float = 4.0) -> None:
        check_number("model.law.delta", delta, above=0)
        self.delta = delta

    def acceleration(
        self, theta: Tensor, gap: Tensor, speed: Tensor, approach_rate: Tensor
    ) -> Tensor:
        """Acceleration (m/s^2); theta (..., >= 5), the state (...)."""
        v0, s0, headway, a_max, b = theta.unbind(-1)[:5]
        dynamic_gap = self._dynamic_gap(speed, headway, approach_rate, (a_max * b).sqrt())
        interaction = ((s0 + dynamic_gap) / gap).square()
        return a_max - a_max * (self._power(speed / v0) + interaction)

    def equilibrium_gap(self, theta: Tensor, speed: Tensor) -> Tensor:
        """(s0 + v T) / sqrt(1 - (v/v0)^delta); infinite from the desired speed on."""
        v0, s0, headway = theta.unbind(-1)[:3]
        return (s0 + speed * headway) / (1 - self._power(speed / v0)).clamp_min(0).sqrt()

    def _dynamic_gap(
        self, speed: Tensor, headway: Tensor, approach_rate: Tensor, root: Tensor
    ) -> Tensor:
        """The part of the desired gap s* that depends on speed; root = sqrt(a_max b)."""
        return speed * headway.add(approach_rate / root, alpha=0.5)

    def _power(self, ratio: Tensor) -> Tensor:
        # Two multiplications cost a tenth of pow and do not depend on its vectorised tail.
        return ratio.square().square() if self.delta == 4 else ratio.pow(self.delta)


class SumoIDM(IDM):
    """The IDM as SUMO 1.x computes it: the dynamic part of the desired gap never falls below 0."""

    def _dynamic_gap(
        self, speed: Tensor, headway: Tensor, approach_rate: Tensor, root: Tensor
    ) -> Tensor:
        return super()._dynamic_gap(speed, headway, approach_rate, root).clamp_min(0)


class FullVelocityDifference:
    """(V(s) - v) / tau - gamma (v - v_leader), with the optimal velocity V of Bando et al.

    V(s) = v0 [tanh(s / width - beta) + tanh(beta)] / [1 + tanh(beta)] rises from 0 at contact to
    the desired speed v0, steepest at the gap width * beta.

    Example:
        >>> import torch
        >>> driver = torch.tensor([33.3, 5.0, 15.0, 1.5, 0.6])
        >>> FullVelocityDifference().equilibrium_gap(driver, torch.tensor(20.0))
        tensor(26.1571)
    """

    parameters = ("v0", "tau", "width", "beta", "gamma")
    scale_powers = (1.0, 0.0, 1.0, 0.0, 0.0)

    def acceleration(
        self, theta: Tensor, gap: Tensor, speed: Tensor, approach_rate: Tensor
    ) -> Tensor:
        """Acceleration (m/s^2); theta (..., >= 5), the state (...)."""
        v0, tau, width, beta, gamma = theta.unbind(-1)[:5]
        offset = beta.tanh()
        optimal = v0 * ((gap / width - beta).tanh() + offset) / (1 + offset)
        return (optimal - speed) / tau - gamma * approach_rate

    def equilibrium_gap(self, theta: Tensor, speed: Tensor) -> Tensor:
        """The inverse of V; infinite from the desired speed on."""
        v0, _, width, beta, _ = theta.unbind(-1)[:5]
        offset = beta.tanh()
        return width * (beta + ((speed / v0).clamp_max(1) * (1 + offset) - offset).atanh())
