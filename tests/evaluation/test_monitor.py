"""The validation monitor: its numbers against the full evaluation, and its columns in a run."""

import numpy as np
import pandas as pd
import pytest

from asbc.data.windows import evaluation_windows
from asbc.evaluation.monitor import validation_scores
from asbc.evaluation.protocol import score_windows
from asbc.posterior.posterior import PosteriorSamples
from asbc.utils.random import stream


class FixedPosterior:
    """The same draws for everybody."""

    def __init__(self, theta) -> None:
        self.theta = theta

    def sample(self, states, n, rng) -> PosteriorSamples:
        return PosteriorSamples(self.theta[:n].expand(len(states), -1, -1), states[:, 0, 0])


def test_scores_are_the_means_of_the_paper_protocol(simulators, drivers, pairs_of) -> None:
    simulator = simulators["matern"]
    pairs = pairs_of(simulator, 4, 160, drivers(simulator, 4))
    theta = simulator.prior.sample(30, stream(0, "theta"))
    row = validation_scores(FixedPosterior(theta), simulator, pairs, 75, pairs=3, samples=30)
    some = pairs.select([0, 1, 2])
    windows = evaluation_windows(some, 50, 20, 20)
    table = score_windows(simulator, theta.expand(3, -1, -1), some, windows).table
    assert row["validation_es_v"] == pytest.approx(table["es_v"].mean())
    expected = np.mean([table[f"rmse_{x}"].mean() for x in "sva"])
    assert row["validation_rmse"] == pytest.approx(expected)


def test_a_run_with_the_monitor_has_its_columns(train_here, tiny, tmp_path) -> None:
    # Pairs of 61 samples hold one window of 50 steps each.
    overrides = [text for text in tiny if not text.startswith("callbacks=")]
    train_here([*overrides, "callbacks=monitor", "callbacks.monitor.score.samples=10"], tmp_path)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert len(rounds) == 3
    assert (rounds[["validation_rmse", "validation_es"]] > 0).all().all()
    plain = tmp_path / "plain"
    train_here(tiny, plain)
    assert pd.read_csv(plain / "rounds.csv")["loss"].tolist() == rounds["loss"].tolist()
