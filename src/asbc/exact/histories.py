"""Posteriors of several segments against the exact ones, on simulated drivers.

The exact posterior of a driver with J segments has the product of their likelihoods; NUTS samples
it. The same drivers are looked at with their first segment, with two and with more, so that one
sees how both posteriors narrow as segments arrive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.data.history import UNKNOWN, shortest_steps
from asbc.data.segments import Segments
from asbc.data.windows import LeaderWindows
from asbc.evaluation.agreement import agreement
from asbc.evaluation.sbc import check_posterior, prior_variance
from asbc.evaluation.window_draws import sample_contexts
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.exact.reference import kept_tensors, posteriors_file
from asbc.exact.statistics import segment_transitions
from asbc.simulator import Simulator
from asbc.simulator.robust import ContextSimulator, simulate_histories
from asbc.types import Density
from asbc.utils.random import key, stream

# Mean seconds between segments, of which half of the drivers know how long they were.
PAUSE = 120.0


@dataclass(frozen=True)
class SeveralSegments:
    """A law of histories: so many segments of each driver, of mixed lengths.

    Args:
        count: segments of each driver.
        shortest: seconds of the shortest; lengths are uniform from it to a full segment's.
    """

    count: int
    shortest: float = 3.0

    def draw(
        self, drivers: int, steps: int, dt: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Lengths (drivers, count) in samples and ages (drivers, count) in s; newest first."""
        least = min(steps, shortest_steps(self.shortest, dt))
        lengths = torch.from_numpy(rng.integers(least, steps + 1, (drivers, self.count)))
        pauses = rng.exponential(PAUSE, (drivers, self.count))
        pauses[:, 0] = 0.0
        known = rng.random((drivers, 1)) < 0.5
        age = np.where(known, pauses.cumsum(axis=1), UNKNOWN)
        age[:, 0] = 0.0
        return lengths, torch.from_numpy(age).float()


class HistoryPosteriors(NamedTuple):
    """Simulated drivers with several segments, each with draws of its exact posterior."""

    theta: Tensor  # (driver, dim), what each driver was simulated with
    states: Segments
    draws: Tensor  # (driver, draw, dim)
    converged: Tensor  # (driver,) bool


def exact_histories(
    training: ContextSimulator,
    windows: LeaderWindows,
    counts: Sequence[int] = (1, 2, 4),
    drivers: int = 20,
    draws: int = 1000,
    seed: int = 0,
    nuts: NutsSettings | None = None,
    cache: Path | None = None,
) -> dict[int, HistoryPosteriors]:
    """By number of segments: the same drivers, with the first so many of their segments.

    Args:
        training: of the posterior to compare with; one that moves drivers (robust) has no exact
            posterior.
        windows: leaders, as long as the longest segment.
        counts: numbers of segments.
        drivers: how many, from the prior.
        draws: kept of each posterior.
        seed: of drivers and chains.
        nuts: sampler settings; None for the usual ones.
        cache: folder in which the draws are kept, by simulator and segments; None: nowhere.
    """
    simulator, nuts = training.simulator, nuts or NutsSettings()
    law = SeveralSegments(max(counts))
    theta, most = simulate_histories(
        training, windows, drivers, key(seed, "exact histories"), law.draw
    )
    found = {}
    for count in counts:
        states = first_slots(most, count)
        sample = partial(_exact_draws, simulator, states, draws, seed, nuts)
        if cache is None:
            kept = sample()
        else:
            parts = [states.states, states.lengths]
            name = posteriors_file("histories", simulator, nuts, [draws, seed], parts)
            kept = kept_tensors(cache / name, sample)
        found[count] = HistoryPosteriors(theta, states, **kept)
    return found


def _exact_draws(
    simulator: Simulator, states: Segments, draws: int, seed: int, nuts: NutsSettings
) -> dict[str, Tensor]:
    """Of each driver's exact posterior, and whether they converged."""
    require_extra()
    from asbc.exact.drivers import exact_drivers

    count = states.lengths.shape[1]
    names = [f"driver {i} with {count} segments" for i in range(len(states))]
    seen = segment_transitions(simulator, states)
    exact = exact_drivers(simulator, seen, names, nuts, seed, len(states))
    return {
        "draws": take_draws(exact.theta, draws).transpose(0, 1).contiguous(),
        "converged": torch.from_numpy(exact.converged),
    }


def first_slots(segments: Segments, count: int) -> Segments:
    """The newest `count` segments of each driver."""
    return Segments(
        segments.states[:, :count], segments.lengths[:, :count], segments.age[:, :count]
    )


def closeness_by_count(
    posterior: Density,
    training: ContextSimulator,
    windows: LeaderWindows,
    exact: dict[int, HistoryPosteriors],
    sbc_drivers: int = 300,
    sbc_sets: int = 10,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row for each number of segments: how far the posterior is from the exact one.

    `c2st` and `c2st_worst` over drivers (0.5: alike), `mean_error` of the posterior mean in
    standard deviations of the exact posterior, the `spread` of both over the prior's (geometric
    mean over drivers and parameters). Ranks are of `sbc_sets` sets of `sbc_drivers` other drivers
    with as many segments: in `sbc_inside` sets all parameters are inside their joint 95% bands,
    and `sbc_p` is the smallest p-value times the number of tests, at most 1.
    """
    prior = training.prior
    scale = prior_variance(prior).sqrt()
    rows = []
    for count, (_, states, draws, converged) in exact.items():
        names = [f"driver {i}" for i in range(len(draws))]
        sampled = sample_contexts(posterior, states, names, draws.shape[1], seed).theta
        rng = stream(seed, "closeness", count)
        table = agreement(draws, sampled, prior.names, names, rng)
        law = SeveralSegments(count).draw
        inside, p_values = 0, []
        for i in range(sbc_sets):
            own = key(seed, "sbc", count, i)
            simulated = simulate_histories(training, windows, sbc_drivers, own, law)
            tests = check_posterior(posterior, prior, simulated, 199, seed).ranks
            inside += all(test.inside for test in tests)
            p_values += [test.p_value for test in tests]
        rows.append(
            {
                "segments": count,
                "seconds": float(states.total.double().mean()) * training.simulator.dt,
                "c2st": float(table["c2st"].mean()),
                "c2st_worst": float(table["c2st"].max()),
                "mean_error": float(table.filter(like="shift_").abs().to_numpy().mean()),
                "spread": _spread(sampled, scale),
                "exact_spread": _spread(draws, scale),
                "sbc_p": min(1.0, len(p_values) * min(p_values)),
                "sbc_inside": inside,
                "sbc_sets": sbc_sets,
                "converged": int(converged.sum()),
                "drivers": len(draws),
            }
        )
    return rows


def _spread(draws: Tensor, scale: Tensor) -> float:
    """Geometric mean over drivers and parameters of standard deviations over the prior's."""
    return float((draws.double().std(dim=1) / scale).log().mean().exp())
