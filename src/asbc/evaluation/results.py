"""What an evaluation yields, and the files it is kept in."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asbc.data.pairs import Pairs
from asbc.evaluation.cases import Cases
from asbc.evaluation.checks import PosteriorChecks
from asbc.evaluation.driving import compare
from asbc.evaluation.protocol import VARIABLES, WindowScores
from asbc.evaluation.scores import COVERAGE_LEVELS, bootstrap_interval, coverage_name
from asbc.posterior.novelty import Novelty
from asbc.utils.files import write_text
from asbc.utils.random import stream

SCORES = ("rmse", "es", "crps", *(coverage_name(level) for level in COVERAGE_LEVELS))
AVERAGED = (*(f"{score}_{x}" for score in SCORES for x in VARIABLES), "collision_rate")


def summarise(scores: WindowScores, bootstrap: int, seed: int) -> dict[str, Any]:
    """Means over windows, medians, bootstrap intervals over pairs, and driving measures.

    With no window every mean is None.
    """
    table = scores.table
    if table.empty:
        return {name: None for name in AVERAGED} | {"n_windows": 0, "n_pairs": 0}
    values = table[list(AVERAGED)]
    ends = bootstrap_interval(values, table["pair_id"], bootstrap, stream(seed, "bootstrap"))
    return {
        **_by_name(values.mean()),
        "n_windows": len(table),
        "n_pairs": int(table["pair_id"].nunique()),
        "median": _by_name(values.median()),
        "interval95": {name: ends[:, i].tolist() for i, name in enumerate(AVERAGED)},
        "driving": compare(scores.simulated, _observed_measures(table)),
    }


def _by_name(values: pd.Series) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


def _observed_measures(table: pd.DataFrame) -> dict[str, Any]:
    names = [name for name in table if str(name).startswith("observed_")]
    return {str(name).removeprefix("observed_"): table[name].to_numpy() for name in names}


def pair_ranking(table: pd.DataFrame) -> pd.Series:
    """Mean Energy Score over s, v and a of each pair, best first."""
    energy = table[[f"es_{x}" for x in VARIABLES]].mean(axis=1)
    return energy.groupby(table["pair_id"]).mean().sort_values(kind="stable")


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


PROTOCOL_TITLES = {"all_windows": "all windows", "after_context": "after the context"}
PROTOCOLS = tuple(PROTOCOL_TITLES)
# Files of an evaluation.
METRICS, WINDOWS, CASES = "metrics.json", "windows.parquet", "cases.npz"


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
    """

    metrics: dict[str, Any]
    windows: pd.DataFrame
    simulated: dict[str, np.ndarray]
    cases: Cases
    checks: PosteriorChecks | None = None
    novelty: Novelty | None = None
    distance: np.ndarray | None = None


def data_fingerprint(pairs: Pairs) -> str:
    """A short hash of what was observed: equal for equal pairs, wherever their file lies."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr((pairs.pair_id, pairs.dt)).encode())
    for column in (pairs.offsets, pairs.gap, pairs.speed, pairs.leader_speed):
        digest.update(column.contiguous().numpy().tobytes())
    return digest.hexdigest()


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
