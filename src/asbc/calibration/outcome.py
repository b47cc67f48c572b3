"""What a calibration did and what it cost, in words."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from asbc.calibration.flags import LEAKY
from asbc.simulator.weighted_draws import RELIABLE_K_HAT

# How a driver may have got its draws.
WAYS = {
    "amortized": "the network's draws",
    "psis": "the network's draws, weighted",
    "adapted": "drawn again until the weights were good",
    "nuts": "sampled by NUTS",
}
SHOWN_NAMES = 5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Counts and costs; plain values only.

    Attributes:
        drivers: how many got a posterior.
        routes: drivers by the way they got it.
        seconds: cost by stage, over all starts of the run.
        skipped: reason by driver.
        flags: drivers by flag; `at_bound` by bound.
        k_hat: drivers above the limit, and effective draws, where they were computed.
        residual_models: drivers by the residual model that fits them, where it was compared.
        best_models: drivers by the model that predicts them best, likewise.
    """

    drivers: int
    routes: dict[str, int]
    seconds: dict[str, float]
    skipped: dict[str, str]
    flags: dict[str, int]
    bounds: dict[str, int]
    k_hat: dict[str, float]
    residual_models: dict[str, int]
    best_models: dict[str, int]

    @classmethod
    def of(
        cls,
        drivers: pd.DataFrame,
        seconds: Mapping[str, float],
        skipped: Mapping[str, str],
        left_out: Mapping[str, str],
    ) -> "Outcome":
        """The outcome of a finished table of drivers.

        Args:
            drivers: a row for each.
            seconds: cost by stage.
            skipped: who could not be calibrated, and why.
            left_out: who could not be read, and why.
        """
        k_hat: dict[str, float] = {}
        if "k_hat" in drivers:
            k_hat = {
                "network_high": int((~(drivers["k_hat_network"] <= RELIABLE_K_HAT)).sum()),
                "high": int((~(drivers["k_hat"] <= RELIABLE_K_HAT)).sum()),
                "median_effective_draws": float(drivers["effective_draws"].median()),
            }
        bounds = drivers["at_bound"].str.split().explode().dropna()
        none = pd.Series(dtype=str)
        return cls(
            drivers=len(drivers),
            routes=_counts(drivers["route"]),
            seconds=dict(seconds),
            skipped={**left_out, **skipped},
            flags={
                "any": int(drivers["flagged"].sum()),
                "unlike_training": int(drivers.get("unlike_training", pd.Series([0])).sum()),
                "leaky": int((drivers["leak_rate"] > LEAKY).sum()),
                "at_bound": int((drivers["at_bound"] != "").sum()),
            },
            bounds=_counts(bounds[bounds != ""]),
            k_hat=k_hat,
            residual_models=_counts(drivers.get("residual_model", none)),
            best_models=_counts(drivers.get("best_model", none)),
        )

    def text(self) -> str:
        """The closing summary a user reads."""
        total = sum(self.seconds.values())
        lines = [
            f"{self.drivers} drivers calibrated; computing took {_time(total)} "
            f"({1000 * total / max(self.drivers, 1):.1f} ms a driver)"
        ]
        lines += [
            f"  {name} ({WAYS[name]}): {count} drivers ({count / self.drivers:.0%})"
            for name, count in self.routes.items()
        ]
        costs = ", ".join(f"{stage} {_time(cost)}" for stage, cost in self.seconds.items())
        lines.append(f"  cost: {costs}")
        if self.k_hat:
            lines.append(
                f"  k-hat above {RELIABLE_K_HAT:g}: {self.k_hat['network_high']:.0f} of the "
                f"network's posteriors, {self.k_hat['high']:.0f} of the weighted ones; "
                f"median effective draws {self.k_hat['median_effective_draws']:.0f}"
            )
        if self.residual_models:
            found = ", ".join(f"{name} {n}" for name, n in self.residual_models.items())
            lines.append(f"  residual model that fits: {found}")
        if self.best_models:
            found = ", ".join(f"{name} {n}" for name, n in self.best_models.items())
            lines.append(f"  model that predicts best, on windows after the context: {found}")
        lines += self._flags() + self._skipped()
        return "\n".join(lines)

    def _flags(self) -> list[str]:
        flags = self.flags
        if not flags["any"]:
            return ["  no driver is flagged"]
        bounds = ", ".join(f"{name} {n}" for name, n in self.bounds.items())
        return [
            f"  flagged: {flags['any']} ({flags['unlike_training']} unlike the training "
            f"simulations, {flags['leaky']} leaking out of the prior, {flags['at_bound']} at a "
            f"bound{': ' + bounds if bounds else ''})"
        ]

    def _skipped(self) -> list[str]:
        names = list(self.skipped.items())
        lines = [f"  skipped {name}: {reason}" for name, reason in names[:SHOWN_NAMES]]
        if len(names) > SHOWN_NAMES:
            lines.append(f"  and {len(names) - SHOWN_NAMES} more skipped: see calibration.json")
        return lines


def _counts(values: pd.Series) -> dict[str, int]:
    return {str(name): int(count) for name, count in values.value_counts().items()}


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
