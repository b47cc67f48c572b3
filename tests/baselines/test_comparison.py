"""The comparison says plainly where a baseline beats ASBC."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from asbc.evaluation.results import RunInfo
from asbc.reporting.run_tables import METRICS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def comparison():
    path = ROOT / "scripts" / "comparison.py"
    spec = importlib.util.spec_from_file_location("comparison", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary(rows):
    """Rows of (kind, label, offset from 1 in every metric, with one metric replaced)."""
    return pd.DataFrame(
        [
            {"kind": kind, "label": label, **{f"{m}_mean": value for m in METRICS}, **own}
            for kind, label, value, own in rows
        ]
    )


def test_verdict_names_every_cell_a_baseline_wins(comparison):
    table = summary(
        [
            ("asbc", "ASBC-Gaussian", 2.0, {}),
            ("asbc", "ASBC-Matérn", 1.0, {"es_a_mean": 3.0}),
            ("baseline", "B-IDM", 1.5, {"es_a_mean": 1.9}),
            ("baseline", "Hierarchical", 1.0, {"rmse_s_mean": 0.9, "es_a_mean": 1.8}),
        ]
    )
    assert comparison.verdict(table) == [
        "ASBC is best in 4 of 6 columns.",
        "RMSE s: Hierarchical (0.900) beat ASBC-Matérn (1.00).",
        "ES a: Hierarchical (1.80), B-IDM (1.90) beat ASBC-Gaussian (2.00).",
    ]


def test_verdict_without_a_baseline(comparison):
    assert "Nothing to compare" in comparison.verdict(summary([("asbc", "A", 1.0, {})]))[0]


def test_agreement_in_numbers(comparison):
    found = {
        **{"drivers": 2, "c2st_mean": 0.6, "c2st_worst": 0.7, "interval_overlap": {"T": 0.8}},
        **{"nuts_seconds_per_driver": 2.0, "amortized_seconds_per_driver": 0.001},
        "speed_up": 2000.0,
    }
    rows = comparison.agreement_table([("ASBC", found)]).rows
    assert rows == [["ASBC", "2", "0.600 (worst 0.700)", "T 0.80", "2", "0.001", "2000"]]


def test_written_comparison(comparison, tmp_path):
    """Two evaluated runs on disk: an ASBC run and a baseline that did not converge."""
    scores = {name: 1.0 for name in METRICS} | {"n_windows": 5}
    scores |= {"coverage95_s": 0.814, "coverage95_v": 0.9, "coverage95_a": 0.95}
    shared = {
        "data": {"fingerprint": "x", "n_pairs": 2},
        "settings": {
            **dict.fromkeys(("split", "horizon", "stride", "max_windows", "samples"), 1),
            **dict.fromkeys(("residual_prefix_steps", "residual_prefix_noise"), 1),
        },
    }
    info = RunInfo("ASBC-Matérn", "asbc", "matern", "pairs: file", "pairs: file", seed=0)
    remark = "1 of 2 drivers did not converge"
    exact = replace(info, method="NUTS", kind="baseline", remark=remark)
    convergence = {"r_hat": 1.03, "ess_bulk": 120.0, "divergences": 4, "converged": False}
    runs = {
        "matern": {"run": info.to_dict()},
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
    text = comparison.write_comparison(tmp_path).read_text()
    all_windows, after_context = text.split("## Windows: ")[1:3]
    assert "ASBC is best in 6 of 6 columns." in all_windows
    assert "ES s: NUTS, 1 of 2 drivers did not converge (0.500) beat ASBC-Matérn" in after_context
    ours, theirs = [line for line in after_context.splitlines() if line.startswith("| ")][1:]
    assert ours.endswith("| 1.000 | **1.000** | **1.000** | 81/90/95 | 54 | – | – | – |")
    assert theirs.startswith("| NUTS, 1 of 2 drivers did not converge |")
    assert "| **0.500** |" in theirs and theirs.endswith("| 81/90/95 | 12 | 1.030 | 120 | 4 |")
