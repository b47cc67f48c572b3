"""From a fitted baseline to the files of an evaluated run."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from asbc.baselines.method import Baseline, Fitted, Task
from asbc.data.pairset import PairSet
from asbc.data.source import DataSource
from asbc.data.splits import split_by_follower
from asbc.evaluation.pipeline import evaluate_draws
from asbc.evaluation.results import Evaluation
from asbc.evaluation.run_info import RESIDUAL_NAMES, RunInfo
from asbc.evaluation.settings import EvaluationSettings

# Overrides that do not make another row: named by the label, or without effect on the result.
NAMED = ("residual", "baseline", "baseline.prior", "baseline.kernel", "baseline.pooled")
INCIDENTAL = ("seed", "threads", "baseline.compare_run", "baseline.drivers_at_once")
INCIDENTAL_SECTIONS = ("evaluation", "hydra", "data")


def known_pairs(source: DataSource) -> PairSet:
    """Training and validation pairs: no baseline chooses anything by a validation score."""
    pairs = source.pairs()
    _, _, test = split_by_follower(pairs, source.split, source.split_seed)
    held_out = set(test.pair_id)
    return pairs.select([i for i, name in enumerate(pairs.pair_id) if name not in held_out])


def evaluate_baseline(
    fitted: Fitted, task: Task, settings: EvaluationSettings, seconds: float
) -> Evaluation:
    """Scores of the fitted draws, with the fit's own record and warnings."""
    evaluation = evaluate_draws(
        fitted.simulator, fitted.theta, fitted.pairs, task.context_steps, settings
    )
    record: dict[str, Any] = {"fit_seconds": seconds, **fitted.details}
    if fitted.convergence is not None:
        record["convergence"] = fitted.convergence.to_dict()
        evaluation.metrics["warnings"] += fitted.convergence.warnings()
    evaluation.metrics["baseline"] = record
    return evaluation


def run_info(
    method: Baseline,
    fitted: Fitted,
    choices: Mapping[str, Any],
    overrides: Sequence[str],
    seed: int,
    source: DataSource,
) -> RunInfo:
    """The row this run is in tables over many runs.

    Args:
        method: the baseline.
        fitted: its result.
        choices: Hydra's choice of each config group.
        overrides: the command line.
        seed: the run's seed.
        source: its data.
    """
    residual = choices["residual"]
    return RunInfo(
        method=method.label(RESIDUAL_NAMES.get(residual, residual)),
        kind="baseline",
        residual=residual,
        variant=tuple(text for text in overrides if _makes_a_variant(text)),
        seed=seed,
        trained_on=source.description,
        evaluated_on=source.description,
        version=version("asbc"),
        remark="" if fitted.convergence is None else fitted.convergence.remark,
    )


def _makes_a_variant(override: str) -> bool:
    name = override.partition("=")[0].lstrip("+~")
    if name == "data.context_steps":
        return True
    section = name.partition(".")[0].partition("/")[0]
    return name not in (*NAMED, *INCIDENTAL) and section not in INCIDENTAL_SECTIONS
