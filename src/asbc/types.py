"""Structural types, for packages that come before what they describe."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from asbc.data.segments import Segments

    States = Tensor | Segments


class Samples(Protocol):
    """Posterior draws inside the prior's support."""

    @property
    def theta(self) -> Tensor: ...  # (contexts, n, dim)

    @property
    def leak_rate(self) -> Tensor: ...  # (contexts,) share of first draws outside the support


class Density(Protocol):
    """q(theta | x) as everybody but its training sees it; `Posterior` provides it.

    x is one trajectory (T, 3) per driver, or its segments where the model reads several.
    """

    def encode(self, states: "States") -> Tensor: ...  # (contexts, d)

    def sample(self, states: "States", n: int, rng: np.random.Generator) -> Samples: ...

    def log_prob(self, theta: Tensor, states: "States") -> Tensor: ...  # (contexts[, n])

    def log_prob_grid(self, theta: Tensor, states: "States") -> Tensor: ...  # (contexts, n)

    def member(self, key: int) -> "Density": ...
