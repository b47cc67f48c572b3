"""Training weights for simulations whose parameters did not come from the prior.

The paper's loss weighs all simulations alike, so q fits the posterior under the proposal. The
importance correction weighs each by prior / proposal density, which brings the prior's posterior
back at the price of a smaller effective sample. It corrects the proposal's density only: which
candidates the acquisition then picks has no density to divide by.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from asbc.errors import InputError


def uniform_weights(log_ratio: Tensor) -> Tensor:
    """Weight 1 for every simulation: the paper's loss."""
    return torch.ones_like(log_ratio)


def importance_weights(log_ratio: Tensor) -> Tensor:
    """Self-normalised importance weights with mean 1, truncated at sqrt(n) times their mean.

    The truncation point is Ionides' (2008, J. Comput. Graph. Stat. 17:295): the estimate stays
    consistent while no single simulation can dominate the loss.
    """
    weights = torch.softmax(log_ratio.double(), dim=0) * len(log_ratio)
    truncated = weights.clamp(max=len(log_ratio) ** 0.5)
    return (truncated / truncated.mean()).to(log_ratio.dtype)


def effective_sample_size(weights: Tensor) -> float:
    """Kish's effective number of simulations behind weighted ones.

    Example:
        >>> effective_sample_size(torch.tensor([1.0, 1.0, 0.0, 0.0]))
        2.0
    """
    weights = weights.double()
    return float(weights.sum() ** 2 / weights.square().sum())


CORRECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": uniform_weights,
    "importance": importance_weights,
}


def correction(name: str) -> Callable[[Tensor], Tensor]:
    """The weighting called `name` in the config."""
    if name not in CORRECTIONS:
        raise InputError(
            f"acquisition.correction={name}; expected one of {', '.join(CORRECTIONS)}"
        )
    return CORRECTIONS[name]
