"""From a fitted baseline to the files of an evaluated run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from asbc.data.history import FIRST
from asbc.data.pairs import Pairs
from asbc.data.source import DataSource
from asbc.evaluation.evaluate import evaluate_draws, require_first_context
from asbc.evaluation.predict import Predictor
from asbc.evaluation.protocol import EvaluationSettings
from asbc.evaluation.results import Evaluation, RunInfo
from asbc.exact.diagnostics import Convergence
from asbc.run import key_of
from asbc.simulator import Simulator

if TYPE_CHECKING:
    from arviz import InferenceData
# Overrides that do not make another row: named by the label, or without effect on the result.
NAMED = ("residual", "baseline", "baseline.prior", "baseline.kernel", "baseline.pooled")
INCIDENTAL = ("seed", "threads", "baseline.compare_run", "baseline.drivers_at_once")
INCIDENTAL_SECTIONS = ("evaluation", "hydra", "data", "engine")


@dataclass(frozen=True)
class Task:
    """A calibration problem.

    Attributes:
        simulator: law, residual process, prior and kinematics of the config.
        known: pairs a method may learn from, with their whole trajectories.
        test: pairs to predict; a method sees their first `context_steps` samples only, or as
            many before each window.
        context_steps: samples of context.
        samples: parameter draws, or rollouts, wanted for each test pair.
        seed: all randomness.
        validation: ids of the known pairs that a training is stopped by.
        context: what windows are predicted from, `first` or `latest`.
    """

    simulator: Simulator
    known: Pairs
    test: Pairs
    context_steps: int
    samples: int
    seed: int
    validation: Collection[str] = ()
    context: str = FIRST

    def train_and_validation(self) -> tuple[Pairs, Pairs]:
        """The known pairs that train, and those that stop."""
        held = [name in self.validation for name in self.known.pair_id]
        return (
            self.known.select([i for i, out in enumerate(held) if not out]),
            self.known.select([i for i, out in enumerate(held) if out]),
        )


@dataclass(frozen=True)
class Fitted:
    """Parameter draws, and the simulator to roll them out with.

    Attributes:
        simulator: as in the task, or with the method's own residual process.
        theta: (pair, draw, dim) float32, or a model that predicts without parameters.
        pairs: the test pairs the draws belong to.
        details: what metrics.json keeps of the fit.
        inference: all draws with their diagnostics, where the method is Bayesian.
        convergence: the verdict on them.
        worker_seconds: CPU time that the fit took in other processes.
    """

    simulator: Simulator
    theta: Tensor | Predictor
    pairs: Pairs
    details: dict[str, Any] = field(default_factory=dict)
    inference: "InferenceData | None" = None
    convergence: Convergence | None = None
    worker_seconds: float = 0.0


class Baseline(Protocol):
    """A comparison method; built from a file of the `baseline` config group.

    One that predicts from more than the first context says so in `contexts`.
    """

    def label(self, residual: str) -> str:
        """How tables name the method with this residual model."""
        ...

    def fit(self, task: Task) -> Fitted:
        """Calibrate on the task's pairs."""
        ...


def require_context(method: Baseline, settings: EvaluationSettings) -> None:
    """Raise unless the method can predict from the context that is asked for."""
    if settings.context not in getattr(method, "contexts", ()):
        require_first_context(settings)


def for_every_pair(theta: Tensor, pairs: Pairs) -> Tensor:
    """The same draws (samples, dim) for each pair: (pair, samples, dim)."""
    return theta.expand(len(pairs), *theta.shape).contiguous()


def known_pairs(source: DataSource) -> Pairs:
    """Training and validation pairs: no baseline chooses anything by a validation score."""
    pairs = source.pairs()
    held_out = set(source.splits().test.pair_id)
    return pairs.select([i for i, name in enumerate(pairs.pair_id) if name not in held_out])


def evaluate_baseline(
    fitted: Fitted, task: Task, settings: EvaluationSettings, seconds: float, info: RunInfo
) -> Evaluation:
    """Scores of the fitted draws, with the fit's own record and warnings."""
    evaluation = evaluate_draws(
        fitted.simulator, fitted.theta, fitted.pairs, task.context_steps, settings
    )
    record: dict[str, Any] = {"fit_seconds": seconds, **fitted.details}
    warnings: list[str] = []
    if fitted.convergence is not None:
        record["convergence"] = fitted.convergence.to_dict()
        warnings = fitted.convergence.warnings()
    return evaluation.of(info, warnings=warnings, baseline=record)


def run_info(
    method: Baseline,
    fitted: Fitted,
    residual: Mapping[str, Any],
    overrides: Sequence[str],
    seed: int,
    source: DataSource,
) -> RunInfo:
    """The row this run is in tables over many runs.

    Args:
        method: the baseline.
        fitted: its result.
        residual: the config's section of that name.
        overrides: the command line.
        seed: the run's seed.
        source: its data.
    """
    return RunInfo(
        method=method.label(residual["label"]),
        kind="baseline",
        residual=residual["name"],
        residual_label=residual["label"],
        variant=tuple(text for text in overrides if _makes_a_variant(text)),
        seed=seed,
        trained_on=source.description,
        evaluated_on=source.description,
        version=version("asbc"),
        remark="" if fitted.convergence is None else fitted.convergence.remark,
    )


def _makes_a_variant(override: str) -> bool:
    name = key_of(override)
    if name == "data.context_steps":
        return True
    section = name.partition(".")[0].partition("/")[0]
    return name not in (*NAMED, *INCIDENTAL) and section not in INCIDENTAL_SECTIONS
