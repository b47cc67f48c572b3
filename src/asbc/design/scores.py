"""The two scores that a candidate pair is ranked by: uncertainty of theta, place of its window."""

import torch
from torch import Tensor


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

    Args:
        features: (windows, features) standardised leader features, no window twice.
        neighbours: how many nearest windows to average over (all others if there are fewer).
        epsilon: bounds rho where the neighbours coincide.
    """
    features = features.double()
    distance = torch.cdist(
        features, features, compute_mode="donot_use_mm_for_euclid_dist"
    ).fill_diagonal_(torch.inf)
    neighbours = min(neighbours, len(features) - 1)
    if neighbours < 1:
        return features.new_ones(len(features))
    nearest = distance.topk(neighbours, dim=1, largest=False).values
    return 1 / (epsilon + nearest.mean(dim=1))
