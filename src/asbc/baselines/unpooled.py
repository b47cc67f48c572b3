"""NUTS for every driver by itself: the exact answer that an amortized posterior replaces."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from asbc.baselines.method import Fitted, Task
from asbc.data.history import ALL, FIRST, histories, shortest_steps
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.source import pairs_of_split
from asbc.engine import Engine
from asbc.errors import InputError
from asbc.evaluation.agreement import agreement, summarise_agreement
from asbc.evaluation.results import read_metrics
from asbc.evaluation.window_draws import sample_contexts
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.exact.statistics import Transitions, segment_transitions, transitions
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.black_box import require_likelihood
from asbc.utils.checks import check_integer, check_number
from asbc.utils.files import write_text
from asbc.utils.progress import Stopwatch
from asbc.utils.random import stream


@dataclass(frozen=True)
class Unpooled:
    """Each test driver's own posterior given its context, under ASBC's prior and likelihood.

    With `context=all` the context is the pair's first T_E samples and the segments of the driver's
    earlier pairs, of which the likelihood is the product.

    Args:
        drivers: test drivers to sample, the first ones of the split; None for all.
        drivers_at_once: drivers sampled side by side; 1 for one after the other.
        compare_run: folder of a training run, whose posterior is then compared with this one.
        nuts: sampler settings.
        context: `first` (the pair's first T_E samples), or `all` (the driver's earlier pairs too).
        max_segments: segments of T_E samples at most that `all` uses, the newest.
        shortest: seconds of the shortest of them.
        engine: where batches of so many drivers are sampled; None: one by one in this process.
    """

    drivers: int | None = None
    drivers_at_once: int = 20
    compare_run: str | None = None
    nuts: NutsSettings = field(default_factory=NutsSettings)
    context: str = FIRST
    max_segments: int = 8
    shortest: float = 3.0
    engine: Engine | None = None

    def __post_init__(self) -> None:
        if self.context not in (FIRST, ALL):
            raise InputError(f"baseline.context={self.context}; expected {FIRST} or {ALL}")
        check_integer("baseline.max_segments", self.max_segments, minimum=1)
        check_number("baseline.shortest", self.shortest, above=0)
        for name in ("drivers", "drivers_at_once"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"baseline.{name}={value}; expected at least 1")

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"NUTS per driver ({residual})"

    def fit(self, task: Task) -> Fitted:
        """Sample the chosen drivers' posteriors."""
        require_likelihood(task.simulator, "baseline=unpooled")
        require_extra()
        from asbc.exact.drivers import exact_drivers

        count = min(self.drivers or len(task.test), len(task.test))
        pairs = task.test.select(range(count))
        at_once = min(self.drivers_at_once, count)
        seen = self._seen(task.simulator, task.test, range(count), task.context_steps)
        exact = exact_drivers(
            task.simulator, seen, pairs.pair_id, self.nuts, task.seed, at_once, self.engine
        )
        details = {
            "drivers": count,
            "drivers_at_once": at_once,
            "seconds_per_driver": exact.nuts_seconds / count,
        }
        theta = take_draws(exact.theta, task.samples).transpose(0, 1)
        return Fitted(
            task.simulator,
            theta,
            pairs,
            details,
            exact.data,
            exact.convergence,
            exact.worker_seconds,
        )

    def known(self, pairs: Pairs, place: Sequence[int], steps: int) -> Tensor | Segments:
        """What the posteriors of the pairs at `place` are conditioned on."""
        if self.context == FIRST:
            return pairs.select(place).contexts(steps)
        shortest = min(steps, shortest_steps(self.shortest, pairs.dt))
        ends = [steps] * len(place)
        return histories(pairs, place, ends, steps, shortest, self.max_segments)

    def _seen(
        self, simulator: Simulator, pairs: Pairs, place: Sequence[int], steps: int
    ) -> list[Transitions]:
        known = self.known(pairs, place, steps)
        if isinstance(known, Segments):
            return segment_transitions(simulator, known)
        return transitions(simulator, pairs.select(place), steps)


@dataclass(frozen=True)
class ExactDraws:
    """A finished run of `baseline=unpooled`.

    Attributes:
        run: its folder.
        names: of the parameters.
        drivers: ids of the pairs it sampled.
        theta: (chain, draw, driver, dim).
        seconds_per_driver: CPU seconds that NUTS took.
    """

    run: Run
    names: tuple[str, ...]
    drivers: tuple[str, ...]
    theta: np.ndarray
    seconds_per_driver: float

    @classmethod
    def read(cls, run: Run) -> "ExactDraws":
        """From the folder of the run."""
        require_extra()
        import arviz as az

        seconds = read_metrics(run.evaluation).get("baseline", {}).get("seconds_per_driver")
        if seconds is None:
            raise InputError(f"{run.shown}: not a run of baseline=unpooled")
        theta = az.from_netcdf(str(run.draws), engine="h5netcdf")["posterior"]["theta"]
        return cls(
            run,
            tuple(map(str, theta.parameter.values)),
            tuple(map(str, theta.driver.values)),
            theta.values,
            seconds,
        )

    def known(self) -> Tensor | Segments:
        """What the draws were conditioned on, in their order."""
        config = self.run.config
        every, _ = pairs_of_split(self.run.source(), config["evaluation"]["split"])
        place = {name: i for i, name in enumerate(every.pair_id)}
        if missing := [name for name in self.drivers if name not in place]:
            raise InputError(f"the data have changed: no pair {missing[0]} any more")
        settings = ("context", "max_segments", "shortest")
        method = Unpooled(
            **{n: config["baseline"][n] for n in settings if n in config["baseline"]}
        )
        steps = config["data"]["context_steps"]
        return method.known(every, [place[name] for name in self.drivers], steps)


def require_same_posterior(trained: Run, exact: Mapping[str, Any]) -> None:
    """Raise unless a run and a config describe the same posterior of a context."""
    if different := trained.differences(exact):
        raise InputError(
            f"baseline.compare_run: the run differs in {', '.join(different)} (its residual is "
            f"{trained.config['residual']['name']}); give this command the run's settings"
        )


def compare_runs(exact_run: Run, trained: Run, output: Path) -> dict[str, Any]:
    """Agreement of a run's posterior with exact draws, as a summary over drivers.

    Writes agreement.csv, a row per driver, and agreement.json, the summary.

    Args:
        exact_run: a finished run of `baseline=unpooled`.
        trained: a training run with the same posterior.
        output: folder of the two files.
    """
    exact, config = ExactDraws.read(exact_run), exact_run.config
    require_same_posterior(trained, config)
    known, seed, posterior = exact.known(), config["seed"], trained.posterior
    count = config["evaluation"]["samples"]
    names = [f"pair {name}" for name in exact.drivers]
    watch = Stopwatch(time.process_time)
    with watch("amortized"):
        sampled = sample_contexts(posterior, known, names, count, seed)
    table = agreement(
        take_draws(exact.theta, count).transpose(0, 1),
        sampled.theta,
        exact.names,
        exact.drivers,
        stream(seed, "agreement"),
    )
    table.to_csv(output / "agreement.csv", index=False)
    found = summarise_agreement(
        table, exact.seconds_per_driver, watch.seconds["amortized"] / len(known)
    )
    write_text(output / "agreement.json", json.dumps(found, indent=2) + "\n")
    return found
