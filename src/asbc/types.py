"""Structural types, for packages that come before what they describe."""

from typing import Protocol

import numpy as np
from torch import Tensor


class Samples(Protocol):
    """Posterior draws inside the prior's support."""

    @property
    def theta(self) -> Tensor: ...  # (contexts, n, dim)

    @property
    def leak_rate(self) -> Tensor: ...  # (contexts,) share of first draws outside the support


class Density(Protocol):
    """q(theta | trajectory) as everybody but its training sees it; `Posterior` provides it."""

    def encode(self, states: Tensor) -> Tensor: ...  # (contexts, d)

    def sample(self, states: Tensor, n: int, rng: np.random.Generator) -> Samples: ...

    def log_prob(self, theta: Tensor, states: Tensor) -> Tensor: ...  # (contexts[, n])

    def log_prob_grid(self, theta: Tensor, states: Tensor) -> Tensor: ...  # (contexts, n)

    def member(self, key: int) -> "Density": ...
