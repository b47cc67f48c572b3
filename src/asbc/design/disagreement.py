"""Where q is wrong: disagreement of its dropout members, and a surrogate that needs no simulation.

At a pair (theta, window) that was simulated, the spread of log q(theta | x) over the members tells
how far q may be from the exact posterior there. A ridge regression on the pairs that are kept
predicts it from parameters and leader features alone, so that candidates need not be simulated.
Then pairs are chosen at random with known probabilities, which weights undo: no score can bias q.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.design.proposal import DesignSpace
from asbc.design.simulations import Simulations
from asbc.types import Density
from asbc.utils.processes import shared_map
from asbc.utils.random import key, stream

# Of the features' variance: the penalty of the regression, in pairs.
RIDGE = 10.0
# Predicted disagreement is cut to this range of its median, so that no candidate dominates.
LEAST, MOST = 0.25, 4.0


class Surrogate(NamedTuple):
    """A ridge regression of log disagreement on a pair's quadratic features."""

    centre: Tensor  # (features,)
    scale: Tensor
    slope: Tensor
    level: float
    fit: float  # correlation of predicted and measured log disagreement on pairs left out

    def predict(self, z: Tensor, leader: Tensor) -> Tensor:
        """Relative disagreement (n,), its median about 1, of parameters and windows."""
        features = (pair_features(z, leader) - self.centre) / self.scale
        return torch.exp(features @ self.slope).clamp(LEAST, MOST)


def pair_features(z: Tensor, leader: Tensor) -> Tensor:
    """Parameters, leader features and all their products (n, features), float64.

    Args:
        z: (n, dim) parameters, standard normal under the prior.
        leader: (n, features) standardised, cut to +-3: a rare leader has no leverage.
    """
    first = torch.cat([z.double(), leader.double().clamp(-3, 3)], dim=1)
    row, column = torch.triu_indices(first.shape[1], first.shape[1])
    return torch.cat([first, first[:, row] * first[:, column]], dim=1)


def measured_disagreement(
    posterior: Density, pairs: Simulations, members: int, seed: int, round: int
) -> Tensor:
    """Log variance over dropout members of log q(theta | x), (n,) float64."""
    keys = [key(seed, "disagreement", round, m) for m in range(members)]
    log_q = torch.stack(
        shared_map(lambda k: posterior.member(k).log_prob(pairs.theta, pairs.observed), keys)
    ).double()
    return torch.log(log_q.var(dim=0) + 1e-6)


def fit_surrogate(
    posterior: Density,
    kept: Simulations,
    space: DesignSpace,
    round: int,
    members: int,
    pairs: int,
) -> Surrogate:
    """The surrogate of the present posterior.

    Args:
        posterior: whose members disagree.
        kept: simulations to learn from.
        space: leader features, prior and the run's seed.
        round: keys the members and the choice of pairs.
        members: dropout members.
        pairs: how many of the kept simulations are looked at.
    """
    order = stream(space.seed, "surrogate", round).permutation(len(kept))[:pairs]
    some = kept.take(torch.from_numpy(order))
    target = measured_disagreement(posterior, some, members, space.seed, round)
    z = space.prior.to_normal(some.theta)
    features = pair_features(z, space.bank.window_features[some.window_id])
    usable = torch.isfinite(target)
    features, target = features[usable], target[usable]
    centre, scale = features.mean(0), features.std(0).clamp_min(1e-9)
    standard = (features - centre) / scale
    level = float(target.mean())
    left_out = len(target) // 5
    trial = _ridge(standard[left_out:], target[left_out:] - level)
    fit = _correlation(standard[:left_out] @ trial, target[:left_out])
    return Surrogate(centre, scale, _ridge(standard, target - level), level, fit)


def inclusion(score: Tensor, n: int, uniform_share: float) -> Tensor:
    """Probabilities (pool,) with sum n of being among n picks.

    pi_i = n (eps / N + (1 - eps) f_i / sum f), cut at 1 and what is cut off shared out again.

    Args:
        score: f, positive.
        n: picks, at most as many as there are.
        uniform_share: eps; weights are at most 1 / eps.
    """
    score = score.double()
    share = uniform_share / len(score) + (1 - uniform_share) * score / score.sum()
    probability = n * share
    while bool((probability > 1).any()):
        certain = probability >= 1
        rest = n - int(certain.sum())
        probability = torch.where(certain, 1.0, share * rest / share[~certain].sum())
    return probability


def systematic_picks(probability: Tensor, rng: np.random.Generator) -> Tensor:
    """Indices of a sample in which i is included with its probability, in random order.

    Systematic sampling of a shuffled pool (Madow 1949): the number of picks is the sum of the
    probabilities, which has to be whole.
    """
    order = torch.from_numpy(rng.permutation(len(probability)))
    total = probability[order].double().cumsum(0)
    picks = round(float(total[-1]))
    points = torch.from_numpy(np.arange(picks) + rng.random()).clamp(max=float(total[-1]) - 1e-9)
    chosen = order[torch.searchsorted(total, points, right=True)]
    return chosen[torch.from_numpy(rng.permutation(picks))]


def _ridge(features: Tensor, target: Tensor) -> Tensor:
    gram = features.T @ features
    gram.diagonal().add_(RIDGE)
    return torch.linalg.solve(gram, features.T @ target)


def _correlation(a: Tensor, b: Tensor) -> float:
    if len(a) < 2:
        return float("nan")
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])
