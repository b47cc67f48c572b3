"""The design study: runs scored once, its table and its figure from scores that are known."""

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from asbc.errors import InputError
from asbc.evaluation.monitor import validation_scores
from asbc.exact.reference import ExactPosteriors
from asbc.reporting import design_study
from asbc.reporting.collect import find_trained
from asbc.reporting.design_study import design_figure, design_table, over_seeds, way
from asbc.reporting.design_study import write_design_study as write
from asbc.run import Run
from asbc.simulator.robust import simulate_drivers


@pytest.fixture
def scores() -> pd.DataFrame:
    rows = [
        ("stream", "100k", 0, 100_000, 3.0, 4.0, 0.70),
        ("joint", "1k", 0, 1_200, 8.0, 6.0, 0.98),
        ("joint", "1k", 1, 1_000, 9.0, 6.5, 0.96),
    ]
    columns = ["way", "budget", "seed", "simulations", "loss", "es", "c2st"]
    return pd.DataFrame(rows, columns=columns)


def test_seeds_are_averaged_with_their_spread(scores):
    summary = over_seeds(scores)
    assert summary["way"].tolist() == ["joint", "stream"]
    first, last = summary.iloc[0], summary.iloc[1]
    assert (first["simulations"], first["loss"], first["seeds"]) == (1100, 8.5, 2)
    assert first["loss_std"] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(last["loss_std"])


def test_table_and_figure_show_every_row(scores, tmp_path):
    summary = over_seeds(scores)
    text = design_table(summary).to_markdown()
    assert "| joint | 1,100 | 2 | 8.50 ± 0.71 | 6.25 ± 0.35 | 0.970 ± 0.014 |" in text
    assert "| stream | 100,000 | 1 | 3.00 | 4.00 | 0.700 |" in text
    design_figure(summary).savefig(tmp_path / "design.png")
    assert (tmp_path / "design.png").stat().st_size > 10_000


@pytest.fixture
def exact(monkeypatch) -> list[int]:
    """Draws of the prior in place of exact posteriors; how many drivers were asked for."""
    asked: list[int] = []

    def prior_draws(run: Run, drivers: int, cache: Path) -> ExactPosteriors:
        asked.append(drivers)
        windows = run.leaders(run.config["data"]["context_steps"])
        simulated = simulate_drivers(run.simulator, windows, drivers, 0)
        rng = torch.Generator().manual_seed(0)
        draws = simulated.theta[torch.randint(drivers, (drivers, 60), generator=rng)]
        return ExactPosteriors(*simulated, draws, torch.tensor([False] + [True] * (drivers - 1)))

    monkeypatch.setattr(design_study, "exact_of", prior_draws)
    return asked


@pytest.fixture
def runs(trained, tmp_path) -> Path:
    """Two seeds of the loop, a run without rounds, and one that never finished a round."""
    short = "data.context_steps=8"  # leaves room for a window after it
    for name, overrides in {
        "joint/seed0": (short,),
        "joint/seed1": (short, "seed=1"),
        "npe/seed0": ("acquisition=random", "training.rounds=0"),
    }.items():
        shutil.copytree(trained(*overrides), tmp_path / "runs" / name)
    shutil.copytree(
        tmp_path / "runs" / "npe" / "seed0",
        tmp_path / "runs" / "npe" / "killed",
        ignore=shutil.ignore_patterns("checkpoints"),
    )
    return tmp_path / "runs"


def test_runs_are_scored_without_an_evaluation_and_only_once(runs, exact, tmp_path, caplog):
    found = find_trained(str(runs))
    assert "killed has no trained model" in caplog.text
    text = "\n".join(write(found, tmp_path / "out", 4, tmp_path / "cache"))
    assert exact == [4, 4, 4]
    table = pd.read_csv(tmp_path / "out" / "design.csv").set_index("run")
    assert table["way"].to_dict() == {"joint/seed0": "joint", "joint/seed1": "joint"} | {
        "npe/seed0": "npe"
    }
    # 96 of the warm-up and 2 rounds of 32.
    assert table["budget"].tolist() == [160, 160, 96]
    run = found[0]
    rounds = pd.read_csv(run.rounds).set_index("round")
    assert table.loc["joint/seed0", "loss"] == rounds["loss"].min()
    assert table.loc["joint/seed0", "simulations"] == rounds["simulations"].max()
    pairs = run.source().splits().validation
    scores = validation_scores(
        *(run.posterior, run.simulator, pairs, 8, len(pairs)), first_start=8
    )
    assert table.loc["joint/seed0", "es"] == pytest.approx(scores["validation_es"])
    assert math.isnan(table.loc["npe/seed0", "es"])  # 20 steps of context and 50 of 61
    assert table["c2st"].between(0.4, 1).all()
    assert "npe" in text and "report.html" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "posteriors of 1 of 4 drivers did not converge" in page
    write(found, tmp_path / "out", 4, tmp_path / "cache")
    assert len(exact) == 3  # nothing was scored again,
    write(found[:1], tmp_path / "out", 5, tmp_path / "cache")
    assert exact[3:] == [5]  # but with other drivers,
    assert len((tmp_path / "out" / "design.md").read_text().splitlines()) == 3
    assert len(pd.read_csv(tmp_path / "out" / "design.csv")) == 4  # and nothing was forgotten


def test_the_same_run_twice_is_refused(runs, exact, tmp_path):
    shutil.copytree(runs / "joint" / "seed0", runs / "joint" / "copy")
    with pytest.raises(
        InputError, match=r"copy.* spend 160 simulations in the same way \(joint\)"
    ):
        write(find_trained(str(runs)), tmp_path / "out", 4, tmp_path / "cache")
    assert exact == []


def test_folders_without_a_model_say_so(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no trained run found"):
        find_trained(str(tmp_path / "empty"))


def test_ways_of_ones_own_come_last(scores):
    mine = scores.assign(way=["mine", "joint", "joint"])
    assert over_seeds(mine)["way"].tolist() == ["joint", "mine"]
    assert way({"acquisition": {"name": "mine"}, "training": {"rounds": 3}}) == "mine"
