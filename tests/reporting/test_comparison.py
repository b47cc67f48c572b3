"""The comparison says plainly where a baseline beats ASBC."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from asbc.errors import InputError
from asbc.evaluation.results import PROTOCOLS, RunInfo
from asbc.reporting import study_report, study_tables
from asbc.reporting.collect import find_runs, require_comparable, with_suffixes
from asbc.reporting.study_report import compare_posteriors, write_comparison, write_study
from asbc.reporting.study_tables import (
    METRICS,
    agreement_table,
    comparison_table,
    over_seeds,
    score_table,
    verdict,
)


def edit_metrics(folder, **sections) -> None:
    """Change sections of a saved metrics.json."""
    file = folder / "evaluation" / "metrics.json"
    metrics = json.loads(file.read_text())
    for name, values in sections.items():
        metrics[name] = metrics.get(name, {}) | values
    file.write_text(json.dumps(metrics))


def summary(rows):
    """Rows of (kind, label, offset from 1 in every metric, with one metric replaced)."""
    return pd.DataFrame(
        [
            {"kind": kind, "label": label, **{f"{m}_mean": value for m in METRICS}, **own}
            for kind, label, value, own in rows
        ]
    )


def test_verdict_names_every_cell_a_baseline_wins():
    table = summary(
        [
            ("asbc", "ASBC-Gaussian", 2.0, {}),
            ("asbc", "ASBC-Matérn", 1.0, {"es_a_mean": 3.0}),
            ("baseline", "B-IDM", 1.5, {"es_a_mean": 1.9}),
            ("baseline", "Hierarchical", 1.0, {"rmse_s_mean": 0.9, "es_a_mean": 1.8}),
        ]
    )
    assert verdict(table) == [
        "ASBC is best in 4 of 6 columns.",
        "RMSE s: Hierarchical (0.900) beat ASBC-Matérn (1.00).",
        "ES a: Hierarchical (1.80), B-IDM (1.90) beat ASBC-Gaussian (2.00).",
    ]


def test_verdict_without_a_baseline():
    assert "Nothing to compare" in verdict(summary([("asbc", "A", 1.0, {})]))[0]


def test_agreement_in_numbers():
    found = {
        **{"drivers": 2, "c2st_mean": 0.6, "c2st_worst": 0.7, "interval_overlap": {"T": 0.8}},
        **{"nuts_seconds_per_driver": 2.0, "amortized_seconds_per_driver": 0.001},
        "speed_up": 2000.0,
    }
    rows = agreement_table([("ASBC", found)]).rows
    assert rows == [["ASBC", "2", "0.600 (worst 0.700)", "T 0.80", "2", "0.001", "2000"]]


def test_written_comparison(tmp_path):
    """Two evaluated runs on disk: an ASBC run and a baseline that did not converge."""
    scores = {name: 1.0 for name in METRICS} | {"n_windows": 5}
    scores |= {"coverage95_s": 0.814, "coverage95_v": 0.9, "coverage95_a": 0.95}
    scores |= {"collision_rate": 0.0125}
    shared = {
        "data": {"fingerprint": "x", "n_pairs": 2},
        "settings": {
            **dict.fromkeys(("split", "horizon", "stride", "max_windows", "samples"), 1),
            **dict.fromkeys(("residual_prefix_steps", "residual_prefix_noise"), 1),
        },
    }
    info = RunInfo(
        *("ASBC-Matérn", "asbc", "matern", "Matérn", "pairs: file", "pairs: file"), seed=0
    )
    remark = "1 of 2 drivers did not converge"
    exact = replace(info, method="NUTS", kind="baseline", remark=remark)
    convergence = {"r_hat": 1.03, "ess_bulk": 120.0, "divergences": 4, "converged": False}
    runs = {
        "matern": {"run": info.to_dict(), "weights": 12345},
        "nuts": {
            "run": exact.to_dict(),
            "baseline": {"fit_seconds": 12.3, "convergence": convergence},
        },
    }
    for name, metrics in runs.items():
        better = scores | ({"es_s": 0.5} if name == "nuts" else {})
        folder = tmp_path / name / "seed0" / "evaluation"
        folder.mkdir(parents=True)
        content = {**shared, **metrics, "all_windows": scores, "after_context": better}
        (folder / "metrics.json").write_text(json.dumps(content))
    seconds = "round,seconds_train,seconds_score\n0,30.0,\n1,20.0,4.0\n"
    (tmp_path / "matern" / "seed0" / "rounds.csv").write_text(seconds)
    found = find_runs(str(tmp_path / "*"))
    require_comparable(found)
    found = with_suffixes(found)
    summaries = {name: over_seeds(score_table(found, name)) for name in PROTOCOLS}
    write_comparison(found, summaries, [], tmp_path)
    text = (tmp_path / "comparison.md").read_text()
    all_windows, after_context = text.split("## Windows: ")[1:3]
    assert "ASBC is best in 6 of 6 columns." in all_windows
    assert "ES s: NUTS, 1 of 2 drivers did not converge (0.500) beat ASBC-Matérn" in after_context
    ours, theirs = [line for line in after_context.splitlines() if line.startswith("| ")][1:]
    assert ours.endswith("| **1.000** | **1.000** | 81/90/95 | 1.25% | 12,345 | 54 | – | – | – |")
    assert theirs.startswith("| NUTS, 1 of 2 drivers did not converge |")
    cost = "| 81/90/95 | 1.25% | – | 12 | 1.030 | 120 | 4 |"
    assert "| **0.500** |" in theirs and theirs.endswith(cost)


def test_a_score_that_should_be_high_wins_by_being_high(monkeypatch):
    better_high = replace(METRICS["es_a"], best="high")
    monkeypatch.setitem(study_tables.METRICS, "es_a", better_high)
    table = summary([("asbc", "A", 1.0, {"es_a_mean": 2.0}), ("baseline", "B", 1.0, {})])
    assert verdict(table) == ["ASBC is best in 6 of 6 columns."]


def test_the_worst_chain_of_all_seeds_counts(save_run, tmp_path):
    stuck = {"r_hat": None, "ess_bulk": None, "divergences": 1}
    for seed, found in enumerate([{"r_hat": 1.002, "ess_bulk": 900.0, "divergences": 2}, stuck]):
        run = save_run(f"b{seed}", acquisition=None, method="B-IDM", seed=seed)
        edit_metrics(
            run, run={"seed": seed}, baseline={"fit_seconds": 3.0 + seed, "convergence": found}
        )
    save_run("asbc")  # its rounds.csv has no seconds
    runs = with_suffixes(find_runs(str(tmp_path / "runs")))
    ours, theirs = comparison_table(over_seeds(score_table(runs, "all_windows"))).rows
    assert theirs[0] == "B-IDM" and theirs[-4:] == ["4", "∞", "0", "3"]
    assert ours[-4:] == ["–", "–", "–", "–"]


def test_data_without_a_window_after_the_context(save_run, tmp_path, draw_nothing):
    """Nothing is scored there, and nothing is claimed."""
    nothing = {name: None for name in METRICS} | dict.fromkeys(study_tables.COVERAGE)
    nothing["collision_rate"] = None
    for run in (save_run("asbc"), save_run("b", acquisition=None, method="B-IDM")):
        edit_metrics(run, after_context=nothing | {"n_windows": 0})
    runs = with_suffixes(find_runs(str(tmp_path / "runs")))
    summary = over_seeds(score_table(runs, "after_context"))
    assert "no window" in verdict(summary)[0]
    table = comparison_table(summary)
    assert table.bold == frozenset() and set(table.rows[0][1:]) == {"–"}
    write_study(runs, tmp_path / "out")
    assert "no window" in (tmp_path / "out" / "report.html").read_text()


def test_rows_say_which_drivers_they_were_trained_on_where_that_differs(save_run, tmp_path):
    for place in ("north", "south"):
        run = save_run(place, seed=0)
        edit_metrics(run, run={"trained_on": f"pairs: data/{place}/pairs.csv"})
    labels = [run.label for run in with_suffixes(find_runs(str(tmp_path / "runs")))]
    assert labels == [f"ASBC-Gaussian, trained on {place}" for place in ("north", "south")]


@pytest.fixture
def with_exact_draws(trained, save_run, tmp_path):
    """Runs of both residual models, and NUTS for one of them."""
    for name, overrides in {"gaussian": (), "matern": ("residual=matern",)}.items():
        shutil.copytree(trained(*overrides), tmp_path / "runs" / name)
        save_run(name, residual=name)
    nuts = save_run("nuts", acquisition=None, method="NUTS per driver (Gaussian)")
    edit_metrics(nuts, baseline={"fit_seconds": 9.0, "seconds_per_driver": 2.0})
    shutil.copy(tmp_path / "runs" / "gaussian" / "config.yaml", nuts)
    return with_suffixes(find_runs(str(tmp_path / "runs")))


def test_posteriors_are_compared_with_nuts_of_the_same_posterior(
    with_exact_draws, monkeypatch, tmp_path, draw_nothing
):
    compared = []

    def compare(exact, trained, output):
        compared.append((exact.path.name, trained.path.name, output.parent.name))
        return {
            **{"drivers": 2, "c2st_mean": 0.6, "c2st_worst": 0.7, "interval_overlap": {"T": 0.8}},
            **{"nuts_seconds_per_driver": 2.0, "amortized_seconds_per_driver": 0.001},
            "speed_up": 2000.0,
        }

    monkeypatch.setattr(study_report, "compare_runs", compare)
    assert write_study(with_exact_draws, tmp_path / "out", agreement=False) and not compared
    assert "Against NUTS" not in (tmp_path / "out" / "comparison.md").read_text()
    write_study(with_exact_draws, tmp_path / "out")
    assert compared == [("nuts", "gaussian", "gaussian")]
    row = "| ASBC-Gaussian, seed 0 | 2 | 0.600 (worst 0.700) | T 0.80 | 2 | 0.001 | 2000 |"
    assert row in (tmp_path / "out" / "comparison.md").read_text()
    assert "0.600 (worst 0.700)" in (tmp_path / "out" / "report.html").read_text()


def test_a_comparison_with_nuts_that_cannot_be_made_is_mentioned(with_exact_draws, monkeypatch):
    def fail(*_):
        raise InputError("the data have changed")

    monkeypatch.setattr(study_report, "compare_runs", fail)
    missing = []
    assert compare_posteriors(with_exact_draws, missing) == []
    [line] = missing
    assert line.endswith("with NUTS per driver (Gaussian): the data have changed")
