import numpy as np
import torch

from asbc.utils.random import key, standard_normal, stream, uniform


def test_keys_separate_seeds_and_purposes():
    keys = {
        key(seed, *purpose)
        for seed in range(20)
        for purpose in [("a",), ("a", 1), ("a", 2), ("b",), ("a1",), ("a", "1")]
    }
    assert len(keys) == 20 * 6


def test_first_rows_do_not_depend_on_how_many_are_drawn():
    for dtype in (torch.float32, torch.float64):
        small = standard_normal(stream(3, "noise"), 7, 13, dtype=dtype)
        large = standard_normal(stream(3, "noise"), 1000, 13, dtype=dtype)
        assert torch.equal(small, large[:7])


def test_streams_are_independent_of_each_other():
    draws = np.stack([stream(0, "x", i).standard_normal(2000) for i in range(50)])
    correlation = np.corrcoef(draws)[~np.eye(50, dtype=bool)]
    assert abs(correlation).max() < 5 / np.sqrt(2000)


def test_uniform_covers_the_unit_interval():
    values = uniform(stream(0, "u"), 100_000, dtype=torch.float64)
    assert values.dtype == torch.float64
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean().item() - 0.5) < 5 * np.sqrt(1 / 12 / 100_000)
