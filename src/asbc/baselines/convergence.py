"""The verdict on a sampler's run, in numbers and in plain words."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Convergence:
    """Worst diagnostics over everything that was sampled, and the bounds they must keep.

    Attributes:
        r_hat: largest rank-normalised r-hat.
        ess_bulk: smallest bulk effective sample size.
        divergences: draws that ended a divergent trajectory.
        draws: all draws after warm-up.
        max_r_hat, min_ess: the bounds.
        drivers: how many were sampled each by itself; 0 for a joint posterior.
        drivers_not_converged: those that broke a bound.
        drivers_by_importance: those that broke a bound with NUTS and were sampled again.
    """

    r_hat: float
    ess_bulk: float
    divergences: int
    draws: int
    max_r_hat: float
    min_ess: float
    drivers: int = 0
    drivers_not_converged: tuple[str, ...] = ()
    drivers_by_importance: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether both bounds are kept everywhere; a NaN keeps none."""
        return self.r_hat < self.max_r_hat and self.ess_bulk > self.min_ess

    @property
    def remark(self) -> str:
        """What a table must say beside the method; empty when it converged by itself."""
        if not self.converged and not self.drivers:
            return "did not converge"
        remarks = {
            "did not converge": self.drivers_not_converged,
            "by importance sampling": self.drivers_by_importance,
        }
        return ", ".join(
            f"{len(names)} of {self.drivers} drivers {what}"
            for what, names in remarks.items()
            if names
        )

    def warnings(self) -> list[str]:
        """Reasons to be careful, for the report."""
        lines = []
        if not self.converged:
            lines.append(
                f"NUTS: {self.remark}: largest r-hat {self.r_hat:.3f} (bound {self.max_r_hat:g}), "
                f"smallest bulk ESS {self.ess_bulk:.0f} (bound {self.min_ess:g})."
            )
        if self.drivers_by_importance:
            lines.append(
                f"NUTS did not converge on {len(self.drivers_by_importance)} of {self.drivers} "
                "drivers; their draws are from adaptive importance sampling."
            )
        if self.divergences:
            lines.append(f"NUTS: {self.divergences} of {self.draws} draws diverged.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `metrics.json`."""
        return asdict(self) | {"converged": self.converged}

    def joined(self, other: "Convergence") -> "Convergence":
        """The verdict on two runs that are used together; the bounds are this one's.

        Where only drivers of one of them failed, it says which.
        """
        failed = [run for run in (self, other) if not run.converged]
        # Two failures, or one of a joint posterior, have no drivers to name.
        blamed = (
            failed[0] if len(failed) == 1 else replace(self, drivers=0, drivers_not_converged=())
        )
        return Convergence(
            # NumPy's, for a NaN on either side is one of both.
            r_hat=float(np.maximum(self.r_hat, other.r_hat)),
            ess_bulk=float(np.minimum(self.ess_bulk, other.ess_bulk)),
            divergences=self.divergences + other.divergences,
            draws=self.draws + other.draws,
            max_r_hat=self.max_r_hat,
            min_ess=self.min_ess,
            drivers=blamed.drivers,
            drivers_not_converged=blamed.drivers_not_converged,
        )
