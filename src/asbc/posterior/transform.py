"""Element-wise bijections theta = T(u) from unconstrained to physical parameters."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asbc.utils.checks import InputError


class SupportsBox(Protocol):
    """Anything with a feasible box, e.g. `asbc.simulator.Prior`."""

    low: Tensor
    high: Tensor


class SupportsNormal(Protocol):
    """Anything with coordinates that are standard normal under it, e.g. `asbc.simulator.Prior`."""

    def from_normal(self, u: Tensor) -> Tensor: ...

    def to_normal(self, theta: Tensor) -> Tensor: ...

    def normal_slope(self, u: Tensor) -> Tensor: ...

    def contains(self, theta: Tensor) -> Tensor: ...


class Softplus(nn.Module):
    """The paper's transform theta = softplus(u) + epsilon: positive, but not bounded above."""

    def __init__(self, epsilon: float = 1e-4) -> None:
        super().__init__()
        if epsilon <= 0:
            raise InputError(f"softplus epsilon is {epsilon}, expected a positive value")
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


class Bounded(nn.Module):
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
                f"bounded transform needs finite low < high, got {low.tolist()}, {high.tolist()}"
            )
        self.register_buffer("low", low.float())
        self.register_buffer("high", high.float())

    @classmethod
    def from_prior(cls, prior: SupportsBox) -> "Bounded":
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


class PriorNormal(nn.Module):
    """The map under which the prior of u is standard normal: no sample can leave the support.

    Args:
        prior: of theta.
    """

    def __init__(self, prior: SupportsNormal) -> None:
        super().__init__()
        self.prior = prior

    def forward(self, u: Tensor) -> Tensor:
        return self.prior.from_normal(u)

    def inverse(self, theta: Tensor) -> Tensor:
        """u with T(u) = theta."""
        return self.prior.to_normal(theta)

    def log_abs_det(self, u: Tensor) -> Tensor:
        """log |dT/du|, summed over the last axis."""
        return self.prior.normal_slope(u).log().sum(-1)

    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta is in the support; (..., D) -> (...)."""
        return self.prior.contains(theta)
