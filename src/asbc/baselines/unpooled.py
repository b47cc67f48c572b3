"""NUTS for every driver by itself: the exact answer that an amortized posterior replaces."""

from dataclasses import dataclass, field

from asbc.baselines.method import Fitted, Task, require_extra, take_draws
from asbc.baselines.settings import NutsSettings
from asbc.utils.checks import InputError


@dataclass(frozen=True)
class Unpooled:
    """Each test driver's own posterior given its context, under ASBC's prior and likelihood.

    Args:
        drivers: test drivers to sample, the first ones of the split; None for all.
        drivers_at_once: drivers sampled side by side; 1 for one after the other.
        compare_run: folder of a training run; baseline.py compares its posterior with this one.
        nuts: sampler settings.
    """

    drivers: int | None = None
    drivers_at_once: int = 20
    compare_run: str | None = None
    nuts: NutsSettings = field(default_factory=NutsSettings)

    def __post_init__(self) -> None:
        for name in ("drivers", "drivers_at_once"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"baseline.{name}={value}; expected at least 1")

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"NUTS per driver ({residual})"

    def fit(self, task: Task) -> Fitted:
        """Sample the chosen drivers' posteriors."""
        require_extra()
        from asbc.baselines.driver_models import exact_drivers

        count = min(self.drivers or len(task.test), len(task.test))
        pairs = task.test.select(range(count))
        at_once = min(self.drivers_at_once, count)
        exact = exact_drivers(
            task.simulator, pairs, task.context_steps, self.nuts, task.seed, at_once
        )
        details = {
            "drivers": count,
            "drivers_at_once": at_once,
            "seconds_per_driver": exact.nuts_seconds / count,
        }
        theta = take_draws(exact.theta, task.samples).transpose(0, 1)
        return Fitted(task.simulator, theta, pairs, details, exact.data, exact.convergence)
