"""What an evaluation yields: means, warnings, whose results they are, and the files they fill."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asbc.data.history import ALL, FIRST
from asbc.data.pairs import Pairs
from asbc.evaluation.cases import Cases
from asbc.evaluation.driving import compare
from asbc.evaluation.narrowing import Narrowing
from asbc.evaluation.observation import EXACT
from asbc.evaluation.protocol import WindowScores
from asbc.evaluation.sbc import PosteriorChecks
from asbc.evaluation.scores import SCORES, VARIABLES, Score, bootstrap_interval, named
from asbc.posterior.novelty import Novelty
from asbc.utils.files import write_text
from asbc.utils.random import stream

PROTOCOL_TITLES = {"all_windows": "all windows", "after_context": "after the context"}
PROTOCOLS = tuple(PROTOCOL_TITLES)
# Files of an evaluation.
METRICS, WINDOWS, CASES = "metrics.json", "windows.parquet", "cases.npz"
# Beyond these a reader is warned.
LOW_COVERAGE = 0.90
MANY_FLAGGED = 0.10
HIGH_LEAK = 0.05
MANY_COLLISIONS = 0.01


@dataclass(frozen=True)
class RunInfo:
    """One method's run.

    Attributes:
        method: how tables name it, without its seed.
        kind: "asbc" or "baseline".
        residual, residual_label: residual model of its simulator, and how tables write it.
        acquisition: how ASBC chose its simulations; None for baselines.
        variant: further overrides that make it a method of its own.
        seed: the run's seed; None where nothing is random.
        trained_on, evaluated_on: data in words.
        other_data: whether the two differ.
        selected_round: round whose weights were kept, for ASBC.
        folder: the run's folder.
        version: of the package that trained it.
        remark: what a table must say beside its name, e.g. that a sampler did not converge.
    """

    method: str
    kind: str
    residual: str
    residual_label: str
    trained_on: str
    evaluated_on: str
    acquisition: str | None = None
    variant: tuple[str, ...] = ()
    seed: int | None = None
    other_data: bool = False
    selected_round: int | None = None
    folder: str = ""
    version: str = ""
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `metrics.json`."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluation:
    """Everything a report shows of one method.

    Attributes:
        metrics: the content of `metrics.json`.
        windows: a row per window; `all_windows` and `after_context` say which protocols it is in.
        simulated: driving measures of simulated draws, rows as in `windows`.
        cases: posterior and prediction bands of every pair.
        checks: checks on simulated drivers, where the method has a posterior for any trajectory.
        novelty: the simulated contexts' yardstick, likewise.
        distance: novelty of each pair's context, (pair,).
        scores: what `windows` holds of each variable.
        narrowing: what seconds are worth, of a posterior that reads all that is known.
    """

    metrics: dict[str, Any]
    windows: pd.DataFrame
    simulated: dict[str, np.ndarray]
    cases: Cases
    checks: PosteriorChecks | None = None
    novelty: Novelty | None = None
    distance: np.ndarray | None = None
    scores: tuple[Score, ...] = SCORES
    narrowing: Narrowing | None = None

    def of(
        self,
        run: RunInfo,
        notes: Sequence[str] = (),
        warnings: Sequence[str] = (),
        **sections: Any,
    ) -> "Evaluation":
        """The same with whose results they are.

        Args:
            run: the method's run.
            notes: facts that a reader must see before the scores.
            warnings: reasons to be careful, besides those that the scores give.
            sections: further content of `metrics.json`.
        """
        about = {
            "run": run.to_dict(),
            "notes": list(notes),
            "warnings": [*self.metrics["warnings"], *warnings],
        }
        return replace(self, metrics=self.metrics | sections | about)


def averaged(scores: Sequence[Score] = SCORES) -> tuple[str, ...]:
    """The columns of `windows.parquet` whose means `metrics.json` reports.

    Example:
        >>> averaged()[:2], averaged()[-1]
        (('rmse_s', 'rmse_v'), 'collision_rate')
    """
    shown = [metric for score in scores if score.table for metric in score.columns]
    return (*shown, "collision_rate")


def summarise(
    windows: WindowScores, bootstrap: int, seed: int, scores: Sequence[Score] = SCORES
) -> dict[str, Any]:
    """Means over windows, medians, bootstrap intervals over pairs, and driving measures.

    With no window every mean is None.
    """
    table, names = windows.table, averaged(scores)
    if table.empty:
        return {name: None for name in names} | {"n_windows": 0, "n_pairs": 0}
    values = table[list(names)]
    ends = bootstrap_interval(values, table["pair_id"], bootstrap, stream(seed, "bootstrap"))
    observed = {name: table[f"observed_{name}"].to_numpy() for name in windows.simulated}
    return {
        **_by_name(values.mean()),
        "n_windows": len(table),
        "n_pairs": int(table["pair_id"].nunique()),
        "median": _by_name(values.median()),
        "interval95": {name: ends[:, i].tolist() for i, name in enumerate(names)},
        "driving": compare(windows.simulated, observed),
    }


def _by_name(values: pd.Series) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


def pair_ranking(table: pd.DataFrame) -> pd.Series:
    """Mean Energy Score over s, v and a of each pair, best first."""
    energy = table[list(named("es").columns)].mean(axis=1)
    return energy.groupby(table["pair_id"]).mean().sort_values(kind="stable")


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
    shares = [scores[metric] for metric in named("coverage95").columns]
    low = {
        variable.series: share
        for variable, share in zip(VARIABLES.values(), shares, strict=True)
        if share < LOW_COVERAGE
    }
    if low:
        held = ", ".join(f"{share:.0%} of the {name}s" for name, share in low.items())
        lines.append(
            f"Predictions are overconfident: on windows {when}, 95% intervals hold only {held}."
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


def data_fingerprint(pairs: Pairs) -> str:
    """A short hash of what was observed: equal for equal pairs, wherever their file lies."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr((pairs.pair_id, pairs.dt)).encode())
    for column in (pairs.offsets, pairs.gap, pairs.speed, pairs.leader_speed):
        digest.update(column.contiguous().numpy().tobytes())
    return digest.hexdigest()


def choices(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """What tables say beside a method that was not evaluated the paper's way.

    Example:
        >>> settings = {"context": "latest", "observation": "recorded"}
        >>> choices({"settings": settings, "data": {"context_steps": 75, "dt": 0.2}})
        ('latest 15 s', 'as recorded')
    """
    # Evaluations of earlier versions know neither setting.
    context = metrics["settings"].get("context", FIRST)
    observation = metrics["settings"].get("observation", EXACT)
    told = []
    if context == ALL:
        told.append("all that is known")
    elif context != FIRST:
        data = metrics["data"]
        told.append(f"{context} {data['context_steps'] * data['dt']:g} s")
    if observation != EXACT:
        told.append(f"as {observation}")
    return tuple(told)


def read_metrics(folder: Path) -> dict[str, Any]:
    """The content of an evaluation's `metrics.json`."""
    return json.loads((folder / METRICS).read_text())


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write `metrics.json`, `windows.parquet` and `cases.npz` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_json_values(evaluation.metrics), indent=2, allow_nan=False)
    write_text(folder / METRICS, text + "\n")
    evaluation.windows.to_parquet(folder / WINDOWS, index=False)
    evaluation.cases.save(folder / CASES)


def _json_values(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
