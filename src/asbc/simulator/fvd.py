"""The full velocity difference model (Jiang et al. 2001) as Treiber and Kesting write it."""

from torch import Tensor


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
