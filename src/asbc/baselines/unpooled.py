"""NUTS for every driver by itself: the exact answer that an amortized posterior replaces."""

import time
from dataclasses import dataclass, field

from asbc.baselines.method import Fitted, Task, require_extra, take_draws
from asbc.baselines.settings import NutsSettings
from asbc.utils.checks import InputError
from asbc.utils.stopwatch import Stopwatch


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
        from asbc.baselines import driver_models, inference

        count = min(self.drivers or len(task.test), len(task.test))
        pairs = task.test.select(range(count))
        at_once = min(self.drivers_at_once, count)
        watch = Stopwatch(time.process_time)
        with watch("nuts"):
            chains = driver_models.driver_posteriors(
                task.simulator, pairs, task.context_steps, self.nuts, task.seed, at_once
            )
        data = inference.driver_data(chains, task.simulator.parameter_names, pairs.pair_id)
        verdict = inference.check(data, self.nuts)
        theta = take_draws(driver_models.draws_of(chains), task.samples)
        details = {
            "drivers": count,
            "drivers_at_once": at_once,
            "seconds_per_driver": watch.seconds["nuts"] / count,
        }
        return Fitted(task.simulator, theta.transpose(0, 1), pairs, details, data, verdict)
