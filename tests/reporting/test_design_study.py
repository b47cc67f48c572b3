"""The design study: runs scored once, its table and its figure from scores that are known."""

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from asbc.errors import InputError
from asbc.evaluation.monitor import validation_scores
from asbc.exact.reference import ExactPosteriors, ObservedPosteriors
from asbc.reporting import design_study
from asbc.reporting.collect import find_trained
from asbc.reporting.design_study import (
    SCORES,
    design_table,
    over_seeds,
    savings_table,
    way,
)
from asbc.reporting.design_study import write_design_study as write
from asbc.reporting.figures.design import design_figure
from asbc.run import Run
from asbc.simulator.robust import simulate_drivers
from asbc.utils.random import stream


@pytest.fixture
def scores() -> pd.DataFrame:
    rows = [
        ("stream", 100_000, 0, 100_000, 3.0, 4.0, 0.70, 2.0),
        ("joint", 1_200, 0, 1_200, 8.0, 6.0, 0.98, 5.0),
        ("joint", 1_200, 1, 1_000, 9.0, 6.5, 0.96, 6.0),
        ("npe", 1_200, 0, 1_200, 7.0, 6.0, 0.9, 4.0),
        ("npe", 1_200, 1, 1_200, 7.2, 6.0, 0.9, 4.2),
        ("targeted", 798, 0, 798, 7.1, 6.0, 0.9, 3.0),
        ("targeted", 798, 1, 798, 7.3, 6.0, 0.9, 3.2),
    ]
    columns = ["way", "budget", "seed", "simulations", "loss", "es", "c2st", "target"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(residual="matern", steps=100, target_mean=table["target"] + 1)


@pytest.fixture
def floor() -> pd.DataFrame:
    return pd.DataFrame({"loss": [9.1], "target": [8.9], "target_mean": [9.4]}, index=["matern"])


def test_seeds_are_averaged_with_their_spread(scores):
    summary = over_seeds(scores)
    assert summary["way"].tolist() == ["targeted", "npe", "joint", "stream"]
    first, last = summary.iloc[2], summary.iloc[3]
    assert (first["simulations"], first["loss"], first["seeds"]) == (1100, 8.5, 2)
    assert first["loss_std"] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(last["loss_std"])


def test_table_and_figure_show_every_row(scores, floor, tmp_path):
    summary = over_seeds(scores)
    text = design_table(summary, floor).to_markdown()
    joint = "8.50 ± 0.71 | 5.50 ± 0.71 | 6.50 ± 0.71 | 0.970 ± 0.014 | 6.25 ± 0.35 |"
    assert f"| matern | joint | 1,100 | 100 | 2 | {joint}" in text
    assert "| matern | stream | 100,000 | 100 | 1 | 3.00 | 2.00 | 3.00 | 0.700 | 4.00 |" in text
    assert "| matern | prior | 0 | – | – | 9.10 | 8.90 | 9.40 | – | – |" in text
    design_figure(summary, floor, SCORES).savefig(tmp_path / "design.png")
    assert (tmp_path / "design.png").stat().st_size > 10_000


def test_savings_say_whether_the_gain_is_beyond_the_spread(scores):
    text = savings_table(scores).to_markdown()
    assert "| matern | 1,200 | targeted | 798 | 4.10 ± 0.14 | 3.10 ± 0.14 | yes | +0.10 |" in text
    scores.loc[scores["way"] == "targeted", "target"] += 1
    assert "within the spread" in savings_table(scores).to_markdown()
    scores.loc[scores["way"] == "targeted", "target"] += 1
    assert "| no |" in savings_table(scores).to_markdown()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "joint"}, "joint"),
        ({"uniform_share": 0.5, "known_share": 0.5}, "targeted"),
        ({"uniform_share": 0.5, "known_share": 0.5, "symmetry": True}, "targeted, symmetry"),
        ({"uniform_share": 1.0, "known_share": 0.5}, "targeted, no selection"),
        ({"uniform_share": 0.5, "known_share": 0.0}, "targeted, simulations alone"),
        ({"name": "random", "rounds": 0, "symmetry": True}, "npe, symmetry"),
    ],
)
def test_a_way_is_named_after_what_it_does(config, expected):
    loop = {"rounds": config.get("rounds", 2), "symmetry": config.get("symmetry", False)}
    assert way({"acquisition": {"name": "targeted"} | config, "training": loop}) == expected


@pytest.fixture
def exact(monkeypatch) -> list[int]:
    """Draws of the prior in place of exact posteriors; how many drivers were asked for."""
    asked: list[int] = []

    def prior_draws(run: Run, drivers: int, cache: Path, engine) -> ExactPosteriors:
        asked.append(drivers)
        windows = run.leaders(run.config["data"]["context_steps"])
        simulated = simulate_drivers(run.simulator, windows, drivers, 0)
        rng = torch.Generator().manual_seed(0)
        draws = simulated.theta[torch.randint(drivers, (drivers, 60), generator=rng)]
        return ExactPosteriors(*simulated, draws, torch.tensor([False] + [True] * (drivers - 1)))

    def observed(simulator, pairs, steps, cache, engine):
        draws = simulator.prior.sample(30, stream(0, "draws")).expand(len(pairs), -1, -1)
        sure = torch.ones(len(pairs), dtype=torch.bool)
        return ObservedPosteriors(pairs.contexts(steps), draws, sure)

    monkeypatch.setattr(design_study, "exact_of", prior_draws)
    monkeypatch.setattr(design_study, "observed_posteriors", observed)
    monkeypatch.setattr("asbc.exact.reference.observed_posteriors", observed)
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
    drawn = run.simulator.prior.sample(30, stream(0, "draws")).expand(len(pairs), -1, -1)
    loss = -run.posterior.log_prob(drawn, pairs.contexts(8)).mean(dim=1)
    assert table.loc["joint/seed0", "target_validation"] == pytest.approx(float(loss.median()))
    assert table["steps"].gt(0).all() and table["warmup_loss"].ge(table["loss"]).all()
    assert "npe" in text and "report.html" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "posteriors of 1 of 4 drivers did not converge" in page
    write(found, tmp_path / "out", 4, tmp_path / "cache")
    assert len(exact) == 3  # nothing was scored again,
    write(found[:1], tmp_path / "out", 5, tmp_path / "cache")
    assert exact[3:] == [5]  # but with other drivers,
    assert len((tmp_path / "out" / "design.md").read_text().splitlines()) == 3 + 1 + 1 + 2
    assert len(pd.read_csv(tmp_path / "out" / "design.csv")) == 4  # and nothing was forgotten


def test_ways_that_end_with_the_same_weights_keep_their_names(runs, exact, tmp_path):
    """Loops that decline every round end where their common warm-up did."""
    shutil.copytree(runs / "joint" / "seed0", runs / "prior_only" / "seed0")
    config = runs / "prior_only" / "seed0" / "config.yaml"
    config.write_text(config.read_text().replace("name: joint", "name: prior_only"))
    write(find_trained(str(runs)), tmp_path / "out", 4, tmp_path / "cache")
    assert len(exact) == 3  # their scores are the same, once
    table = pd.read_csv(tmp_path / "out" / "design.csv").set_index("run")
    assert table["way"].to_dict() == {
        **{"joint/seed0": "joint", "joint/seed1": "joint"},
        **{"npe/seed0": "npe", "prior_only/seed0": "prior_only"},
    }
    assert table.loc["prior_only/seed0", "c2st"] == table.loc["joint/seed0", "c2st"]


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
    mine = scores.replace({"way": {"targeted": "mine"}}).assign(budget=1)
    assert over_seeds(mine)["way"].tolist() == ["npe", "joint", "stream", "mine"]
    loop = {"rounds": 3, "symmetry": False}
    assert way({"acquisition": {"name": "mine"}, "training": loop}) == "mine"
