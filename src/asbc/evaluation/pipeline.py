"""The whole evaluation of one method on one set of pairs."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asbc.data.pairset import PairSet
from asbc.data.windows import EvaluationWindows, LeaderWindows, evaluation_windows
from asbc.evaluation.calibration import contraction, recovery
from asbc.evaluation.cases import study_cases
from asbc.evaluation.draws import AmortizedPosterior, sample_pairs, simulate_drivers
from asbc.evaluation.novelty import Novelty
from asbc.evaluation.posterior_checks import check_posterior, prior_variance
from asbc.evaluation.protocol import WindowScores, score_windows
from asbc.evaluation.results import PROTOCOLS, Evaluation, data_fingerprint
from asbc.evaluation.settings import EvaluationSettings
from asbc.evaluation.summary import summarise
from asbc.evaluation.warnings import plain_warnings
from asbc.simulator import Simulator
from asbc.simulator.contexts import ContextSimulator
from asbc.utils.checks import InputError


def evaluate_draws(
    simulator: Simulator,
    theta: Tensor,
    pairs: PairSet,
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
    posterior: AmortizedPosterior,
    training: ContextSimulator,
    pairs: PairSet,
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
    pairs: PairSet, context_steps: int, settings: EvaluationSettings
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


def _recovery(simulator: Simulator, theta: Tensor, pairs: PairSet) -> dict[str, Any]:
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
