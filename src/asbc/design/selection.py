"""How candidates are scored and paired with windows, and the greedy choice among the pairs.

A parameter's score is its uncertainty over dropout members (eq. alpha_mc_dropout), a window's its
representativeness; the greedy choice takes the product less a penalty for what it has already.
"""

import numpy as np
import torch
from torch import Tensor

from asbc.design.proposal import DesignSpace
from asbc.errors import InputError
from asbc.types import Density
from asbc.utils.processes import shared_map
from asbc.utils.random import key


def uncertainty(log_density: Tensor, epsilon: float) -> Tensor:
    """The MC-dropout score alpha of each candidate, averaged over the contexts.

    alpha = mean_m log q_m + log(var_m log q_m + epsilon), the paper's eq. alpha_mc_dropout, with
    the variance over the members divided by their number as the mean is.

    Args:
        log_density: (members, contexts, candidates) log q of each candidate.
        epsilon: keeps the logarithm finite where all members agree.
    """
    log_density = log_density.double()
    variance = log_density.var(dim=0, correction=0)
    return (log_density.mean(dim=0) + torch.log(variance + epsilon)).mean(dim=0)


def member_uncertainty(
    theta: Tensor,
    round: int,
    posterior: Density,
    space: DesignSpace,
    members: int,
    epsilon: float,
) -> Tensor:
    """alpha (candidates,) over fresh dropout members and the observed subset, standardised."""
    keys = [key(space.seed, "member", round, m) for m in range(members)]
    log_density = torch.stack(
        shared_map(lambda k: posterior.member(k).log_prob_grid(theta, space.contexts), keys)
    )
    return standardise(uncertainty(log_density, epsilon))


def standardise(score: Tensor) -> Tensor:
    """Scores with mean 0 and variance 1 over the finite entries; -inf where not finite."""
    finite = torch.isfinite(score)
    kept = score[finite]
    # Equal scores rank nothing: all of them become 0 rather than rounding noise.
    spread = kept.std(correction=0) if len(kept) else score.new_tensor(1.0)
    scale = spread if spread > 1e-12 else spread.new_tensor(torch.inf)
    return torch.where(finite, (score - kept.mean()) / scale, -torch.inf)


def representativeness(features: Tensor, neighbours: int, epsilon: float) -> Tensor:
    """rho of each window: 1 / (epsilon + mean distance to its nearest other windows).

    Windows of the same features, such as leaders that stand, are one window here: they share the
    rho of that one, and are not each other's neighbours.

    Args:
        features: (windows, features) standardised leader features.
        neighbours: how many nearest windows to average over (all others if there are fewer).
        epsilon: bounds rho where the neighbours coincide.
    """
    features, place = features.double().unique(dim=0, return_inverse=True)
    distance = torch.cdist(
        features, features, compute_mode="donot_use_mm_for_euclid_dist"
    ).fill_diagonal_(torch.inf)
    neighbours = min(neighbours, len(features) - 1)
    if neighbours < 1:
        return features.new_ones(len(place))
    nearest = distance.topk(neighbours, dim=1, largest=False).values
    return (1 / (epsilon + nearest.mean(dim=1)))[place]


def score_quantiles(score: Tensor) -> dict[str, float]:
    """Quantiles of a pool's scores, for the log."""
    finite = score[torch.isfinite(score)].double()
    percents = (5, 50, 95, 99) if len(finite) else ()
    return {f"score_q{p:02d}": float(torch.quantile(finite, p / 100)) for p in percents}


def pair_up(n: int, pairs: int, counts: Tensor, rng: np.random.Generator) -> Tensor:
    """For each of n parameters, `pairs` different windows: (n, pairs) indices into `counts`.

    A window drawn twice is twice as likely to be chosen, so that pairs follow the mixture the
    windows were drawn from (weighted sampling without replacement by exponential keys).
    """
    pairs = min(pairs, len(counts))
    keys = torch.from_numpy(rng.standard_exponential((n, len(counts)), dtype=np.float32))
    return keys.div_(counts).topk(pairs, dim=1, largest=False).indices


class GreedyPicker:
    """Picks pairs one by one by score minus `gamma` times the diversity penalty (eq. joint_score).

    The penalty of a candidate is the mean kernel between it and the pairs picked so far, 0 while
    none is picked. A running sum of kernels makes a pick cost one pass over the pool. The picker
    remembers what it picked, so asking again continues the same greedy sequence. Ties go to the
    lowest index; no candidate is picked twice.

    Args:
        score: (candidates, pairs) value of each pair without the penalty; -inf is never picked.
        window: (candidates, pairs) row of `window_features` that each pair uses.
        theta: (candidates, dim) parameters, rescaled so that distances are comparable.
        window_features: (windows, features) standardised features of the leader windows.
        gamma: weight of the diversity penalty.
        tau_leader: temperature of the kernel in leader features.
        tau_theta: temperature of the kernel in parameters.
    """

    def __init__(
        self,
        score: Tensor,
        window: Tensor,
        theta: Tensor,
        window_features: Tensor,
        gamma: float,
        tau_leader: float,
        tau_theta: float,
    ) -> None:
        # numpy, on one thread: in many small operations torch's threads only get in the way.
        self._score = score.double().numpy().copy()
        self._window = window.numpy()
        self._theta = theta.double().numpy() / tau_theta
        self._features = window_features.double().numpy() / tau_leader
        self._gamma = gamma
        self._kernel_sum = np.zeros_like(self._score)
        self._scratch = np.empty_like(self._score)
        self._picked = 0

    def pick(self, n: int) -> Tensor:
        """Flat indices (candidate * pairs + pair) of the next `n` picks, best first."""
        return torch.tensor([self._pick_one() for _ in range(n)], dtype=torch.int64)

    def _pick_one(self) -> int:
        np.multiply(self._kernel_sum, -self._gamma / max(self._picked, 1), out=self._scratch)
        self._scratch += self._score
        index = int(self._scratch.argmax())  # the first of equal values
        if self._score.flat[index] == -np.inf:
            raise InputError(
                f"the pool has no candidate left after {self._picked} picks; raise "
                "acquisition.candidates or acquisition.pairs_per_theta, or lower "
                "training.pairs_per_round"
            )
        self._add_kernel_of(index)
        self._score.flat[index] = -np.inf
        self._picked += 1
        return index

    def _add_kernel_of(self, index: int) -> None:
        candidate, window = index // self._window.shape[1], self._window.flat[index]
        theta_distance = np.square(self._theta - self._theta[candidate]).sum(axis=1)
        leader_distance = np.square(self._features - self._features[window]).sum(axis=1)
        # mode="clip" skips a buffered copy; the indices are valid.
        np.take(leader_distance, self._window, out=self._scratch, mode="clip")
        self._scratch += theta_distance[:, None]
        np.negative(self._scratch, out=self._scratch)
        np.exp(self._scratch, out=self._scratch)
        self._kernel_sum += self._scratch
