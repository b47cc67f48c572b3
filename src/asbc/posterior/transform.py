"""Element-wise bijections theta = T(u) from unconstrained to physical parameters.

The paper's softplus, a logit onto the prior's box, and the map that makes the prior normal.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.simulator import Prior
from asbc.utils.checks import check_number

# Drivers described at once: enough to be fast, few enough for the memory.
DESCRIBE_CHUNK = 256


class Transform(nn.Module, ABC):
    """An element-wise bijection from u to physical parameters.

    A subclass may add coordinates of u that differ from one driver to the next, as
    `asbc.posterior.laplace.Laplace` does: `size` columns describe those of one driver.
    """

    size = 0

    @abstractmethod
    def inverse(self, theta: Tensor) -> Tensor:
        """u with T(u) = theta."""

    @abstractmethod
    def log_abs_det(self, u: Tensor) -> Tensor:
        """log |dT/du|, summed over the last axis."""

    @abstractmethod
    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta is in T's range; (..., D) -> (...)."""

    def resolves(self, theta: Tensor) -> Tensor:
        """Whether u can be told from theta; (..., D) -> (...). False where T saturates."""
        return self.contains(theta)

    def describe(self, states: Tensor | Segments, lengths: Tensor | None) -> Tensor:
        """Columns (B, size) of states (B, T, 3) with `lengths` valid steps each, or segments."""
        return torch.zeros(len(states), 0, device=states.device)

    def whiten(self, u: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The driver's coordinates w and log |du/dw|; u (B, D) or (B, n, D)."""
        return u, u.new_zeros(u.shape[:-1])

    def unwhiten(self, w: Tensor, columns: Tensor) -> Tensor:
        """u for w, both (B, n, D)."""
        return w


def describe_all(transform: Transform, states: Tensor | Segments) -> Tensor:
    """Columns (n, size) of many drivers, trajectories (n, T, 3) or segments, some at a time."""
    if not len(states):
        return torch.zeros(0, transform.size, device=states.device)
    return torch.cat([transform.describe(part, None) for part in states.split(DESCRIBE_CHUNK)])


class Softplus(Transform):
    """The paper's transform theta = softplus(u) + epsilon: positive, but not bounded above."""

    def __init__(self, epsilon: float = 1e-4) -> None:
        super().__init__()
        check_number("transform.epsilon", epsilon, above=0)
        self.epsilon = epsilon

    def forward(self, u: Tensor) -> Tensor:
        return F.softplus(u) + self.epsilon

    def inverse(self, theta: Tensor) -> Tensor:
        """u with T(u) = theta, as x + log(1 - exp(-x)): no overflow at large x."""
        x = (theta - self.epsilon).clamp_min(torch.finfo(theta.dtype).tiny)
        return x + torch.log(-torch.expm1(-x))

    def log_abs_det(self, u: Tensor) -> Tensor:
        """log |dT/du|, summed over the last axis."""
        return F.logsigmoid(u).sum(-1)

    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta is in T's range; (..., D) -> (...)."""
        return (theta > self.epsilon).all(-1)


class Bounded(Transform):
    """A scaled logit onto the box [low, high]: no sample can leave it.

    Args:
        low: Lower ends, (D,).
        high: Upper ends, (D,).
    """

    # Distance from the box's ends, in units of its width, at which the inverse saturates: a value
    # that float32 rounds onto an end still has a finite u.
    margin = 1e-6

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        low, high = torch.as_tensor(low), torch.as_tensor(high)
        if not bool((torch.isfinite(low) & torch.isfinite(high) & (low < high)).all()):
            raise InputError(
                f"transform=bounded: low {low.tolist()}, high {high.tolist()}; expected finite "
                "low < high"
            )
        self.register_buffer("low", low.float())
        self.register_buffer("high", high.float())

    @classmethod
    def from_prior(cls, prior: Prior) -> "Bounded":
        """The transform onto the prior's feasible box."""
        return cls(prior.low, prior.high)

    def forward(self, u: Tensor) -> Tensor:
        theta = self.low + (self.high - self.low) * torch.sigmoid(u)
        # Rounding may step over an end by one unit in the last place.
        return torch.minimum(torch.maximum(theta, self.low), self.high)

    def inverse(self, theta: Tensor) -> Tensor:
        """u with T(u) = theta."""
        share = (theta - self.low) / (self.high - self.low)
        return torch.logit(share, eps=self.margin)

    def log_abs_det(self, u: Tensor) -> Tensor:
        """log |dT/du|, summed over the last axis."""
        width = torch.log(self.high - self.low)
        return (width + F.logsigmoid(u) + F.logsigmoid(-u)).sum(-1)

    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta is in the closed box; (..., D) -> (...)."""
        return ((theta >= self.low) & (theta <= self.high)).all(-1)

    def resolves(self, theta: Tensor) -> Tensor:
        """Whether theta is not so close to an end of the box that any larger u gives the same."""
        share = (theta - self.low) / (self.high - self.low)
        return ((share > self.margin) & (share < 1 - self.margin)).all(-1)


class PriorNormal(Transform):
    """The map under which the prior of u is standard normal: no sample can leave the support.

    Args:
        prior: of theta.
    """

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior

    def forward(self, u: Tensor) -> Tensor:
        return self.prior.to(u.device).from_normal(u)

    def inverse(self, theta: Tensor) -> Tensor:
        """u with T(u) = theta."""
        return self.prior.to(theta.device).to_normal(theta)

    def log_abs_det(self, u: Tensor) -> Tensor:
        """log |dT/du|, summed over the last axis."""
        return self.prior.to(u.device).normal_slope(u).log().sum(-1)

    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta is in the support; (..., D) -> (...)."""
        return self.prior.to(theta.device).contains(theta)

    def resolves(self, theta: Tensor) -> Tensor:
        """Whether theta lies between the tails in which all u are one."""
        return self.prior.to(theta.device).within_tails(theta)
