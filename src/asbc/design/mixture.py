"""The proposal of targeted design: prior and pooled posterior of the observed drivers, mixed.

The pooled posterior enters as the normal law of its draws, in the coordinates z in which the prior
is standard normal. The mixture's density is then known exactly and cheap, for draws of every
round, which weights over several rounds need. One normal law, and not one for each driver: those
who will be calibrated are like the observed ones, not the same.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.simulator import Prior
from asbc.types import Density
from asbc.utils.random import stream, uniform

# Added to the variances in z: a pool of very few draws still has a volume.
SMALLEST_VARIANCE = 0.02
# Uniform points stay this far inside the cube: half the spacing of a Sobol sequence's.
EDGE = 2.0**-31


class PooledProposal(NamedTuple):
    """share * prior + (1 - share) * normal law; the prior alone with a share of 1."""

    share: float
    mean: Tensor  # (dim,) float64
    factor: Tensor  # (dim, dim) lower Cholesky factor of the covariance

    def draw(self, points: Tensor, prior: Prior) -> Tensor:
        """theta (n, dim) of uniform points (n, dim + 1), whose last column chooses the part."""
        z = torch.special.ndtri(points[:, :-1])
        z = torch.where(points[:, -1:] < self.share, z, self.mean + z @ self.factor.T)
        return prior.from_normal(z).float().clamp(prior.low, prior.high)

    def log_ratio(self, z: Tensor) -> Tensor:
        """log density over that of the prior (n,), at coordinates z (n, dim) float64."""
        away = torch.linalg.solve_triangular(self.factor, (z - self.mean).T, upper=False).T
        log_pool = _log_normal(away) - self.factor.diagonal().log().sum()
        shares = z.new_tensor([self.share, 1 - self.share]).log()
        return torch.logaddexp(shares[0], shares[1] + log_pool - _log_normal(z))


class UniformPoints:
    """Points in the unit cube, by as many as are asked for, that fill it evenly or are random.

    A scrambled Sobol sequence has uniform points, each by itself, so that whatever is made of
    them follows the same law; together they leave no holes and no heaps.

    Args:
        dim: of the cube.
        sobol: a Sobol sequence; False: independent points.
        seed: of the scrambling or of the points.

    Example:
        >>> points = UniformPoints(2, True, seed=0)(64)
        >>> sorted((4 * points[:, 0]).floor().unique(return_counts=True)[1].tolist())
        [16, 16, 16, 16]
    """

    def __init__(self, dim: int, sobol: bool, seed: int) -> None:
        self._dim = dim
        self._rng = stream(seed, "points")
        sequence = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed % 2**31)
        self._sequence = sequence if sobol else None

    def __call__(self, n: int) -> Tensor:
        """The next n points, float64 and inside the open cube."""
        if self._sequence is None:
            points = uniform(self._rng, n, self._dim, dtype=torch.float64)
        else:
            points = self._sequence.draw(n, dtype=torch.float64)
        return points.clamp(EDGE, 1 - EDGE)


def prior_alone(prior: Prior) -> PooledProposal:
    """The warm-up's proposal."""
    unit = torch.eye(prior.dim, dtype=torch.float64)
    return PooledProposal(1.0, torch.zeros(prior.dim, dtype=torch.float64), unit)


def pool(
    posterior: Density,
    contexts: Tensor,
    share: float,
    draws: int,
    prior: Prior,
    rng: np.random.Generator,
) -> PooledProposal:
    """The proposal that follows from the present posteriors of observed contexts.

    Args:
        posterior: q.
        contexts: (drivers, steps, 3).
        share: of the prior.
        draws: of each driver's posterior.
        prior: of theta.
        rng: source of the draws.
    """
    theta = posterior.sample(contexts, draws, rng).theta.flatten(0, 1)
    z = prior.to_normal(theta).double()
    mean = z.mean(dim=0)
    covariance = (z - mean).T @ (z - mean) / max(len(z) - 1, 1)
    covariance.diagonal().add_(SMALLEST_VARIANCE)
    return PooledProposal(share, mean, torch.linalg.cholesky(covariance))


def log_balance(
    z: Tensor, proposals: Mapping[int, PooledProposal], counts: Mapping[int, int]
) -> Tensor:
    """log of sum_r (n_r / n) p_r over the prior (n,): all rounds as one mixture.

    Its inverse is the weight of the balance heuristic (Veach and Guibas 1995), which is at most
    n / n_0 if the n_0 simulations of the warm-up are from the prior.

    Args:
        z: (n, dim) coordinates in which the prior is standard normal.
        proposals: of each round.
        counts: simulations of each round.
    """
    total = sum(counts.values())
    terms = [proposals[r].log_ratio(z) + math.log(n / total) for r, n in counts.items()]
    return torch.logsumexp(torch.stack(terms), dim=0)


def _log_normal(z: Tensor) -> Tensor:
    return (-0.5 * z.square() - 0.5 * math.log(2 * math.pi)).sum(-1)
