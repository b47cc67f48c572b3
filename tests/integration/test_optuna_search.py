"""The search proposes values in their ranges, keeps what it learned, and minimises."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

optuna = pytest.importorskip("optuna")
SCRIPT = str(Path(__file__).parents[2] / "scripts" / "optuna_search.py")


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """Run the script with `asbc train` replaced by a parabola in the learning rate."""
    calls: list[dict[str, str]] = []

    def train(command: list[str]) -> SimpleNamespace:
        assert command[1:4] == ["-m", "asbc", "train"]
        given = dict(text.split("=", 1) for text in command[4:])
        calls.append(given)
        folder = Path(given["hydra.run.dir"])
        folder.mkdir(parents=True)
        loss = (float(given["estimator.learning_rate"]) - 2e-3) ** 2 + float(given["flow.layers"])
        # The metric of the kept round counts, not the smallest.
        pd.DataFrame({"loss": [loss, loss + 1], "validation_es": [7.0, 5.0]}).to_csv(
            folder / "rounds.csv", index=False
        )
        return SimpleNamespace(returncode=int(given["flow.layers"] == "9"))

    monkeypatch.setattr("subprocess.run", train)

    def run(*arguments: str) -> str:
        output = ["--output", str(tmp_path / "search")]
        monkeypatch.setattr(sys, "argv", [SCRIPT, *output, *arguments])
        runpy.run_path(SCRIPT, run_name="__main__")
        return capsys.readouterr().out

    run.calls = calls
    return run


def test_search(search):
    space = ["residual=matern", "estimator.learning_rate=1e-4..3e-3", "flow.layers=3,5,9"]
    search("--trials", "8", *space)
    text = search("--trials", "7", *space)
    assert [call["hydra.run.dir"].split("/")[-1] for call in search.calls] == [
        f"trial{i}" for i in range(15)
    ]
    for call in search.calls:
        assert 1e-4 <= float(call["estimator.learning_rate"]) <= 3e-3
        assert call["flow.layers"] in ("3", "5", "9") and call["residual"] == "matern"
    assert "best loss 3.0000" in text and "flow.layers=3" in text


def test_other_metrics(search):
    space = ["estimator.learning_rate=1e-3..3e-3", "flow.layers=3"]
    assert "best validation_es 7.0000" in search(
        "--trials", "2", "--metric", "validation_es", *space
    )
