"""Which of two residual models a driver's trajectory speaks for."""

import math
from dataclasses import dataclass, field

import numpy as np

from asbc.calibration.psis import Weighting
from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.simulator.weighted_draws import RELIABLE_K_HAT
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch

# Odds below 3 to 1 are "not worth more than a bare mention" (Jeffreys).
DECISIVE = math.log(3)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The evidence of a second run, against that of the run that calibrates.

    Args:
        model: the second run.
        weighting: how its draws get their weights.
    """

    model: Model
    needs_weights = True
    weighting: Weighting = field(default_factory=Weighting)

    def check(self, model: Model) -> None:
        """Raise unless evidences of the two models speak of the same observations."""
        ours, theirs = model, self.model
        if ours.context_steps != theirs.context_steps or ours.simulator.dt != theirs.simulator.dt:
            raise InputError(
                f"compare_run reads {theirs.context_steps} steps of {theirs.simulator.dt:g} s, "
                f"the run {ours.context_steps} of {ours.simulator.dt:g} s; evidences compare only "
                "for the same observations: train both with the same data.context_steps and dt"
            )
        sizes = [
            (m.context, m.shortest, m.posterior.pool and m.posterior.pool.max_segments)
            for m in (ours, theirs)
            if m.by_driver
        ]
        if len(set(sizes)) > 1 or len(sizes) == 1:
            raise InputError(
                "compare_run reads other segments of a driver than the run; train both with the "
                "same history.max_segments and history.shortest, or use calibration.context=first"
            )
        if ours.residual == theirs.residual:
            raise InputError(
                f"compare_run has the same residual model as the run ({ours.residual}); give a "
                "run with the other one"
            )

    def fingerprint(self) -> str:
        """What the columns depend on besides the run's own weights."""
        return self.model.fingerprint()

    def columns(
        self,
        model: Model,
        pairs: Pairs,
        found: dict[str, np.ndarray],
        seed: int,
        watch: Stopwatch,
    ) -> dict[str, np.ndarray]:
        """The second evidence and the verdict; `found` holds the first one's columns."""
        other = self.model
        with watch("comparison"):
            second = self.weighting(other, pairs, seed, Stopwatch()).importance
        factor = found["log_evidence"] - second.log_evidence.numpy()
        error = np.hypot(found["log_evidence_error"], second.log_evidence_error.numpy())
        k_hat = second.k_hat.numpy()
        reliable = (found["k_hat"] <= RELIABLE_K_HAT) & (k_hat <= RELIABLE_K_HAT)
        decided = reliable & (np.abs(factor) > np.maximum(DECISIVE, 2 * error))
        names = np.where(factor > 0, model.residual, other.residual)
        return {
            f"log_evidence_{other.residual}": second.log_evidence.numpy(),
            f"k_hat_{other.residual}": k_hat,
            "log_bayes_factor": factor,
            "residual_model": np.where(decided, names, "undecided").astype(object),
        }
