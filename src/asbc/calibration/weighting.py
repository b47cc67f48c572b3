"""Network draws weighted by the exact posterior; where they miss it, drawn again until they do."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asbc.calibration.adaptive import adapt
from asbc.calibration.importance import RELIABLE_K_HAT, Importance, log_weights, smooth
from asbc.calibration.model import Model, keyed
from asbc.data.pairset import PairSet
from asbc.utils.checks import InputError
from asbc.utils.stopwatch import Stopwatch


class Weighted(NamedTuple):
    """Draws of a chunk of drivers with their weights."""

    theta: Tensor  # (driver, draw, dim)
    importance: Importance
    leak_rate: Tensor  # (driver,) of the network
    network_k_hat: Tensor  # (driver,) before any adaptation
    adapted: Tensor  # (driver,) bool

    @property
    def reliable(self) -> Tensor:
        """Whether weights and evidence can be trusted, (driver,)."""
        return self.importance.k_hat <= RELIABLE_K_HAT


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """How drivers get weighted draws.

    Args:
        proposals: draws weighted per driver.
        adaptive_rounds: times that proposals may learn from their own weights, for drivers whose
            draws are not good enough; 0 keeps the network's draws whatever they are worth.
        effective_draws: independent draws that the weighted ones must be worth; with k-hat, this
            is what good enough means.
    """

    proposals: int = 2000
    adaptive_rounds: int = 12
    effective_draws: float = 200.0

    def __post_init__(self) -> None:
        # Fewer leave no tail to fit a Pareto distribution to.
        if self.proposals < 100:
            raise InputError(f"refine.weighting.proposals={self.proposals}; expected at least 100")
        if self.adaptive_rounds < 0:
            raise InputError(
                f"refine.weighting.adaptive_rounds={self.adaptive_rounds}; expected 0 or more"
            )
        # About half of the proposals count when a Student-t meets a posterior of this kind.
        if self.effective_draws > self.proposals / 4:
            raise InputError(
                f"refine.weighting.effective_draws={self.effective_draws:g}; expected at most a "
                f"quarter of the {self.proposals} proposals"
            )

    def __call__(self, model: Model, pairs: PairSet, seed: int, watch: Stopwatch) -> Weighted:
        """Weighted draws of each pair; `watch` learns what each stage cost."""
        states = model.contexts(pairs)
        with watch("amortized"):
            theta, leak_rate = model.sample(pairs, self.proposals, seed)
        with watch("psis"):
            weight = log_weights(model.posterior, model.simulator, theta, states)
            found = smooth(weight, leak_rate)
        network_k_hat = found.k_hat
        poor = self._poor(found)
        adapted = poor.clone() if self.adaptive_rounds else torch.zeros_like(poor)
        with watch("adapted"):
            for round in range(self.adaptive_rounds):
                rows = torch.nonzero(poor).flatten()
                if not len(rows):
                    break
                rng = keyed(pairs.select(rows), seed, f"adapt {round}")
                fresh = adapt(model.simulator, theta[rows], weight[rows], states[rows], rng)
                theta[rows], weight[rows] = fresh
                again = smooth(fresh[1], torch.zeros(len(rows)))
                found = found.replace(rows, again)
                poor[rows] = self._poor(again)
        return Weighted(theta, found, leak_rate, network_k_hat, adapted)

    def _poor(self, found: Importance) -> Tensor:
        return ~((found.k_hat <= RELIABLE_K_HAT) & (found.effective_draws >= self.effective_draws))
