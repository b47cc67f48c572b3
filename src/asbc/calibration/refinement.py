"""What happens to the network's draws: nothing, importance weights, or NUTS where these fail."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.calibration.psis import Weighting
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.exact.statistics import segment_transitions, transitions
from asbc.simulator.weighted_draws import RELIABLE_K_HAT, resample
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch
from asbc.utils.random import keyed


class Refined(NamedTuple):
    """Draws of a chunk of drivers, and how each driver got them."""

    theta: Tensor  # (driver, draw, dim)
    leak_rate: Tensor  # (driver,)
    route: np.ndarray  # (driver,) "amortized", "psis", "adapted" or "nuts"
    columns: dict[str, np.ndarray]  # diagnostics, each (driver,)


class Refinement(Protocol):
    """One way from contexts to draws."""

    def __call__(
        self, model: Model, pairs: Pairs, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """`samples` draws for each pair or driver (`model.names`); `watch` learns what each
        stage cost."""
        ...


@dataclass(frozen=True)
class NoRefinement:
    """The network's draws as they are: one forward pass per driver."""

    def __call__(
        self, model: Model, pairs: Pairs, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        with watch("amortized"):
            theta, leak_rate = model.sample(pairs, samples, seed)
        return Refined(theta, leak_rate, np.full(len(theta), "amortized", dtype=object), {})


@dataclass(frozen=True, kw_only=True)
class PsisRefinement:
    """Draws weighted by the exact posterior, drawn again where necessary, and resampled.

    Args:
        weighting: how draws get their weights.
    """

    weighting: Weighting = field(default_factory=Weighting)

    def __call__(
        self, model: Model, pairs: Pairs, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        weighted = self.weighting(model, pairs, seed, watch)
        found = weighted.importance
        with watch("psis"):
            rng = keyed(model.names(pairs), seed, "resample")
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


@dataclass(frozen=True, kw_only=True)
class AutoRefinement:
    """Weighted draws for every driver; those whose k-hat stays too high get NUTS draws instead.

    Args:
        weighting: how draws get their weights.
        max_k_hat: drivers above it go to NUTS.
        drivers_at_once: drivers that NUTS samples side by side.
        nuts: settings of the sampler.
    """

    weighting: Weighting = field(default_factory=Weighting)
    max_k_hat: float = RELIABLE_K_HAT
    drivers_at_once: int = 20
    nuts: NutsSettings = field(default_factory=NutsSettings)

    def __post_init__(self) -> None:
        if self.drivers_at_once < 1:
            raise InputError(f"refine.drivers_at_once={self.drivers_at_once}; expected 1 or more")

    def __call__(
        self, model: Model, pairs: Pairs, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        psis = PsisRefinement(weighting=self.weighting)
        refined = psis(model, pairs, samples, seed, watch)
        hard = np.flatnonzero(~(refined.columns["k_hat"] <= self.max_k_hat))
        converged = np.full(len(refined.theta), None, dtype=object)
        if len(hard):
            theta, route = refined.theta.clone(), refined.route.copy()
            with watch("nuts"):
                chosen = model.select(pairs, hard)
                theta[torch.from_numpy(hard)], converged[hard] = self._sample(
                    model, chosen, samples, seed
                )
            route[hard] = "nuts"
            refined = refined._replace(theta=theta, route=route)
        return refined._replace(columns=refined.columns | {"nuts_converged": converged})

    def _sample(
        self, model: Model, pairs: Pairs, samples: int, seed: int
    ) -> tuple[torch.Tensor, np.ndarray]:
        """NUTS draws (driver, draw, dim), and whether each driver's chains converged."""
        require_extra()
        from asbc.exact.drivers import nuts_drivers

        simulator, known, names = model.simulator, model.contexts(pairs), model.names(pairs)
        seen = (
            segment_transitions(simulator, known)
            if isinstance(known, Segments)
            else transitions(simulator, pairs, model.context_steps)
        )
        at_once = min(self.drivers_at_once, len(seen))
        found = nuts_drivers(simulator, seen, names, self.nuts, seed, at_once)
        theta = take_draws(found.theta, samples).transpose(0, 1)
        # Float64 draws inside the prior may round to just outside it.
        theta = theta.clamp(simulator.prior.low, simulator.prior.high)
        return theta, found.converged
