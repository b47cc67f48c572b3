"""What happens to amortized draws before they are written: nothing, or importance weighting."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from asbc.calibration.importance import log_weights, resample, smooth
from asbc.calibration.model import Model
from asbc.data.pairset import PairSet
from asbc.evaluation.streams import RowStreams
from asbc.utils.checks import InputError
from asbc.utils.random import stream
from asbc.utils.stopwatch import Stopwatch


class Refined(NamedTuple):
    """Draws of a chunk of drivers, and how each driver got them."""

    theta: Tensor  # (driver, draw, dim)
    leak_rate: Tensor  # (driver,)
    route: np.ndarray  # (driver,) "amortized", "psis" or "nuts"
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
    """Draws weighted by the exact posterior and resampled.

    Args:
        proposals: network draws that are weighted per driver.
    """

    proposals: int = 2000

    def __post_init__(self) -> None:
        # Fewer leave no tail to fit a Pareto distribution to.
        if self.proposals < 100:
            raise InputError(f"refine.proposals={self.proposals}; expected at least 100")

    def __call__(
        self, model: Model, pairs: PairSet, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        with watch("amortized"):
            theta, leak_rate = model.sample(pairs, self.proposals, seed)
        with watch("psis"):
            weight = log_weights(model.posterior, model.simulator, theta, model.contexts(pairs))
            weighted = smooth(weight, leak_rate)
            theta = resample(theta, weighted.weights, samples, keyed(pairs, seed, "resample"))
        columns = {
            "k_hat": weighted.k_hat,
            "effective_draws": weighted.effective_draws,
            "log_evidence": weighted.log_evidence,
            "log_evidence_error": weighted.log_evidence_error,
        }
        numbers = {name: value.numpy() for name, value in columns.items()}
        return Refined(theta, leak_rate, np.full(len(pairs), "psis", dtype=object), numbers)


def keyed(pairs: PairSet, seed: int, purpose: str) -> RowStreams:
    """A stream of random numbers for each pair, whatever other pairs there are."""
    return RowStreams([stream(seed, purpose, name) for name in pairs.pair_id])
