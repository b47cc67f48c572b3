"""Driving measures on trajectories whose answer is plain, distances against scipy."""

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.evaluation import driving


def test_closing_at_constant_speed_has_the_ttc_of_its_last_step() -> None:
    time = torch.arange(10) * 0.2
    gap = 30 - 5 * time
    ttc = driving.min_time_to_collision(gap, torch.full((10,), 5.0))
    assert ttc.item() == pytest.approx((30 - 5 * 1.8) / 5)


def test_nobody_closing_in_means_the_longest_ttc() -> None:
    gap, rate = torch.full((2, 5), 10.0), torch.tensor([[-1.0] * 5, [0.0] * 5])
    assert driving.min_time_to_collision(gap, rate).tolist() == [driving.LONGEST_TTC] * 2


def test_a_collision_is_ttc_zero() -> None:
    gap, rate = torch.tensor([1.0, -2.0]), torch.tensor([1.0, 1.0])
    assert driving.min_time_to_collision(gap, rate).item() == 0


def test_distances_match_scipy_and_a_known_shift() -> None:
    rng = np.random.default_rng(0)
    simulated, observed = rng.normal(1.5, 1, 4000), rng.normal(1.0, 1, 5000)
    result = driving.compare({"x": simulated}, {"x": observed})["x"]
    assert result["ks"] == pytest.approx(stats.ks_2samp(simulated, observed).statistic)
    # Wasserstein distance of a shifted distribution is the shift.
    assert result["wasserstein"] == pytest.approx(0.5, abs=0.05)
    assert result["simulated_mean"] - result["observed_mean"] == pytest.approx(0.5, abs=0.06)


def test_equal_distributions_have_distance_zero() -> None:
    values = np.array([0.0, 1.0, 1.0, 3.0])
    result = driving.compare({"x": np.tile(values, 3)}, {"x": values})["x"]
    assert result["wasserstein"] == pytest.approx(0) and result["ks"] == pytest.approx(0)
