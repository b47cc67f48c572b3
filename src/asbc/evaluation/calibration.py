"""Is a posterior right? Checks against true parameters, over many simulated drivers.

Shapes throughout: `truth` (driver, parameter), `draws` (driver, draw, parameter). Nothing here
knows how the draws were made, so the same checks serve networks, MCMC and exact posteriors.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asbc.utils.random import uniform

LEVELS = np.linspace(0, 1, 21)


def rank_statistics(truth: Tensor, draws: Tensor) -> Tensor:
    """Rank of each true parameter among its draws (Talts et al. 2018), (driver, parameter).

    Uniform on 0..number of draws when the posterior is right.
    """
    return (draws < truth.unsqueeze(1)).sum(dim=1)


def density_credibility(log_prob_truth: Tensor, log_prob_draws: Tensor) -> NDArray[np.float64]:
    """Mass of the smallest highest-density region that holds the truth, (driver,).

    Args:
        log_prob_truth: log q(truth | x), (driver,).
        log_prob_draws: log q(draw | x), (driver, draw).
    """
    return (log_prob_draws > log_prob_truth.unsqueeze(1)).double().mean(dim=1).numpy()


def tarp_credibility(
    truth: Tensor, draws: Tensor, low: Tensor, high: Tensor, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Share of draws nearer to a random point than the truth (TARP, Lemos et al. 2023), (driver,).

    Unlike density regions it can detect a posterior that is wrong in any direction, and it needs
    draws only. Points are uniform in the box [low, high], which also scales the distance.
    """
    width = high - low
    point = uniform(rng, len(truth), truth.shape[-1], dtype=truth.dtype)
    distance_truth = ((truth - low) / width - point).norm(dim=-1)
    distance_draws = ((draws - low) / width - point.unsqueeze(1)).norm(dim=-1)
    return (distance_draws < distance_truth.unsqueeze(1)).double().mean(dim=1).numpy()


def coverage_curve(
    credibility: NDArray[np.float64], levels: NDArray[np.float64] = LEVELS
) -> NDArray[np.float64]:
    """Share of drivers whose truth lies in the region of each level; the diagonal when right."""
    return (credibility[:, None] <= levels).mean(axis=0)


def contraction(draws: Tensor, prior_variance: Tensor) -> Tensor:
    """1 - posterior / prior variance, (driver, parameter): 0 nothing learned, 1 certain."""
    return 1 - draws.var(dim=1) / prior_variance


def recovery(truth: Tensor, draws: Tensor) -> dict[str, NDArray[np.float64]]:
    """How well the true parameters are found, each entry (parameter,).

    `correlation` and `rmse` of the posterior mean with the truth, `bias` (mean error), and the
    share of central 50%, 80% and 95% intervals that hold the truth. A method that gives every
    driver the same answer has no correlation: NaN.
    """
    mean = draws.mean(dim=1)
    result = {
        "correlation": _correlation(mean.double(), truth.double()),
        "rmse": (mean - truth).square().mean(dim=0).sqrt().double().numpy(),
        "bias": (mean - truth).mean(dim=0).double().numpy(),
    }
    for level in (0.5, 0.8, 0.95):
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
        low, high = torch.quantile(draws, ends, dim=1)
        inside = ((truth >= low) & (truth <= high)).double().mean(dim=0)
        result[f"coverage{round(100 * level)}"] = inside.numpy()
    return result


def _correlation(first: Tensor, second: Tensor) -> NDArray[np.float64]:
    first, second = first - first.mean(dim=0), second - second.mean(dim=0)
    return ((first * second).sum(dim=0) / (first.norm(dim=0) * second.norm(dim=0))).numpy()
