"""What an evaluation yields, and the files it is kept in."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asbc.data.pairset import PairSet
from asbc.evaluation.cases import Cases
from asbc.evaluation.novelty import Novelty
from asbc.evaluation.posterior_checks import PosteriorChecks

PROTOCOLS = ("all_windows", "after_context")


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


def data_fingerprint(pairs: PairSet) -> str:
    """A short hash of what was observed: equal for equal pairs, wherever their file lies."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr((pairs.pair_id, pairs.dt)).encode())
    for column in (pairs.offsets, pairs.gap, pairs.speed, pairs.leader_speed):
        digest.update(column.contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write `metrics.json`, `windows.parquet` and `cases.npz` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_json_values(evaluation.metrics), indent=2, allow_nan=False)
    (folder / "metrics.json").write_text(text + "\n")
    evaluation.windows.to_parquet(folder / "windows.parquet", index=False)
    evaluation.cases.save(folder / "cases.npz")


def _json_values(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
