"""The whole evaluation of one method on one set of pairs."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.config import build
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import as_source
from asbc.data.source import DataSource, pairs_of_split
from asbc.data.summary import DataSummary
from asbc.data.windows import EvaluationWindows, LeaderWindows, evaluation_windows, leader_windows
from asbc.errors import InputError
from asbc.evaluation.cases import study_cases
from asbc.evaluation.checks import check_posterior, contraction, prior_variance, recovery
from asbc.evaluation.predict import sample_pairs
from asbc.evaluation.protocol import EvaluationSettings, WindowScores, score_windows
from asbc.evaluation.results import PROTOCOLS, Evaluation, RunInfo, data_fingerprint, summarise
from asbc.posterior.novelty import Novelty
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.robust import ContextSimulator, simulate_drivers
from asbc.types import Density

LOW_COVERAGE = 0.90
MANY_FLAGGED = 0.10
HIGH_LEAK = 0.05
MANY_COLLISIONS = 0.01

VARIABLE_NAMES = {"s": "gap", "v": "speed", "a": "acceleration"}


def plain_warnings(metrics: dict[str, Any]) -> list[str]:
    """Every reason to be careful with these results; empty when there is none."""
    return [
        *_coverage(metrics),
        *_flagged(metrics.get("novelty")),
        *_leak(metrics["posterior"].get("leak_rate")),
        *_ranks(metrics.get("simulated_drivers")),
        *_collisions(metrics["after_context"]["collision_rate"]),
    ]


def _coverage(metrics: dict[str, Any]) -> list[str]:
    scores, when = metrics["after_context"], "after the context"
    lines = []
    if not scores["n_windows"]:
        scores, when = metrics["all_windows"], "of the whole recording"
        lines.append(
            "No pair is long enough for a window after its context: every score is on data that "
            "overlap what the model has seen."
        )
    low = {
        name: scores[f"coverage95_{x}"]
        for x, name in VARIABLE_NAMES.items()
        if scores[f"coverage95_{x}"] < LOW_COVERAGE
    }
    if low:
        shares = ", ".join(f"{share:.0%} of the {name}s" for name, share in low.items())
        lines.append(
            f"Predictions are overconfident: on windows {when}, 95% intervals hold only {shares}."
        )
    return lines


def _flagged(novelty: dict[str, Any] | None) -> list[str]:
    if novelty is None or novelty["share_flagged"] <= MANY_FLAGGED:
        return []
    count = len(novelty["flagged"])
    return [
        f"{novelty['share_flagged']:.0%} of the drivers ({count}) drive unlike 99% of the "
        "simulations the model was trained on; their posteriors are extrapolations."
    ]


def _leak(rate: float | None) -> list[str]:
    if rate is None or rate <= HIGH_LEAK:
        return []
    return [
        f"{rate:.0%} of the posterior draws fell outside the prior's range and were redrawn; "
        "transform=bounded avoids this."
    ]


def _ranks(checks: dict[str, Any] | None) -> list[str]:
    if checks is None:
        return []
    off = [name for name, p in checks["parameters"].items() if not p["sbc_inside_band"]]
    if not off:
        return []
    return [
        "On simulated drivers the posterior is not calibrated for "
        f"{', '.join(off)}: its intervals do not hold the truth as often as they say."
    ]


def _collisions(rate: float | None) -> list[str]:
    if rate is None or rate <= MANY_COLLISIONS:
        return []
    return [f"{rate:.1%} of the simulated drives after the context end in a collision."]


def evaluate_draws(
    simulator: Simulator,
    theta: Tensor,
    pairs: Pairs,
    context_steps: int,
    settings: EvaluationSettings,
) -> Evaluation:
    """Evaluate parameter draws (pair, draw, dim), whatever method they come from."""
    windows, member = protocol_windows(pairs, context_steps, settings)
    scores = score_windows(
        simulator,
        theta,
        pairs,
        windows,
        settings.residual_prefix_steps,
        settings.residual_prefix_noise,
        settings.seed,
        settings.chunk,
    )
    table = scores.table.assign(**member)
    metrics: dict[str, Any] = {
        name: summarise(_part(scores, member[name]), settings.bootstrap, settings.seed)
        for name in PROTOCOLS
    }
    variance = prior_variance(simulator.prior)
    learned = contraction(theta, variance).median(dim=0).values
    metrics["posterior"] = {
        "contraction": dict(zip(simulator.parameter_names, learned.tolist(), strict=True)),
    }
    metrics["settings"] = asdict(settings) | {"pairs": [str(name) for name in settings.pairs]}
    metrics["data"] = {
        "fingerprint": data_fingerprint(pairs),
        "n_pairs": len(pairs),
        "context_steps": context_steps,
        "dt": pairs.dt,
    }
    if pairs.true_theta is not None:
        metrics["recovery"] = _recovery(simulator, theta, pairs)
    cases = study_cases(simulator, theta, pairs, context_steps, settings)
    return _with_warnings(Evaluation(metrics, table, scores.simulated, cases))


def evaluate_posterior(
    posterior: Density,
    training: ContextSimulator,
    pairs: Pairs,
    context_steps: int,
    training_windows: LeaderWindows,
    settings: EvaluationSettings,
) -> Evaluation:
    """Evaluate an amortized posterior: predictions, and the posterior itself.

    Args:
        posterior: the trained estimator.
        training: what it was trained on, and the simulator that predicts.
        pairs: observed pairs, the posterior of each conditioned on its first `context_steps`.
        context_steps: samples of context.
        training_windows: leaders to simulate drivers behind for the posterior's own checks.
        settings: protocol and sizes.
    """
    draws = sample_pairs(posterior, pairs, context_steps, settings.samples, settings.seed)
    simulator = training.simulator
    result = evaluate_draws(simulator, draws.theta, pairs, context_steps, settings)
    result.metrics["posterior"]["leak_rate"] = float(draws.leak_rate.mean())
    if settings.simulated_drivers:
        drivers = simulate_drivers(
            training, training_windows, settings.simulated_drivers, settings.seed
        )
        checks = check_posterior(
            posterior, simulator.prior, drivers, settings.posterior_draws, settings.seed
        )
        novelty = Novelty.fit(posterior.encode(drivers.states))
        distance = novelty.distance(posterior.encode(pairs.contexts(context_steps)))
        result.metrics["simulated_drivers"] = checks.to_dict()
        result.metrics["novelty"] = {
            "threshold": novelty.threshold,
            "median_distance": float(distance.median()),
            "share_flagged": float((distance > novelty.threshold).double().mean()),
            "flagged": [
                name
                for name, far in zip(pairs.pair_id, distance, strict=True)
                if far > novelty.threshold
            ],
        }
        result = replace(result, checks=checks, novelty=novelty, distance=distance.numpy())
    return _with_warnings(result)


def protocol_windows(
    pairs: Pairs, context_steps: int, settings: EvaluationSettings
) -> tuple[EvaluationWindows, dict[str, np.ndarray]]:
    """The windows of both protocols, each once, and which protocol each belongs to."""
    if len(pairs) == 0:
        raise InputError(
            f"the {settings.split} split holds no pair; choose another evaluation.split or data"
        )
    grids = [
        evaluation_windows(pairs, settings.horizon, settings.stride, settings.max_windows, first)
        for first in (0, context_steps)
    ]
    if len(grids[0].pair) == 0:
        raise InputError(
            f"no window of evaluation.horizon={settings.horizon} steps fits into the "
            f"{len(pairs)} pairs (longest: {int(pairs.lengths.max())} samples)"
        )
    longest = int(pairs.lengths.max())
    codes = [grid.pair * longest + grid.start for grid in grids]
    code = torch.cat(codes).unique()
    member = {
        name: torch.isin(code, own).numpy() for name, own in zip(PROTOCOLS, codes, strict=True)
    }
    pair = code.div(longest, rounding_mode="floor")
    return EvaluationWindows(pair, code - pair * longest, settings.horizon), member


def _part(scores: WindowScores, rows: np.ndarray) -> WindowScores:
    return WindowScores(
        scores.table[rows], {name: value[rows] for name, value in scores.simulated.items()}
    )


def _recovery(simulator: Simulator, theta: Tensor, pairs: Pairs) -> dict[str, Any]:
    """How well known parameters of observed pairs are found, by parameter."""
    assert pairs.true_theta is not None
    names = [name for name in simulator.parameter_names if name in pairs.true_names]
    ours = [simulator.parameter_names.index(name) for name in names]
    theirs = [pairs.true_names.index(name) for name in names]
    found = recovery(pairs.true_theta[:, theirs], theta[..., ours])
    return {
        name: {key: float(value[i]) for key, value in found.items()}
        for i, name in enumerate(names)
    }


def _with_warnings(evaluation: Evaluation) -> Evaluation:
    evaluation.metrics["warnings"] = plain_warnings(evaluation.metrics)
    return evaluation


# Samples between leader windows that simulated drivers follow, as in the leader bank.
STRIDE = 50


def is_other_data(trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> bool:
    """Whether two data sections name different data; where tables are cached does not matter."""
    ignored = {"cache_dir", "context_steps"}
    keys = (set(trained) | set(evaluated)) - ignored
    return any(trained.get(key) != evaluated.get(key) for key in keys)


def notes_on_data(
    other: bool,
    trained: Mapping[str, Any],
    evaluated: Mapping[str, Any],
    trained_on: str,
    evaluated_on: str,
    split: str,
) -> list[str]:
    """Facts about the data that a reader must see before the scores."""
    notes = []
    if other:
        notes.append(
            f"Evaluated on other data than it was trained on: trained on {trained_on}, evaluated "
            f"on {evaluated_on}."
        )
    elif split in ("train", "all"):
        notes.append(
            "These pairs include the training split: their leaders were used to train the model."
        )
    if trained["context_steps"] != evaluated["context_steps"]:
        notes.append(
            f"Contexts of {evaluated['context_steps']} samples; the model was trained on contexts "
            f"of {trained['context_steps']}."
        )
    return notes


def evaluate_run(
    run: Run, data: pd.DataFrame | str | Path | Pairs | None = None, **settings: Any
) -> Evaluation:
    """Scores of a trained run; see `Run.evaluate`."""
    own = run.config["data"]
    if data is None:
        return evaluate_source(run, run.source(), EvaluationSettings(**settings))[0]
    source = as_source(data, dt=own["dt"], context_steps=own["context_steps"])
    return evaluate_source(run, source, EvaluationSettings(**{"split": "all", **settings}))[0]


def evaluate_source(
    run: Run,
    source: DataSource,
    settings: EvaluationSettings,
    section: Mapping[str, Any] | None = None,
) -> tuple[Evaluation, DataSummary]:
    """Scores of a trained run on one split of some data, and where these come from.

    Args:
        run: the trained run.
        source: the data.
        settings: protocol and sizes.
        section: the data's config section; None if the data are the run's own or have none.
    """
    pairs, summary = pairs_of_split(source, settings.split)
    steps, trained = source.context_steps, run.config["data"]
    section = section or (trained if _same_source(run, source) else {"context_steps": steps})
    other = is_other_data(trained, section)
    names = (description(trained), source.description)
    notes = notes_on_data(other, trained, section, *names, settings.split)
    leaders = run.leaders(steps)
    if leaders is None:
        leaders = leader_windows(pairs, steps, STRIDE)
        notes.append(
            f"Contexts of {steps} samples are longer than the leaders kept with the run, so "
            "drivers were simulated behind those of the evaluated pairs to check the posterior."
        )
    evaluation = evaluate_posterior(run.posterior, run.training, pairs, steps, leaders, settings)
    info = RunInfo(
        method=run.label,
        kind="asbc",
        residual=run.config["residual"]["name"],
        residual_label=run.config["residual"]["label"],
        acquisition=run.config["acquisition"]["name"],
        variant=run.variant,
        seed=run.seed,
        trained_on=names[0],
        evaluated_on=names[1],
        other_data=other,
        selected_round=run.selected_round,
        folder=run.shown,
        version=run.version,
    )
    evaluation.metrics.update(run=info.to_dict(), notes=notes)
    return evaluation, summary


def description(section: Mapping[str, Any]) -> str:
    """What messages call the data of a config section; the data need not be there."""
    return build(section).description


def _same_source(run: Run, source: DataSource) -> bool:
    return description(run.config["data"]) == source.description
