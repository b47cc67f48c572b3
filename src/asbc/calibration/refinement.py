"""What happens to amortized draws before they are written: nothing, or importance weighting."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from asbc.calibration.importance import resample
from asbc.calibration.model import Model, keyed
from asbc.calibration.weighting import Weighting
from asbc.data.pairset import PairSet
from asbc.utils.stopwatch import Stopwatch


class Refined(NamedTuple):
    """Draws of a chunk of drivers, and how each driver got them."""

    theta: Tensor  # (driver, draw, dim)
    leak_rate: Tensor  # (driver,)
    route: np.ndarray  # (driver,) "amortized", "psis", "adapted" or "nuts"
    columns: dict[str, np.ndarray]  # diagnostics, each (driver,)


class Refinement(Protocol):
    """One way from contexts to draws."""

    def __call__(
        self, model: Model, pairs: PairSet, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """`samples` draws for each pair; `watch` learns what each stage cost."""
        ...


@dataclass(frozen=True)
class NoRefinement:
    """The network's draws as they are: one forward pass per driver."""

    def __call__(
        self, model: Model, pairs: PairSet, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        with watch("amortized"):
            theta, leak_rate = model.sample(pairs, samples, seed)
        return Refined(theta, leak_rate, np.full(len(pairs), "amortized", dtype=object), {})


@dataclass(frozen=True, kw_only=True)
class PsisRefinement:
    """Draws weighted by the exact posterior, drawn again where necessary, and resampled.

    Args:
        weighting: how draws get their weights.
    """

    weighting: Weighting = field(default_factory=Weighting)

    def __call__(
        self, model: Model, pairs: PairSet, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        weighted = self.weighting(model, pairs, seed, watch)
        found = weighted.importance
        with watch("psis"):
            rng = keyed(pairs, seed, "resample")
            theta = resample(weighted.theta, found.weights, samples, rng)
        columns = {
            "k_hat_network": weighted.network_k_hat,
            "k_hat": found.k_hat,
            "effective_draws": found.effective_draws,
            "log_evidence": found.log_evidence,
            "log_evidence_error": found.log_evidence_error,
        }
        numbers = {name: value.numpy() for name, value in columns.items()}
        route = np.where(weighted.adapted.numpy(), "adapted", "psis").astype(object)
        return Refined(theta, weighted.leak_rate, route, numbers)
