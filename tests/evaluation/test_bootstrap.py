"""The pair bootstrap against the textbook standard error of clustered means."""

import numpy as np
import pytest

from asbc.evaluation.scores import bootstrap_interval


def test_interval_has_the_width_of_the_mean_over_pairs() -> None:
    rng = np.random.default_rng(1)
    pair = np.repeat(np.arange(400), 5)
    # Windows of a pair are equal: 2000 windows carry the information of 400 pairs.
    values = np.repeat(rng.normal(2, 1, 400), 5)
    low, high = bootstrap_interval(values, pair, 4000, rng)
    expected = 2 * 1.96 * values.std() / np.sqrt(400)
    assert high - low == pytest.approx(expected, rel=0.06)
    assert low < values.mean() < high


def test_uneven_pairs_match_a_naive_resampling_loop() -> None:
    rng = np.random.default_rng(2)
    pair = np.array(["a", "a", "a", "b", "c", "c"])
    values = rng.normal(size=(6, 2))
    ours = bootstrap_interval(values, pair, 20_000, np.random.default_rng(3), level=0.8)
    groups = [values[pair == name] for name in "abc"]
    draws = [
        np.concatenate([groups[i] for i in rng.integers(3, size=3)]).mean(0) for _ in range(20_000)
    ]
    naive = np.quantile(np.array(draws), [0.1, 0.9], axis=0)
    np.testing.assert_allclose(ours, naive, atol=0.03)
