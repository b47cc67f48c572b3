"""What the design may choose from, and what it asks of the posterior model."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.design.bank import LeaderBank
from asbc.simulator import Prior

# Points of the prior's quantile grid behind `theta_scale`; deterministic, no draws.
QUANTILES = 2048


class Samples(Protocol):
    """Posterior draws inside the prior's support."""

    @property
    def theta(self) -> Tensor: ...  # (contexts, n, dim)

    @property
    def leak_rate(self) -> Tensor: ...  # (contexts,) share of first draws outside the support


class Member(Protocol):
    """One dropout realisation of the posterior: a proper density."""

    def log_prob_grid(self, theta: Tensor, states: Tensor) -> Tensor: ...  # (contexts, n)


class PosteriorModel(Protocol):
    """The current posterior as the design sees it."""

    def sample(self, states: Tensor, n: int, rng: np.random.Generator) -> Samples: ...

    def log_prob_grid(self, theta: Tensor, states: Tensor) -> Tensor: ...  # (contexts, n)

    def member(self, key: int) -> Member: ...


@dataclass(frozen=True)
class DesignSpace:
    """The prior, the leader windows and the observed trajectories a run designs with."""

    prior: Prior
    bank: LeaderBank
    contexts: Tensor  # (trajectories, steps, 3), X_sub: a fixed subset of the training split
    seed: int

    @property
    def theta_scale(self) -> Tensor:
        """(dim,) prior standard deviations: the diagonal of the paper's Sigma_theta."""
        grid = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
        return self.prior.icdf(grid[:, None].expand(-1, self.prior.dim)).double().std(dim=0)
