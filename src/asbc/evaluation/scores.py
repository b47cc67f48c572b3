"""Bootstrap intervals of window means, resampling pairs.

Windows of one pair share a driver and a posterior, so resampling windows would give intervals that
are too narrow: whole pairs are drawn with replacement.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

COVERAGE_LEVELS = (0.5, 0.8, 0.95)


def rmse_of_mean(samples: Tensor, observed: Tensor) -> Tensor:
    """Root mean squared error of the predictive mean over the window's steps, (window,).

    Example:
        >>> rmse_of_mean(torch.tensor([[[1.0, 4.0], [3.0, 4.0]]]), torch.tensor([[2.0, 0.0]]))
        tensor([2.8284], dtype=torch.float64)
    """
    mean = samples.mean(dim=1, dtype=torch.float64)
    return (mean - observed).square().mean(dim=-1).sqrt()


def energy_score(samples: Tensor, observed: Tensor) -> Tensor:
    """The paper's Energy Score of each window taken as one vector of steps, (window,).

    mean_i |y_i - y| - 1/(2 n^2) sum_ij |y_i - y_j|, with the distances between samples from one
    Gram matrix per window.

    Example:
        >>> energy_score(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[1.0]]))
        tensor([0.5000], dtype=torch.float64)
    """
    count = samples.shape[1]
    to_observed = torch.linalg.vector_norm(samples - observed.unsqueeze(1), dim=-1)
    accuracy = to_observed.mean(dim=1, dtype=torch.float64)
    spread = _sum_of_distances(samples) / (2 * count**2)
    return accuracy - spread


def _sum_of_distances(samples: Tensor) -> Tensor:
    """sum_ij |y_i - y_j| per window, (window,) float64."""
    # Centring first keeps the cancellation in |a|^2 + |b|^2 - 2ab relative to the spread of the
    # samples, not to their level (a gap of 40 m with a spread of 0.1 m).
    centred = samples - samples.mean(dim=1, keepdim=True)
    square = centred.square().sum(dim=-1)
    distance = torch.baddbmm(
        square.unsqueeze(1) + square.unsqueeze(2), centred, centred.transpose(1, 2), alpha=-2
    )
    distance.diagonal(dim1=1, dim2=2).zero_()
    return distance.clamp_(min=0).sqrt_().sum(dim=(1, 2), dtype=torch.float64)


def sorted_by_step(samples: Tensor) -> Tensor:
    """The samples of each step in ascending order, (window, step, sample)."""
    # numpy sorts float32 with vector instructions, several times faster than torch on CPU.
    by_step = np.ascontiguousarray(samples.transpose(1, 2).numpy())
    by_step.sort(axis=-1)
    return torch.from_numpy(by_step)


def crps(ordered: Tensor, observed: Tensor) -> Tensor:
    """Continuous ranked probability score averaged over the steps, (window,).

    Args:
        ordered: samples as `sorted_by_step` returns them.
        observed: (window, step).

    Example:
        >>> crps(torch.tensor([[[0.0, 2.0]]]), torch.tensor([[1.0]]))
        tensor([0.5000], dtype=torch.float64)
    """
    count = ordered.shape[-1]
    accuracy = (ordered - observed.unsqueeze(-1)).abs().mean(dim=-1, dtype=torch.float64)
    # sum_ij |x_i - x_j| = 2 sum_k (2k - n - 1) x_(k); centring keeps float32 exact enough.
    rank_weight = 2 * torch.arange(1, count + 1, dtype=ordered.dtype) - (count + 1)
    centred = ordered - ordered[..., count // 2, None]
    spread = (centred @ rank_weight).double() / count**2
    return (accuracy - spread).mean(dim=-1)


def central_coverage(ordered: Tensor, observed: Tensor, level: float) -> Tensor:
    """Share of steps whose observation lies in the central interval of that level, (window,).

    The ends are the linearly interpolated sample quantiles.
    """
    low, high = (_quantile(ordered, (1 + sign * level) / 2) for sign in (-1, 1))
    return ((observed >= low) & (observed <= high)).double().mean(dim=-1)


def _quantile(ordered: Tensor, probability: float) -> Tensor:
    position = probability * (ordered.shape[-1] - 1)
    below = int(position)
    above = min(below + 1, ordered.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], position - below)


def pit(ordered: Tensor, observed: Tensor) -> Tensor:
    """Probability integral transform of every step, (window, step): uniform when calibrated.

    A tie with some samples (a standing vehicle) counts half of them.
    """
    ordered = ordered.contiguous()
    target = observed.unsqueeze(-1).to(ordered.dtype).contiguous()
    below = torch.searchsorted(ordered, target, right=False)
    up_to = torch.searchsorted(ordered, target, right=True)
    return ((below + up_to).double() / (2 * ordered.shape[-1])).squeeze(-1)


def score_all(samples: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Every score of one variable by name, each (window,).

    `pit` is the transform at the window's last step, the hardest one to predict.
    """
    ordered = sorted_by_step(samples)
    scores = {
        "rmse": rmse_of_mean(samples, observed),
        "es": energy_score(samples, observed),
        "crps": crps(ordered, observed),
        "pit": pit(ordered[:, -1:], observed[:, -1:])[:, 0],
    }
    for level in COVERAGE_LEVELS:
        scores[coverage_name(level)] = central_coverage(ordered, observed, level)
    return scores


def coverage_name(level: float) -> str:
    """The column name of a coverage level.

    Example:
        >>> coverage_name(0.95)
        'coverage95'
    """
    return f"coverage{round(100 * level)}"


def pair_weights(pairs: int, replicates: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How often each pair appears in each bootstrap data set, (replicate, pair)."""
    return rng.multinomial(pairs, np.full(pairs, 1 / pairs), size=replicates).astype(np.float64)


def bootstrap_interval(
    values: ArrayLike,
    pair: ArrayLike,
    replicates: int,
    rng: np.random.Generator,
    level: float = 0.95,
) -> NDArray[np.float64]:
    """Percentile interval of the mean over windows when pairs are resampled.

    Args:
        values: (window,) or (window, column).
        pair: the pair each window belongs to, any labels.
        replicates: number of bootstrap data sets.
        rng: source of the resampling.
        level: coverage of the interval.

    Returns:
        (2,) or (2, column): lower and upper ends.
    """
    table = np.asarray(values, dtype=np.float64)
    columns = table.reshape(len(table), -1)
    labels, index = np.unique(np.asarray(pair), return_inverse=True)
    count = np.bincount(index, minlength=len(labels)).astype(np.float64)
    total = np.zeros((len(labels), columns.shape[1]))
    np.add.at(total, index, columns)
    weight = pair_weights(len(labels), replicates, rng)
    means = (weight @ total) / (weight @ count)[:, None]
    ends = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ends.reshape(2, *table.shape[1:])
