"""Measures of how people drive, and how far simulated driving is from observed driving.

A forecast can score well on average and still brake in a way nobody does. Each measure reduces a
window to one number; the distribution over simulated windows is compared with the observed one.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats
from torch import Tensor

# Beyond these the measure carries no meaning (nobody is closing in, or the vehicle stands), and
# an unbounded value would decide every distance between distributions.
LONGEST_TTC = 30.0  # s
LONGEST_HEADWAY = 10.0  # s
HARD_BRAKING = -3.0  # m/s^2

MEASURES = {
    "min_ttc": "minimum time to collision (s)",
    "time_headway": "median time headway (s)",
    "strongest_braking": "lowest acceleration (m/s²)",
    "hard_braking": "share of steps below -3 m/s²",
}


def min_time_to_collision(gap: Tensor, approach_rate: Tensor) -> Tensor:
    """Smallest gap / closing speed over the last axis (s), at most `LONGEST_TTC`.

    Example:
        >>> min_time_to_collision(torch.tensor([20.0, 10.0]), torch.tensor([-1.0, 2.0]))
        tensor(5.)
    """
    closing = approach_rate > 0
    ttc = torch.where(closing, gap / approach_rate.clamp(min=1e-6), LONGEST_TTC)
    return ttc.clamp(0, LONGEST_TTC).amin(dim=-1)


def time_headway(gap: Tensor, speed: Tensor) -> Tensor:
    """Median over the last axis of net gap / speed (s), at most `LONGEST_HEADWAY`.

    Example:
        >>> time_headway(torch.tensor([20.0, 30.0, 5.0]), torch.tensor([10.0, 10.0, 0.0]))
        tensor(3.)
    """
    headway = (gap.clamp(min=0) / speed.clamp(min=1e-6)).clamp(max=LONGEST_HEADWAY)
    return headway.median(dim=-1).values


def hard_braking_share(acceleration: Tensor) -> Tensor:
    """Share of the last axis' steps with acceleration below `HARD_BRAKING`.

    Example:
        >>> hard_braking_share(torch.tensor([-4.0, 0.0, 1.0, -3.5]))
        tensor(0.5000)
    """
    return (acceleration < HARD_BRAKING).to(acceleration.dtype).mean(dim=-1)


def driving_measures(
    gap: Tensor, speed: Tensor, approach_rate: Tensor, acceleration: Tensor
) -> dict[str, Tensor]:
    """All measures of trajectories whose last axis is time."""
    return {
        "min_ttc": min_time_to_collision(gap, approach_rate),
        "time_headway": time_headway(gap, speed),
        "strongest_braking": acceleration.amin(dim=-1),
        "hard_braking": hard_braking_share(acceleration),
    }


def compare(
    simulated: Mapping[str, ArrayLike], observed: Mapping[str, ArrayLike]
) -> dict[str, dict[str, float]]:
    """Means and distances between the simulated and observed distribution of each measure.

    `wasserstein` is in the measure's unit; `ks` is the largest difference of the two distribution
    functions, between 0 and 1.
    """
    return {name: _compare_one(simulated[name], observed[name]) for name in observed}


def _compare_one(simulated: ArrayLike, observed: ArrayLike) -> dict[str, float]:
    ours, theirs = np.asarray(simulated).ravel(), np.asarray(observed).ravel()
    return {
        "simulated_mean": float(ours.mean()),
        "observed_mean": float(theirs.mean()),
        "wasserstein": float(stats.wasserstein_distance(ours, theirs)),
        "ks": _kolmogorov_smirnov(ours, theirs),
    }


def _kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> float:
    # scipy's ks_2samp also wants a p-value, which means nothing for correlated windows.
    points = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (first, second)]
    return float(np.abs(below[0] - below[1]).max())
