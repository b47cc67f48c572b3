"""refine=auto: importance weighting where it suffices, NUTS where it does not."""

from dataclasses import dataclass, field

import numpy as np
import torch

from asbc.baselines.method import require_extra, take_draws
from asbc.baselines.settings import NutsSettings
from asbc.calibration.importance import RELIABLE_K_HAT
from asbc.calibration.model import Model
from asbc.calibration.refinement import PsisRefinement, Refined
from asbc.calibration.weighting import Weighting
from asbc.data.pairset import PairSet
from asbc.utils.checks import InputError
from asbc.utils.stopwatch import Stopwatch


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
        self, model: Model, pairs: PairSet, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        """See `Refinement`."""
        psis = PsisRefinement(weighting=self.weighting)
        refined = psis(model, pairs, samples, seed, watch)
        hard = np.flatnonzero(~(refined.columns["k_hat"] <= self.max_k_hat))
        converged = np.full(len(pairs), None, dtype=object)
        if len(hard):
            theta, route = refined.theta.clone(), refined.route.copy()
            with watch("nuts"):
                chosen = pairs.select(hard)
                theta[torch.from_numpy(hard)], converged[hard] = self._sample(
                    model, chosen, samples, seed
                )
            route[hard] = "nuts"
            refined = refined._replace(theta=theta, route=route)
        return refined._replace(columns=refined.columns | {"nuts_converged": converged})

    def _sample(
        self, model: Model, pairs: PairSet, samples: int, seed: int
    ) -> tuple[torch.Tensor, np.ndarray]:
        """NUTS draws (driver, draw, dim), and whether each driver's chains converged."""
        require_extra()
        from asbc.baselines.driver_models import nuts_drivers

        at_once = min(self.drivers_at_once, len(pairs))
        found = nuts_drivers(model.simulator, pairs, model.context_steps, self.nuts, seed, at_once)
        theta = take_draws(found.theta, samples).transpose(0, 1)
        # Float64 draws inside the prior may round to just outside it.
        prior = model.simulator.prior
        theta = theta.clamp(prior.low, prior.high)
        return theta, found.converged
