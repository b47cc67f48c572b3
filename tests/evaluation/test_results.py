"""Summaries recomputed from the table by hand, and settings that refuse nonsense."""

import numpy as np
import pandas as pd
import pytest

from asbc.errors import InputError
from asbc.evaluation.protocol import EvaluationSettings, WindowScores
from asbc.evaluation.results import averaged, pair_ranking, summarise

AVERAGED = averaged()


def scores() -> WindowScores:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.exponential(size=(30, len(AVERAGED))), columns=list(AVERAGED))
    table.insert(0, "pair_id", np.repeat(["a", "b", "c"], [5, 10, 15]))
    table["observed_min_ttc"] = rng.uniform(0, 30, 30)
    return WindowScores(table, {"min_ttc": rng.uniform(0, 30, (30, 50))})


def test_means_medians_and_counts() -> None:
    window_scores = scores()
    result = summarise(window_scores, bootstrap=200, seed=0)
    for name in AVERAGED:
        column = window_scores.table[name].tolist()
        assert result[name] == pytest.approx(sum(column) / 30)
        assert result["median"][name] == pytest.approx(np.median(column))
        low, high = result["interval95"][name]
        assert low < result[name] < high
    assert (result["n_windows"], result["n_pairs"]) == (30, 3)
    assert set(result["driving"]["min_ttc"]) >= {"wasserstein", "ks"}


def test_no_window_gives_none_not_nan() -> None:
    result = summarise(WindowScores(pd.DataFrame(), {}), bootstrap=10, seed=0)
    assert result["rmse_s"] is None and result["n_windows"] == 0


def test_ranking_is_by_the_mean_energy_score() -> None:
    table = pd.DataFrame(
        {
            "pair_id": ["x", "x", "y"],
            "es_s": [1.0, 3.0, 1.0],
            "es_v": [1.0, 3.0, 1.0],
            "es_a": [1.0, 3.0, 2.5],
        }
    )
    ranking = pair_ranking(table)
    assert ranking.index.tolist() == ["y", "x"]
    np.testing.assert_allclose(ranking, [1.5, 2.0])


@pytest.mark.parametrize(
    ("field", "value"), [("split", "testing"), ("horizon", 0), ("samples", 1), ("chunk", 0)]
)
def test_bad_settings_are_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"evaluation\.{field}={value}"):
        EvaluationSettings(**{field: value})
