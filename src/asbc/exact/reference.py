"""How close an amortized posterior is to the exact one, on simulated and on observed drivers.

The trajectory likelihood is tractable, so NUTS (where it fails, importance sampling) gives the
exact posterior of a driver. It costs seconds per driver and does not depend on the network: it is
kept in a file, named after all that it depends on, and scoring a network against it costs a
forward pass.

On simulated drivers the score is a classifier's (C2ST). On observed ones it is the target loss,
the mean of -log q at exact draws: a cross-entropy, lowest for the exact posterior. Simulated
drivers behind the leaders of the prior may all be served well while the observed ones, whom the
posterior is for, are not.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import LeaderWindows, leader_windows
from asbc.engine import Engine
from asbc.evaluation.agreement import agreement
from asbc.evaluation.window_draws import sample_contexts
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.exact.statistics import transitions
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.robust import SimulatedDrivers, simulate_drivers
from asbc.types import Density
from asbc.utils.files import load_tensors, save_tensors
from asbc.utils.random import key, stream

# Raise when the same settings and data give other draws, or the files another content.
FORMAT = 1
STRIDE = 50  # between the leader windows of a pair
OBSERVED_DRAWS = 200  # of each observed driver
AT_ONCE = 20  # drivers sampled side by side, a piece of an engine's work


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
    engine: Engine | None = None,
) -> ExactPosteriors:
    """Drivers from the prior behind random leader windows, with their exact posteriors.

    Args:
        simulator: prior and likelihood.
        windows: leaders; take held-out ones, and windows as long as the contexts.
        count: drivers.
        draws: draws kept of each posterior.
        seed: of drivers and chains.
        nuts: sampler settings; None for the usual ones.
        engine: where batches of drivers are sampled; None: one by one in this process.
    """
    require_extra()
    from asbc.exact.drivers import exact_drivers

    nuts = nuts or NutsSettings()
    simulated = simulate_drivers(simulator, windows, count, key(seed, "exact posteriors"))
    pairs = as_pairs(simulated, simulator.dt)
    steps = simulated.states.shape[1]
    seen, at_once = transitions(simulator, pairs, steps), min(AT_ONCE, count)
    exact = exact_drivers(simulator, seen, pairs.pair_id, nuts, seed, at_once, engine)
    return ExactPosteriors(
        *simulated,
        take_draws(exact.theta, draws).transpose(0, 1).contiguous(),
        torch.from_numpy(exact.converged),
    )


class ObservedPosteriors(NamedTuple):
    """Observed drivers' contexts, each with draws of its exact posterior."""

    states: Tensor  # (driver, steps, 3)
    draws: Tensor  # (driver, draw, dim)
    converged: Tensor  # (driver,) bool


def exact_of(run: Run, drivers: int, cache: Path, engine: Engine | None = None) -> ExactPosteriors:
    """Drivers of a run's simulator behind leaders of its validation split, kept below `cache`.

    Not of the test split: what is chosen by C2ST may still be reported on that.

    Args:
        run: the run.
        drivers: how many.
        cache: folder for the files.
        engine: where batches of drivers are sampled; None: one by one in this process.
    """
    simulator, nuts = run.simulator, NutsSettings()
    steps = run.config["data"]["context_steps"]
    windows = leader_windows(run.source().splits().validation, steps, STRIDE)
    name = posteriors_file("simulated", simulator, nuts, [drivers], windows[:3])
    made = kept_tensors(
        cache / name,
        lambda: exact_posteriors(simulator, windows, drivers, nuts=nuts, engine=engine)._asdict(),
    )
    return ExactPosteriors(**made)


def observed_posteriors(
    simulator: Simulator,
    pairs: Pairs,
    context_steps: int,
    cache: Path,
    engine: Engine | None = None,
) -> ObservedPosteriors:
    """The exact posteriors of observed drivers given their contexts, kept below `cache`.

    Args:
        simulator: prior and likelihood.
        pairs: one driver each.
        context_steps: samples of context.
        cache: folder for the files.
        engine: where batches of drivers are sampled; None: one by one in this process.
    """
    nuts, states = NutsSettings(), pairs.contexts(context_steps)
    name = posteriors_file("observed", simulator, nuts, list(pairs.pair_id), [states])

    def sample() -> dict[str, Tensor]:
        require_extra()
        from asbc.exact.drivers import exact_drivers

        seen, at_once = transitions(simulator, pairs, context_steps), min(AT_ONCE, len(pairs))
        exact = exact_drivers(simulator, seen, pairs.pair_id, nuts, 0, at_once, engine)
        draws = take_draws(exact.theta, OBSERVED_DRAWS).transpose(0, 1).float().contiguous()
        # Rounding may lead out of the box.
        draws = draws.clamp(simulator.prior.low, simulator.prior.high)
        found = ObservedPosteriors(states, draws, torch.from_numpy(exact.converged))
        return found._asdict()

    return ObservedPosteriors(**kept_tensors(cache / name, sample))


def target_loss(posterior: Density, exact: ObservedPosteriors) -> Tensor:
    """Mean of -log q at the exact draws of each driver (driver,), float64.

    Drivers whose exact posterior is not known (its draws did not converge) are NaN.
    """
    loss = -posterior.log_prob(exact.draws, exact.states).double().mean(dim=1)
    return torch.where(exact.converged, loss, torch.nan)


def target_scores(
    posterior: Density,
    simulator: Simulator,
    pairs: Pairs,
    context_steps: int,
    cache: str | Path,
    engine: Engine | None = None,
) -> dict[str, float]:
    """`target_loss` and `target_loss_median` over the drivers of these pairs, and the prior's.

    A few drivers unlike all simulations dominate the mean.

    Args:
        posterior: of the same simulator.
        simulator: prior and likelihood.
        pairs: observed drivers; the validation split where anything is chosen by them.
        context_steps: samples of context.
        cache: folder in which exact posteriors are kept.
        engine: where batches of drivers are sampled; None: one by one in this process.
    """
    exact = observed_posteriors(simulator, pairs, context_steps, Path(cache), engine)
    loss = target_loss(posterior, exact)
    prior = -simulator.prior.log_prob(exact.draws).double().mean(dim=1)[exact.converged]
    return {
        "target_loss": float(loss.nanmean()),
        "target_loss_median": float(loss.nanmedian()),
        "target_loss_of_prior": float(prior.mean()),
        "target_drivers": int(exact.converged.sum()),
    }


def kept_tensors(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a file, which is made if it is not there."""
    if not path.is_file():
        save_tensors(make(), path)
    return load_tensors(path)


def posteriors_file(
    kind: str, simulator: Simulator, nuts: NutsSettings, parts: list[Any], data: Sequence[Tensor]
) -> str:
    """A name that no two different sets of posteriors share."""
    prior = [asdict(marginal) for marginal in simulator.prior.marginals]
    model = [
        _described(part) for part in (simulator.law, simulator.residual, simulator.kinematics)
    ]
    bounds = [simulator.dt, *simulator.acceleration_bounds]
    text = json.dumps([FORMAT, kind, prior, model, bounds, asdict(nuts), parts])
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    for tensor in data:
        digest.update(tensor.contiguous().numpy().tobytes())
    return f"{kind}-{digest.hexdigest()}.pt"


def _described(part: object) -> list[Any]:
    """The class of a part of the simulator and its plain values."""
    plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str)}
    return [f"{type(part).__module__}.{type(part).__qualname__}", plain]


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
