"""Proper scores of a few draws: unbiased in their number, and with gradients.

The scores of reports (`asbc.evaluation.scores`) are those of the n draws themselves: they are
larger, by a share 1/n of the spread, than the score of the law that the draws come from. Trained
on 16 draws, a law would learn to be too narrow. Here the spread is divided by n (n - 1), the
number of pairs of different draws: the mean over draws is the score of their law for every n.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def energy_score(samples: Tensor, observed: Tensor) -> Tensor:
    """Energy Score of each window taken as one vector of steps, (window,).

    mean_i |y_i - y| - 1 / (2 n (n - 1)) sum_ij |y_i - y_j|

    Args:
        samples: (window, draw, step), two draws or more.
        observed: (window, step).

    Example:
        >>> energy_score(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[1.0]]))
        tensor([0.])
    """
    count = samples.shape[1]
    accuracy = _norm(samples - observed.unsqueeze(1)).mean(1)
    first, second = torch.triu_indices(count, count, offset=1)
    between = _norm(samples[:, first] - samples[:, second]).sum(1)
    return accuracy - between / (count * (count - 1))


def crps(samples: Tensor, observed: Tensor) -> Tensor:
    """Continuous ranked probability score of each step, averaged over steps, (window,).

    Args:
        samples: (window, draw, step), two draws or more.
        observed: (window, step).

    Example:
        >>> crps(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[1.0]]))
        tensor([0.])
    """
    count = samples.shape[1]
    accuracy = (samples - observed.unsqueeze(1)).abs().mean(1)
    # sum_(i < j) |x_i - x_j| = sum_k (2k - n - 1) x_(k)
    weight = 2 * torch.arange(1, count + 1).to(samples) - (count + 1)
    ordered = samples.sort(dim=1).values
    between = (weight[:, None] * (ordered - ordered.mean(1, keepdim=True))).sum(1)
    return (accuracy - between / (count * (count - 1))).mean(-1)


PROPER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"energy": energy_score, "crps": crps}


def _norm(difference: Tensor) -> Tensor:
    """Euclidean norms over the last axis; where one is 0, so is its gradient."""
    return torch.linalg.vector_norm(difference, dim=-1)


class _Bounded(torch.autograd.Function):
    """The identity, whose gradient is bounded draw by draw."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(theta)
        ctx.limit = limit
        return theta.view_as(theta)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (theta,), grad = ctx.saved_tensors, grads[0]
        size = (grad * theta).norm(dim=-1, keepdim=True)
        scaled = grad * (ctx.limit / size.clamp_min(ctx.limit))
        return torch.where(size.isfinite(), scaled, 0.0), None


def bounded_gradient(theta: Tensor, limit: float) -> Tensor:
    """theta (..., D) itself; the gradient of each draw's logarithms has at most the norm `limit`.

    With a gap of a metre or two a law brakes and accelerates in turn, as hard as it may: an
    explicit time step is too long for it, and over 50 of them its derivative grows without bound.
    It says nothing about the driver, and one such draw would outweigh all others.
    """
    return _Bounded.apply(theta, limit)
