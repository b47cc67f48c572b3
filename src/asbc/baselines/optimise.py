"""Minimisers for many problems at once, inside a box."""

from collections.abc import Callable

import torch
from torch import Tensor

# Starts are kept this share of the box away from its sides, where the logit is flat.
MARGIN = 1e-3


def minimise(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    low: Tensor,
    high: Tensor,
    steps: int,
    learning_rate: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """Best points (problem, dim) and losses (problem,) seen by Adam on the logit of the box.

    Args:
        loss: points (problem, dim) to losses (problem,), each of its own point only.
        start: (problem, dim) inside the box.
        low, high: (dim,) the box.
        steps: gradient steps.
        learning_rate: of the first step; falls to 0 along a cosine.
    """
    share = ((start - low) / (high - low)).clamp(MARGIN, 1 - MARGIN)
    position = torch.logit(share.double()).requires_grad_()
    adam = torch.optim.Adam([position], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    best, least = start.clone(), torch.full((len(start),), torch.inf, dtype=torch.float64)
    for _ in range(steps):
        point = low + (high - low) * torch.sigmoid(position).to(start.dtype)
        value = loss(point)
        better = value.detach() < least
        least = torch.where(better, value.detach().double(), least)
        best = torch.where(better[:, None], point.detach(), best)
        adam.zero_grad()
        value.sum().backward()
        assert position.grad is not None
        # One diverging problem must not stop the others.
        position.grad.nan_to_num_(0.0, 0.0, 0.0)
        adam.step()
        schedule.step()
    return best, least


def fit_hyperparameters(
    log_likelihood: Callable[[Tensor], Tensor],
    problems: int,
    centre: Tensor,
    low: Tensor,
    high: Tensor,
    steps: int,
) -> Tensor:
    """Maximum-likelihood hyperparameters (problem, p) in a box of positive numbers.

    Args:
        log_likelihood: hyperparameters (problem, p) to (problem,).
        problems: how many are fitted side by side.
        centre: (p,) where to start.
        low, high: (p,) the box.
        steps: gradient steps, on the log scale.
    """
    best, _ = minimise(
        lambda log_hyper: -log_likelihood(log_hyper.exp()),
        centre.log().expand(problems, -1),
        low.log(),
        high.log(),
        steps,
    )
    return best.exp()
