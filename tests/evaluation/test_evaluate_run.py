"""`Run.evaluate` on a tiny run: its own data, other data, and a run folder that was sent away."""

import json
import shutil

import pandas as pd
import pytest

from asbc import InputError, Run, read_pairs
from asbc.data.pairs_file import PairsFile
from asbc.data.source import pairs_of_split
from asbc.data.windows import leader_windows
from asbc.evaluation.evaluate import STRIDE, evaluate_posterior, evaluate_source
from asbc.evaluation.protocol import EvaluationSettings
from asbc.evaluation.results import write_evaluation
from asbc.evaluation.sbc import check_posterior
from asbc.evaluation.scores import Score
from asbc.simulator.robust import simulate_drivers

SMALL = {
    **{"horizon": 20, "stride": 10, "samples": 20, "bootstrap": 20},
    **{"simulated_drivers": 30, "posterior_draws": 19},
}
NUMBERS = ("all_windows", "after_context", "simulated_drivers", "novelty", "posterior")


@pytest.fixture(scope="module")
def run(trained) -> Run:
    return Run.open(trained())


@pytest.fixture(scope="module")
def other(tiny_pairs) -> pd.DataFrame:
    """Four of the drivers with a longer gap: data the run has not seen."""
    table = pd.read_csv(tiny_pairs)
    return table[table["pair_id"] < 4].assign(gap=lambda rows: rows["gap"] + 2)


def numbers(evaluation) -> dict:
    return {name: evaluation.metrics[name] for name in NUMBERS}


def test_without_data_the_runs_own_test_split_is_scored(run) -> None:
    result = run.evaluate(**SMALL)
    pairs, _ = pairs_of_split(run.source(), "test")
    settings = EvaluationSettings(**SMALL)
    leaders = leader_windows(run.source().splits().train, 20, STRIDE)
    direct = evaluate_posterior(run.posterior, run.training, pairs, 20, leaders, settings)
    for protocol in ("all_windows", "after_context"):
        assert result.metrics[protocol] == direct.metrics[protocol]
    assert result.metrics["after_context"]["n_windows"] == 3 * len(pairs)
    assert result.metrics["run"]["other_data"] is False and result.metrics["notes"] == []
    assert result.metrics["run"]["method"] == run.label


def test_a_table_a_file_and_pairs_are_scored_alike(run, other, tmp_path) -> None:
    file = tmp_path / "other.csv"
    other.to_csv(file, index=False)
    table, path, pairs = (run.evaluate(data, **SMALL) for data in (other, file, read_pairs(file)))
    assert numbers(table) == numbers(path) == numbers(pairs)
    assert table.metrics["data"]["n_pairs"] == 4  # all of them, not only a test split
    (note,) = path.metrics["notes"]
    assert note.startswith("Evaluated on other data than it was trained on: trained on pairs: ")
    assert note.endswith(f"evaluated on pairs: {file}.")
    assert table.metrics["run"]["other_data"] is True


def test_the_training_file_itself_is_not_other_data(run, tiny_pairs) -> None:
    result = run.evaluate(tiny_pairs, **SMALL)
    assert result.metrics["data"]["n_pairs"] == 24
    assert result.metrics["notes"] == [
        "These pairs include the training split: their leaders were used to train the model."
    ]


def test_drivers_are_simulated_behind_the_leaders_of_the_folder(run, other) -> None:
    result = run.evaluate(other, **SMALL)
    leaders = run.leaders(20)
    drivers = simulate_drivers(run.training, leaders, SMALL["simulated_drivers"], 0)
    checks = check_posterior(
        run.posterior, run.simulator.prior, drivers, SMALL["posterior_draws"], 0
    )
    assert result.metrics["simulated_drivers"] == checks.to_dict()


def test_contexts_longer_than_the_kept_leaders_are_said(run, tiny_pairs) -> None:
    section = run.config["data"] | {"context_steps": 30}
    source = PairsFile(path=str(tiny_pairs), context_steps=30, min_duration=8)
    evaluation, _ = evaluate_source(run, source, EvaluationSettings(**SMALL), section)
    notes = evaluation.metrics["notes"]
    assert notes[0].startswith("Contexts of 30 samples; the model was trained on contexts of 20")
    assert "Contexts of 30 samples are longer than the leaders kept" in notes[1]


def test_a_folder_sent_away_works_without_its_training_data(
    train_here, tiny, tiny_pairs, other, tmp_path
) -> None:
    data, home, away = tmp_path / "data.csv", tmp_path / "home" / "run", tmp_path / "away" / "run"
    shutil.copy(tiny_pairs, data)
    train_here([*tiny, f"data.path={data}"], home)
    before = Run.open(home).evaluate(other, **SMALL)
    away.parent.mkdir()
    home.rename(away)
    data.unlink()
    run = Run.open(away)
    after = run.evaluate(other, **SMALL)
    assert numbers(after) == numbers(before)
    assert after.metrics["run"]["trained_on"] == f"pairs: {data}"
    with pytest.raises(InputError, match=f"{data}: no such file"):
        run.evaluate(**SMALL)


def test_a_score_of_ones_own_is_in_the_files(run, other, tmp_path) -> None:
    late = Score("late", "Late", lambda samples, ordered, observed: observed[:, -1].double())
    result = run.evaluate(other, extra_scores=[late], **SMALL)
    write_evaluation(result, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    table = pd.read_parquet(tmp_path / "windows.parquet")
    assert metrics["settings"]["extra_scores"] == ["late"]
    ends = other.groupby("pair_id")["gap"].apply(lambda gap: gap.iloc[[20, 30, 40, 50, 60]])
    first = table[table["all_windows"]]
    assert first["late_s"].to_numpy() == pytest.approx(ends.to_numpy(), rel=1e-5)
    assert metrics["all_windows"]["late_s"] == pytest.approx(ends.mean())
