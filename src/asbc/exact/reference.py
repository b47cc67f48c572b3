"""How close an amortized posterior is to the exact one, on simulated drivers.

The trajectory likelihood is tractable, so NUTS (where it fails, importance sampling) gives the
exact posterior of a simulated driver. It costs seconds per driver and does not depend on the
network: it is kept in a file, and scoring a network against it costs a forward pass and a few
small classifiers.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import LeaderWindows, leader_windows
from asbc.evaluation.agreement import agreement
from asbc.evaluation.predict import sample_contexts
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.robust import SimulatedDrivers, simulate_drivers
from asbc.types import Density
from asbc.utils.files import load_tensors, save_tensors
from asbc.utils.random import key, stream

# What defines drivers and posteriors; where tables are cached does not.
SECTIONS = ("model", "residual", "prior", "data")
STRIDE = 50  # between the leader windows of a pair


class ExactPosteriors(NamedTuple):
    """Simulated drivers, each with draws of its exact posterior."""

    theta: Tensor  # (driver, dim), what each driver was simulated with
    states: Tensor  # (driver, steps, 3)
    draws: Tensor  # (driver, draw, dim)
    converged: Tensor  # (driver,) bool, whether its draws passed r-hat and sample size

    @property
    def drivers(self) -> list[str]:
        """Names of the drivers."""
        return [f"driver {i}" for i in range(len(self.theta))]


def exact_posteriors(
    simulator: Simulator,
    windows: LeaderWindows,
    count: int = 20,
    draws: int = 1000,
    seed: int = 0,
    nuts: NutsSettings | None = None,
) -> ExactPosteriors:
    """Drivers from the prior behind random leader windows, with their exact posteriors.

    Args:
        simulator: prior and likelihood.
        windows: leaders; take held-out ones, and windows as long as the contexts.
        count: drivers.
        draws: draws kept of each posterior.
        seed: of drivers and chains.
        nuts: sampler settings; None for the usual ones.
    """
    require_extra()
    from asbc.exact.drivers import exact_drivers

    nuts = nuts or NutsSettings()
    simulated = simulate_drivers(simulator, windows, count, key(seed, "exact posteriors"))
    pairs = as_pairs(simulated, simulator.dt)
    steps = simulated.states.shape[1]
    exact = exact_drivers(simulator, pairs, steps, nuts, seed, count)
    return ExactPosteriors(
        *simulated,
        take_draws(exact.theta, draws).transpose(0, 1).contiguous(),
        torch.from_numpy(exact.converged),
    )


def exact_of(run: Run, drivers: int, cache: Path) -> ExactPosteriors:
    """The drivers of a run's simulator behind leaders of its test split, kept below `cache`.

    Args:
        run: the run.
        drivers: how many.
        cache: folder for the files, one for each simulator and data.
    """
    config = run.config
    parts = {name: dict(config[name]) for name in SECTIONS}
    parts["data"].pop("cache_dir", None)
    for name in ("path", "root"):  # the same file by whatever way
        if parts["data"].get(name):
            parts["data"][name] = str(Path(parts["data"][name]).resolve())
    nuts = NutsSettings()
    text = json.dumps([parts, drivers, asdict(nuts)], sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    path = cache / f"{config['residual']['name']}-{digest}.pt"
    if not path.is_file():
        steps = config["data"]["context_steps"]
        windows = leader_windows(run.source().splits().test, steps, STRIDE)
        exact = exact_posteriors(run.simulator, windows, drivers, nuts=nuts)
        save_tensors(exact._asdict(), path)
    return ExactPosteriors(**load_tensors(path))


def closeness(
    posterior: Density, exact: ExactPosteriors, names: tuple[str, ...], seed: int = 0
) -> pd.DataFrame:
    """A row per driver: C2ST, interval overlap and standardised mean error of each parameter.

    Args:
        posterior: of the same simulator.
        exact: drivers and their exact posteriors.
        names: of the parameters.
        seed: of the posterior's draws and of the classifiers.
    """
    drivers, n = exact.drivers, exact.draws.shape[1]
    sampled = sample_contexts(posterior, exact.states, drivers, n, seed)
    return agreement(exact.draws, sampled.theta, names, drivers, stream(seed, "closeness"))


def as_pairs(simulated: SimulatedDrivers, dt: float) -> Pairs:
    """The drivers as data."""
    gap, speed, approach_rate = simulated.states.unbind(-1)
    return Pairs.from_series(gap, speed, speed - approach_rate, dt)
