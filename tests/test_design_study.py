"""The table and figure of the design study, from scores that are known."""

import importlib.util
import math
from pathlib import Path

import pandas as pd
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "design_study.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("design_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def scores() -> pd.DataFrame:
    rows = [
        ("stream", "100k", 0, 100_000, 3.0, 4.0, 0.70),
        ("joint", "1k", 0, 1_200, 8.0, 6.0, 0.98),
        ("joint", "1k", 1, 1_000, 9.0, 6.5, 0.96),
    ]
    columns = ["way", "budget", "seed", "simulations", "loss", "es", "c2st"]
    return pd.DataFrame(rows, columns=columns)


def test_seeds_are_averaged_with_their_spread(study, scores):
    summary = study.over_seeds(scores)
    assert summary["way"].tolist() == ["joint", "stream"]
    first, last = summary.iloc[0], summary.iloc[1]
    assert (first["simulations"], first["loss"], first["seeds"]) == (1100, 8.5, 2)
    assert first["loss_std"] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(last["loss_std"])


def test_table_and_figure_show_every_row(study, scores, tmp_path):
    summary = study.over_seeds(scores)
    text = study.to_markdown(summary)
    assert "| joint | 1,100 | 2 | 8.50 ± 0.71 | 6.25 ± 0.35 | 0.970 ± 0.014 |" in text
    assert "| stream | 100,000 | 1 | 3.00 | 4.00 | 0.700 |" in text
    study.draw(summary).savefig(tmp_path / "design.png")
    assert (tmp_path / "design.png").stat().st_size > 10_000
