"""From a row per window to the numbers people quote."""

from typing import Any

import pandas as pd

from asbc.evaluation.bootstrap import bootstrap_interval
from asbc.evaluation.driving import compare
from asbc.evaluation.protocol import VARIABLES, WindowScores
from asbc.evaluation.scores import COVERAGE_LEVELS, coverage_name
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
