"""Network draws weighted by the exact posterior; where they miss it, drawn again until they do."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.simulator.weighted_draws import (
    Importance,
    improve,
    log_weights,
    smooth,
    unreliable,
)
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch
from asbc.utils.random import keyed


class Weighted(NamedTuple):
    """Draws of a chunk of drivers with their weights."""

    theta: Tensor  # (driver, draw, dim)
    importance: Importance
    leak_rate: Tensor  # (driver,) of the network
    network_k_hat: Tensor  # (driver,) before any adaptation
    adapted: Tensor  # (driver,) bool


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

    def __call__(self, model: Model, pairs: Pairs, seed: int, watch: Stopwatch) -> Weighted:
        """Weighted draws of each pair or driver; `watch` learns what each stage cost."""
        states, names = model.contexts(pairs), model.names(pairs)
        with watch("amortized"):
            theta, leak_rate = model.sample(pairs, self.proposals, seed)
        with watch("psis"):
            weight = log_weights(model.posterior, model.simulator, theta, states)
            found = smooth(weight, leak_rate)
        network_k_hat = found.k_hat
        poor = unreliable(found, self.effective_draws)
        adapted = poor if self.adaptive_rounds else torch.zeros_like(poor)
        with watch("adapted"):
            theta, found = improve(
                model.simulator,
                theta,
                weight,
                found,
                states,
                self.adaptive_rounds,
                self.effective_draws,
                lambda round, rows: keyed(
                    [names[i] for i in rows.tolist()], seed, f"adapt {round}"
                ),
            )
        return Weighted(theta, found, leak_rate, network_k_hat, adapted)
