"""A run of history=segments, tiny: short pairs, the monitor, and a row for each context."""

import numpy as np
import pandas as pd
import pytest

from asbc import InputError, Run
from asbc.data.pairs_file import PairsFile
from asbc.evaluation.evaluate import evaluate_source
from asbc.evaluation.protocol import EvaluationSettings
from asbc.reporting.collect import EvaluatedRun, require_comparable, with_suffixes

SMALL = {
    **{"horizon": 20, "stride": 10, "samples": 20, "bootstrap": 20},
    **{"simulated_drivers": 30, "posterior_draws": 19},
}


@pytest.fixture(scope="module")
def several_drives(tiny_pairs, tmp_path_factory):
    """The tiny file with a second pair of 3.4 s of each driver: shorter than a context of 4 s."""
    table = pd.read_csv(tiny_pairs)
    second = table[table["time"] < 3.3].assign(
        pair_id=lambda rows: rows["pair_id"].astype(str) + "-b",
        time=lambda rows: rows["time"] + 60,
    )
    path = tmp_path_factory.mktemp("drives") / "drives.csv"
    pd.concat([table.astype({"pair_id": str}), second]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def overrides(tiny, several_drives):
    given = [
        text
        for text in tiny
        if not text.startswith(("data.path", "data.min_duration", "callbacks="))
    ]
    return [*given, f"data.path={several_drives}", "data.min_duration=3", "history=segments"]


@pytest.fixture(params=["softplus", "laplace"])
def run(train_here, overrides, tmp_path, request) -> Run:
    monitored = ["callbacks=monitor", "callbacks.monitor.score.samples=10"]
    train_here([*overrides, *monitored, f"transform={request.param}"], tmp_path / "run")
    return Run.open(tmp_path / "run")


def test_every_context_is_a_row_of_its_own_and_short_pairs_count(run, several_drives) -> None:
    rounds = pd.read_csv(run.path / "rounds.csv")
    assert (rounds["validation_rmse"] > 0).all()
    section = run.config["data"]
    found = []
    for context in ("first", "latest", "all"):
        settings = EvaluationSettings(**SMALL, context=context)
        found.append(evaluate_source(run, run.source(), settings, section)[0])
    assert {each.metrics["data"]["n_pairs"] for each in found} == {14}  # 7 drivers, two pairs each
    assert all(each.metrics["after_context"]["n_windows"] == 3 * 7 for each in found)
    rows = [EvaluatedRun(run.path, each.metrics) for each in found]
    require_comparable(rows)
    labels = [row.label for row in with_suffixes(rows)]
    assert [label.partition(", ")[2] for label in labels] == [
        "",
        "latest 4 s",
        "all that is known",
    ]
    scores = [each.windows.set_index(["pair_id", "start"])["es_s"] for each in found]
    # Right after its context a first pair has nothing else; later there is more to know.
    assert (scores[0].xs(20, level=1) == scores[2].xs(20, level=1)).all()
    assert (scores[1].xs(40, level=1) != scores[2].xs(40, level=1)).all()
    # A table in memory has no shortest pair but the model's.
    table = pd.read_csv(several_drives)
    assert run.evaluate(table, **SMALL, context="all").metrics["data"]["n_pairs"] == 48
    checks = found[0].metrics["simulated_drivers"]
    assert checks["n_drivers"] == 30 and np.isfinite(checks["tarp_error"])


def test_short_pairs_are_refused_without_it_and_named_below_the_shortest(several_drives) -> None:
    source = PairsFile(path=str(several_drives), context_steps=20, min_duration=3.0)
    with pytest.raises(
        InputError, match="context_steps=20 is longer than pair .*history=segments"
    ):
        source.pairs()
    kept = source.for_segments(15)
    assert len(kept.pairs()) == 48 and int(kept.pairs().lengths.min()) == 17
    with pytest.raises(InputError, match=r"pair r/0-b has 17 samples, but a segment needs 18"):
        source.for_segments(18).pairs()
    several = PairsFile(path=[str(several_drives)], context_steps=20, min_duration=3.0)
    splits = several.for_segments(15).splits()
    assert not set(splits.train.follower) & set(splits.test.follower)
    assert all(splits.test.follower.count(name) == 2 for name in splits.test.follower)


def test_what_does_not_fit_together_is_refused_before_training(
    train_here, overrides, tmp_path
) -> None:
    with pytest.raises(InputError, match="history.shortest=3 s is longer than the shortest pair"):
        train_here([*overrides, "data.min_duration=2"], tmp_path)


def test_a_run_of_single_trajectories_refuses_all(trained) -> None:
    with pytest.raises(InputError, match="evaluation.context=all .* experiment=history"):
        Run.open(trained()).evaluate(**SMALL, context="all")
