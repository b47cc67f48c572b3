"""The whole evaluation of one method on one set of pairs.

From the outside in: a run on any data (`evaluate_run`, `evaluate_source`), an amortized posterior
(`evaluate_posterior`), and parameter draws of any origin (`evaluate_draws`), which is where a
baseline comes in. Each gives an `Evaluation`; the content of its metrics is put together in
`_metrics`, and `Evaluation.of` adds whose they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.data.history import ALL, FIRST
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import as_source
from asbc.data.source import DataSource, pairs_of_split
from asbc.data.summary import DataSummary
from asbc.data.windows import EvaluationWindows, LeaderWindows, evaluation_windows, leader_windows
from asbc.design.history_law import HistoryLaw
from asbc.errors import InputError
from asbc.evaluation.cases import study_cases
from asbc.evaluation.narrowing import Narrowing, narrowing
from asbc.evaluation.predict import Draws, Predictor
from asbc.evaluation.protocol import EvaluationSettings, WindowScores, score_windows
from asbc.evaluation.results import (
    PROTOCOLS,
    Evaluation,
    RunInfo,
    data_fingerprint,
    plain_warnings,
    summarise,
)
from asbc.evaluation.sbc import (
    PosteriorChecks,
    check_posterior,
    contraction,
    prior_variance,
    recovery,
)
from asbc.evaluation.window_draws import (
    first_contexts,
    no_history,
    pool_of,
    readable,
    sample_pairs,
    window_draws,
)
from asbc.posterior.novelty import Novelty
from asbc.posterior.posterior import Posterior
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.robust import ContextSimulator, simulate_drivers, simulate_histories
from asbc.trained_model import PREDICTIVE, PREDICTIVE_NOTE
from asbc.types import Density

# Samples between leader windows that simulated drivers follow, as in the leader bank.
STRIDE = 50


def evaluate_run(
    run: Run, data: pd.DataFrame | str | Path | Pairs | None = None, **settings: Any
) -> Evaluation:
    """Scores of a trained run; see `Run.evaluate`."""
    own = run.config["data"]
    if data is None:
        return evaluate_source(run, run.source(), EvaluationSettings(**settings), own)[0]
    pool = run.posterior.pool
    shortest = None if pool is None else pool.shortest * own["dt"]
    source = as_source(data, own["dt"], own["context_steps"], shortest)
    # Data that come without a config section are the run's own if they go by the same name.
    known = source.description == run.source().description
    section = own if known else {"context_steps": source.context_steps}
    chosen = EvaluationSettings(**{"split": "all", **settings})
    return evaluate_source(run, source, chosen, section)[0]


def evaluate_source(
    run: Run, source: DataSource, settings: EvaluationSettings, section: Mapping[str, Any]
) -> tuple[Evaluation, DataSummary]:
    """Scores of a trained run on one split of some data, and where these come from.

    Args:
        run: the trained run; its training data need not be there.
        source: the data.
        settings: protocol and sizes.
        section: the data's config section.
    """
    if settings.context == ALL and run.posterior.pool is None:
        raise no_history()
    pairs, summary = pairs_of_split(readable(source, run.posterior), settings.split)
    info = run_info(run, source, section)
    notes = notes_on_data(info, run.config["data"], section, settings.split)
    leaders = run.leaders(source.context_steps)
    if leaders is None:
        leaders = leader_windows(pairs, source.context_steps, STRIDE)
        notes.append(
            f"Contexts of {source.context_steps} samples are longer than the leaders kept with "
            "the run, so drivers were simulated behind those of the evaluated pairs to check the "
            "posterior."
        )
    predictive = run.objective == PREDICTIVE
    if predictive:
        notes.append(
            f"{PREDICTIVE_NOTE} Ranks of simulated drivers' parameters (SBC) would say nothing "
            "about it; what it claims is in the coverage of its predictions."
        )
        if run.widening != 1:
            notes.append(
                f"Its residuals are widened by a factor of {run.widening:.2f}, fitted to the "
                "coverage of the validation drivers' 95% intervals."
            )
    evaluation = evaluate_posterior(
        *(run.posterior, run.training, pairs, source.context_steps, leaders, settings, predictive),
        run.history,
    )
    weights = sum(value.numel() for value in run.posterior.parameters())
    return evaluation.of(info, notes, weights=weights), summary


def run_info(run: Run, source: DataSource, section: Mapping[str, Any]) -> RunInfo:
    """The row a trained run is in tables over many runs, when evaluated on `source`."""
    return RunInfo(
        method=run.label,
        kind="asbc",
        residual=run.config["residual"]["name"],
        residual_label=run.config["residual"]["label"],
        acquisition=run.config["acquisition"]["name"],
        variant=run.variant,
        seed=run.seed,
        # A source reads nothing before it is asked for pairs.
        trained_on=run.source().description,
        evaluated_on=source.description,
        other_data=is_other_data(run.config["data"], section),
        selected_round=run.selected_round,
        folder=run.shown,
        version=run.version,
    )


def is_other_data(trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> bool:
    """Whether two data sections name different data; where tables are cached does not matter."""
    ignored = {"cache_dir", "context_steps"}
    keys = (set(trained) | set(evaluated)) - ignored
    return any(trained.get(key) != evaluated.get(key) for key in keys)


def notes_on_data(
    info: RunInfo, trained: Mapping[str, Any], evaluated: Mapping[str, Any], split: str
) -> list[str]:
    """Facts about the data that a reader must see before the scores."""
    notes = []
    if info.other_data:
        notes.append(
            f"Evaluated on other data than it was trained on: trained on {info.trained_on}, "
            f"evaluated on {info.evaluated_on}."
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


@dataclass(frozen=True)
class Amortized:
    """What is known of an amortized posterior besides draws; of other methods nothing.

    Attributes:
        leak_rate: share of the evaluated pairs' draws that fell outside the prior's range.
        checks: on simulated drivers; None where the posterior is not the simulator's.
        novelty: the simulated drivers as yardstick.
        distance: of each pair's context from them, (pair,).
        narrowing: what seconds are worth, of a posterior that reads all that is known.
    """

    leak_rate: float | None = None
    checks: PosteriorChecks | None = None
    novelty: Novelty | None = None
    distance: Tensor | None = None
    narrowing: Narrowing | None = None

    def sections(self, pairs: Pairs) -> dict[str, Any]:
        """The sections of `metrics.json`; {} without any."""
        found = {} if self.narrowing is None else {"narrowing": self.narrowing.to_dict()}
        return found | self._of_simulated_drivers(pairs)

    def _of_simulated_drivers(self, pairs: Pairs) -> dict[str, Any]:
        if self.novelty is None or self.distance is None:
            return {}
        far = self.distance > self.novelty.threshold
        checked = {} if self.checks is None else {"simulated_drivers": self.checks.to_dict()}
        return checked | {
            "novelty": {
                "threshold": self.novelty.threshold,
                "median_distance": float(self.distance.median()),
                "share_flagged": float(far.double().mean()),
                "flagged": [pairs.pair_id[i] for i in torch.nonzero(far).flatten().tolist()],
            },
        }


def evaluate_posterior(
    posterior: Density,
    training: ContextSimulator,
    pairs: Pairs,
    context_steps: int,
    training_windows: LeaderWindows,
    settings: EvaluationSettings,
    predictive: bool = False,
    law: HistoryLaw | None = None,
) -> Evaluation:
    """Evaluate an amortized posterior: predictions, and the posterior itself.

    Args:
        posterior: the trained estimator.
        training: what it was trained on, and the simulator that predicts.
        pairs: observed pairs, the posterior of each conditioned on its first `context_steps`;
            with another `settings.context` each window's on what it says, while the section
            `posterior`, novelty and the cases stay about the first.
        context_steps: samples of context.
        training_windows: leaders to simulate drivers behind for the posterior's own checks.
        settings: protocol and sizes.
        predictive: whether it was trained to predict recorded drivers, so that checks of its
            parameters on simulated ones have no meaning.
        law: how much is known of a simulated driver, for a posterior of several segments.
    """
    if settings.context == ALL and pool_of(posterior) is None:
        raise no_history()
    windows, _ = protocol_windows(pairs, context_steps, settings)  # refuses unusable data first
    draws = sample_pairs(posterior, pairs, context_steps, settings.samples, settings.seed)
    known = Amortized(float(draws.leak_rate.mean()))
    if settings.simulated_drivers:
        count, seed = settings.simulated_drivers, settings.seed
        drivers = (
            simulate_drivers(training, training_windows, count, seed)
            if law is None
            else simulate_histories(training, training_windows, count, seed, law.draw)
        )
        prior = training.simulator.prior
        novelty = Novelty.fit(posterior.encode(drivers.states))
        known = Amortized(
            known.leak_rate,
            None
            if predictive
            else check_posterior(
                *(posterior, prior, drivers, settings.posterior_draws, settings.seed),
                # What moves on after a context spreads farther than the prior.
                None if training.exact else drivers.theta.var(dim=0),
            ),
            novelty,
            novelty.distance(posterior.encode(first_contexts(posterior, pairs, context_steps))),
        )
    if isinstance(posterior, Posterior) and posterior.pool is not None:
        found = narrowing(
            *(posterior, training.simulator.prior, pairs, context_steps),
            *(settings.posterior_draws, settings.seed),
        )
        known = replace(known, narrowing=found)
    theta = window_draws(
        *(settings.context, posterior, pairs, windows, context_steps, draws.theta, settings.seed)
    )
    simulator = training.simulator
    if isinstance(posterior, Posterior):
        simulator = posterior.teach(simulator)
    return evaluate_draws(simulator, theta, pairs, context_steps, settings, known)


def evaluate_draws(
    simulator: Simulator,
    theta: Draws,
    pairs: Pairs,
    context_steps: int,
    settings: EvaluationSettings,
    known: Amortized | None = None,
) -> Evaluation:
    """Evaluate parameter draws, whatever method they come from.

    Args:
        simulator: predicts with them.
        theta: (pair, draw, dim), or each window's own, as `settings.context` says; or a model
            that predicts without parameters.
        pairs: observed pairs.
        context_steps: samples of context.
        settings: protocol and sizes.
        known: of the amortized posterior they are drawn from, if they are.
    """
    known = known or Amortized()
    if isinstance(theta, Tensor):
        require_first_context(settings)
    of_pairs = theta if isinstance(theta, Tensor | Predictor) else theta.of_pairs
    windows, member = protocol_windows(pairs, context_steps, settings)
    scored = score_windows(
        simulator,
        theta,
        pairs,
        windows,
        settings.residual_prefix_steps,
        settings.residual_prefix_noise,
        settings.seed,
        settings.chunk,
        settings.scores,
        settings.observation_model(context_steps),
    )
    parts = {name: _part(scored, rows) for name, rows in member.items()}
    metrics = _metrics(simulator, of_pairs, pairs, context_steps, settings, parts, known)
    return Evaluation(
        metrics,
        windows=scored.table.assign(**member),
        simulated=scored.simulated,
        cases=study_cases(simulator, of_pairs, pairs, context_steps, settings),
        checks=known.checks,
        novelty=known.novelty,
        distance=None if known.distance is None else known.distance.numpy(),
        scores=settings.scores,
        narrowing=known.narrowing,
    )


def require_first_context(settings: EvaluationSettings) -> None:
    """Raise if windows are to have contexts of their own; for methods with draws by pair only."""
    if settings.context != FIRST:
        raise InputError(
            f"evaluation.context={settings.context} needs a posterior of any trajectory; this "
            f"method has one set of draws per pair: use evaluation.context={FIRST}"
        )


def _metrics(
    simulator: Simulator,
    theta: Tensor | Predictor,
    pairs: Pairs,
    context_steps: int,
    settings: EvaluationSettings,
    parts: Mapping[str, WindowScores],
    known: Amortized,
) -> dict[str, Any]:
    """The content of `metrics.json`, but for whose results they are."""
    metrics: dict[str, Any] = {
        name: summarise(part, settings.bootstrap, settings.seed, settings.scores)
        for name, part in parts.items()
    }
    metrics["posterior"] = {}
    if isinstance(theta, Tensor):
        learned = contraction(theta, prior_variance(simulator.prior)).median(dim=0).values
        names = simulator.parameter_names
        metrics["posterior"]["contraction"] = dict(zip(names, learned.tolist(), strict=True))
    metrics["settings"] = settings.to_dict()
    metrics["data"] = {
        "fingerprint": data_fingerprint(pairs),
        "n_pairs": len(pairs),
        "context_steps": context_steps,
        "dt": pairs.dt,
    }
    if pairs.true_theta is not None and isinstance(theta, Tensor):
        metrics["recovery"] = _recovery(simulator, theta, pairs, pairs.true_theta)
    if known.leak_rate is not None:
        metrics["posterior"]["leak_rate"] = known.leak_rate
    metrics |= known.sections(pairs)
    metrics["warnings"] = plain_warnings(metrics)
    return metrics


def _recovery(
    simulator: Simulator, theta: Tensor, pairs: Pairs, truth: Tensor
) -> dict[str, dict[str, float]]:
    """How well known parameters of observed pairs are found, by parameter."""
    names = [name for name in simulator.parameter_names if name in pairs.true_names]
    ours = [simulator.parameter_names.index(name) for name in names]
    theirs = [pairs.true_names.index(name) for name in names]
    found = recovery(truth[:, theirs], theta[..., ours])
    return {
        name: {key: float(value[i]) for key, value in found.items()}
        for i, name in enumerate(names)
    }


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
    longest = int(pairs.lengths.max())
    if len(grids[0].pair) == 0:
        raise InputError(
            f"no window of evaluation.horizon={settings.horizon} steps fits into the "
            f"{len(pairs)} pairs (longest: {longest} samples)"
        )
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
