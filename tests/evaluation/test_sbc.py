"""Calibration checks on a Gaussian model whose exact posterior is known."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from asbc.evaluation import sbc as calibration
from asbc.evaluation.sbc import rank_test

DRIVERS, DRAWS, NOISE = 400, 199, 0.7
POSTERIOR_SD = NOISE / np.sqrt(1 + NOISE**2)


def gaussian_posterior(
    scale: float = 1.0, shift: float = 0.0, seed: int = 0, drivers: int = DRIVERS
) -> tuple[Tensor, Tensor, Tensor]:
    """Truths, draws and posterior means of theta ~ N(0, 1), x ~ N(theta, NOISE^2), two parameters.

    `scale` multiplies the posterior's standard deviation, `shift` moves its mean by that many.
    """
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(drivers, 2))
    x = truth + NOISE * rng.normal(size=truth.shape)
    mean = x / (1 + NOISE**2) + shift * POSTERIOR_SD
    draws = mean[:, None] + scale * POSTERIOR_SD * rng.normal(size=(drivers, DRAWS, 2))
    return torch.from_numpy(truth), torch.from_numpy(draws), torch.from_numpy(mean)


def p_values(truth: Tensor, draws: Tensor) -> list[float]:
    ranks = calibration.rank_statistics(truth, draws).numpy()
    rng = np.random.default_rng(9)
    return [rank_test(ranks[:, d], DRAWS, rng).p_value for d in range(ranks.shape[1])]


def test_ranks_by_hand() -> None:
    draws = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert calibration.rank_statistics(torch.tensor([[2.5]]), draws).item() == 2


def test_sbc_passes_for_the_exact_posterior() -> None:
    """Over 30 data sets its p-values are uniform: it passes, and no more often than it should."""
    values = [p for seed in range(30) for p in p_values(*gaussian_posterior(seed=seed)[:2])]
    assert stats.kstest(values, "uniform").pvalue > 0.01


@pytest.mark.parametrize(("scale", "shift"), [(0.7, 0.0), (1.0, 0.5), (1.0, -0.5)])
def test_sbc_fails_for_a_narrow_or_shifted_posterior(scale: float, shift: float) -> None:
    truth, draws, _ = gaussian_posterior(scale, shift)
    assert max(p_values(truth, draws)) < 0.01
    ranks = calibration.rank_statistics(truth, draws).numpy()
    assert not rank_test(ranks[:, 0], DRAWS, np.random.default_rng(9)).inside


def test_the_band_is_simultaneous() -> None:
    """Uniform ranks leave the 90% band in about one data set of ten, not at one point of ten."""
    rng = np.random.default_rng(3)
    ranks = rng.integers(0, 100, size=(400, 60))
    inside = [rank_test(row, 99, rng, level=0.9, replicates=300).inside for row in ranks]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.05)


def test_tail_table_is_the_binomial_test() -> None:
    ranks = np.array([0] * 14 + [1] * 6)
    result = rank_test(ranks, 1, np.random.default_rng(0), replicates=4000)
    exact = stats.binomtest(14, 20, 0.5).pvalue
    assert result.ecdf.tolist() == [0.7]
    assert result.p_value == pytest.approx(exact, abs=0.03)


def test_expected_coverage_is_the_diagonal_only_for_the_exact_posterior() -> None:
    def coverage(scale: float) -> np.ndarray:
        truth, draws, mean = gaussian_posterior(scale, drivers=4000)
        sd = scale * POSTERIOR_SD
        log_prob = [-(x / sd).square().sum(-1) for x in (truth - mean, draws - mean[:, None])]
        return calibration.coverage_curve(calibration.density_credibility(*log_prob))

    np.testing.assert_allclose(coverage(1.0), calibration.LEVELS, atol=0.03)
    # A 2-d Gaussian region of mass p holds 1 - (1 - p)^(k^2) when its spread is k times too small.
    expected = 1 - (1 - calibration.LEVELS) ** (0.7**2)
    np.testing.assert_allclose(coverage(0.7), expected, atol=0.03)


def test_tarp_is_the_diagonal_for_the_exact_posterior_and_sees_errors() -> None:
    box = torch.full((2,), 4.0, dtype=torch.float64)

    def deviation(scale: float, shift: float) -> float:
        truth, draws, _ = gaussian_posterior(scale, shift, drivers=4000)
        rng = np.random.default_rng(5)
        curve = calibration.coverage_curve(
            calibration.tarp_credibility(truth, draws, -box, box, rng)
        )
        return float(np.abs(curve - calibration.LEVELS).max())

    assert deviation(1.0, 0.0) < 0.03
    assert deviation(0.5, 0.0) > 0.06
    assert deviation(1.0, 1.0) > 0.06


def test_contraction_is_the_known_variance_ratio() -> None:
    _, draws, _ = gaussian_posterior()
    ours = calibration.contraction(draws, torch.ones(2)).mean(0)
    np.testing.assert_allclose(ours, 1 - POSTERIOR_SD**2, atol=0.02)


def test_recovery_of_the_exact_posterior() -> None:
    truth, draws, _ = gaussian_posterior(drivers=4000)
    result = calibration.recovery(truth, draws)
    # Interpolated quantiles of n draws hold a fraction (n - 1) / (n + 1) of the nominal mass.
    for level in (50, 80, 95):
        expected = level / 100 * (DRAWS - 1) / (DRAWS + 1)
        np.testing.assert_allclose(result[f"coverage{level}"], expected, atol=0.02)
    np.testing.assert_allclose(result["correlation"], 1 / np.sqrt(1 + NOISE**2), atol=0.02)
    np.testing.assert_allclose(result["rmse"], POSTERIOR_SD, rtol=0.03)
    np.testing.assert_allclose(result["bias"], 0, atol=0.03)
