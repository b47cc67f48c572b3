"""Scores against scoringrules, the brute-force definition, and cases solved by hand.

The pair bootstrap against the textbook standard error of clustered means.
"""

import numpy as np
import pytest
import scoringrules
import torch
from scipy import stats

from asbc.errors import InputError
from asbc.evaluation import scores

RNG = np.random.default_rng(0)
# A level far from zero with a small spread: where a careless Gram matrix loses its digits.
SAMPLES = torch.from_numpy(RNG.normal(40, 0.3, (6, 50, 20))).float()
OBSERVED = torch.from_numpy(RNG.normal(40, 0.5, (6, 20))).float()


def test_energy_score_matches_scoringrules_and_the_double_sum() -> None:
    ours = scores.energy_score(SAMPLES, OBSERVED).numpy()
    library = scoringrules.es_ensemble(
        OBSERVED.double().numpy(), SAMPLES.double().numpy(), m_axis=-2, v_axis=-1
    )
    x, y = SAMPLES.double(), OBSERVED.double()
    pairwise = (x[:, :, None] - x[:, None, :]).norm(dim=-1)
    brute = (x - y[:, None]).norm(dim=-1).mean(1) - pairwise.sum((1, 2)) / (2 * x.shape[1] ** 2)
    np.testing.assert_allclose(ours, library, rtol=1e-5)
    np.testing.assert_allclose(ours, brute.numpy(), rtol=1e-5)


def test_crps_matches_scoringrules() -> None:
    ours = scores.crps(scores.sorted_by_step(SAMPLES), OBSERVED).numpy()
    library = scoringrules.crps_ensemble(
        OBSERVED.double().numpy(), SAMPLES.transpose(1, 2).double().numpy(), estimator="nrg"
    )
    np.testing.assert_allclose(ours, library.mean(-1), rtol=1e-5)


def test_a_deterministic_forecast_scores_sqrt_h_times_rmse() -> None:
    path = SAMPLES[:, :1].expand(-1, 50, -1).contiguous()
    rmse = scores.rmse_of_mean(path, OBSERVED)
    energy = scores.energy_score(path, OBSERVED)
    np.testing.assert_allclose(energy, np.sqrt(20) * rmse, rtol=1e-5)


def test_a_standing_forecast_far_from_zero_has_no_spread() -> None:
    constant = torch.full((1, 500, 50), 87.654321)
    assert scores.energy_score(constant, constant[:, 0]).item() == pytest.approx(0, abs=1e-4)


def test_rmse_by_hand() -> None:
    samples = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[0.0, 0.0], [0.0, 0.0]]])
    observed = torch.tensor([[2.0, 1.0], [3.0, 4.0]])
    # Means (2, 4) against (2, 1), and (0, 0) against (3, 4).
    expected = [np.sqrt(9 / 2), np.sqrt(25 / 2)]
    np.testing.assert_allclose(scores.rmse_of_mean(samples, observed), expected)


@pytest.mark.parametrize("level", scores.COVERAGE_LEVELS)
def test_coverage_on_gaussians_with_a_known_answer(level: float) -> None:
    """Forecasts half as wide as the truth cover 2 Phi(z/2) - 1."""
    samples = torch.from_numpy(RNG.normal(0, 0.5, (400, 1000, 10))).float()
    observed = torch.from_numpy(RNG.normal(0, 1, (400, 10))).float()
    ours = scores.central_coverage(scores.sorted_by_step(samples), observed, level).mean()
    z = stats.norm.ppf((1 + level) / 2)
    assert ours.item() == pytest.approx(2 * stats.norm.cdf(z / 2) - 1, abs=0.03)


def test_coverage_ends_are_numpy_quantiles() -> None:
    ordered = scores.sorted_by_step(SAMPLES)
    low, high = np.quantile(SAMPLES.double().numpy(), [0.1, 0.9], axis=1)
    inside = (OBSERVED.numpy() >= low) & (OBSERVED.numpy() <= high)
    ours = scores.central_coverage(ordered, OBSERVED, 0.8)
    np.testing.assert_allclose(ours, inside.mean(-1), atol=1e-9)


def test_pit_is_uniform_when_the_forecast_is_right() -> None:
    samples = torch.from_numpy(RNG.normal(3, 2, (2000, 200, 1))).float()
    observed = torch.from_numpy(RNG.normal(3, 2, (2000, 1))).float()
    values = scores.pit(scores.sorted_by_step(samples), observed).flatten().numpy()
    assert stats.kstest(values, "uniform").pvalue > 0.01
    shifted = scores.pit(scores.sorted_by_step(samples + 1), observed).flatten().numpy()
    assert stats.kstest(shifted, "uniform").pvalue < 1e-6


def test_pit_of_a_standing_vehicle_counts_ties_half() -> None:
    ordered = torch.zeros(1, 1, 10)
    assert scores.pit(ordered, torch.zeros(1, 1)).item() == 0.5


def test_all_scores_do_not_depend_on_the_batch() -> None:
    together = scores.score_all(SAMPLES, OBSERVED)
    for row in range(len(SAMPLES)):
        alone = scores.score_all(SAMPLES[row : row + 1], OBSERVED[row : row + 1])
        for name, value in alone.items():
            assert together[name][row].item() == pytest.approx(value.item(), rel=1e-6), name


def test_interval_has_the_width_of_the_mean_over_pairs() -> None:
    rng = np.random.default_rng(1)
    pair = np.repeat(np.arange(400), 5)
    # Windows of a pair are equal: 2000 windows carry the information of 400 pairs.
    values = np.repeat(rng.normal(2, 1, 400), 5)
    low, high = scores.bootstrap_interval(values, pair, 4000, rng)
    expected = 2 * 1.96 * values.std() / np.sqrt(400)
    assert high - low == pytest.approx(expected, rel=0.06)
    assert low < values.mean() < high


def test_uneven_pairs_match_a_naive_resampling_loop() -> None:
    rng = np.random.default_rng(2)
    pair = np.array(["a", "a", "a", "b", "c", "c"])
    values = rng.normal(size=(6, 2))
    ours = scores.bootstrap_interval(values, pair, 20_000, np.random.default_rng(3), level=0.8)
    groups = [values[pair == name] for name in "abc"]
    draws = [
        np.concatenate([groups[i] for i in rng.integers(3, size=3)]).mean(0) for _ in range(20_000)
    ]
    naive = np.quantile(np.array(draws), [0.1, 0.9], axis=0)
    np.testing.assert_allclose(ours, naive, atol=0.03)


def test_the_declared_scores_are_the_functions_above() -> None:
    together = scores.score_all(SAMPLES, OBSERVED)
    ordered = scores.sorted_by_step(SAMPLES)
    assert list(together) == [
        "rmse",
        "es",
        "crps",
        "pit",
        "coverage50",
        "coverage80",
        "coverage95",
    ]
    expected = {
        "rmse": scores.rmse_of_mean(SAMPLES, OBSERVED),
        "es": scores.energy_score(SAMPLES, OBSERVED),
        "crps": scores.crps(ordered, OBSERVED),
        "pit": scores.pit(ordered, OBSERVED)[:, -1],
        "coverage50": scores.central_coverage(ordered, OBSERVED, 0.5),
        "coverage80": scores.central_coverage(ordered, OBSERVED, 0.8),
        "coverage95": scores.central_coverage(ordered, OBSERVED, 0.95),
    }
    for name, value in expected.items():
        assert torch.equal(together[name], value), name


def test_the_headline_is_the_papers_table_plus_ones_own() -> None:
    assert scores.headline() == {
        **{"rmse_s": "RMSE s", "rmse_v": "RMSE v", "rmse_a": "RMSE a"},
        **{"es_s": "ES s", "es_v": "ES v", "es_a": "ES a"},
    }
    own = scores.Score("bias", "Bias", lambda samples, ordered, observed: samples.mean((1, 2)))
    assert list(scores.headline((*scores.SCORES, own)).items())[6:] == [
        *(("bias_s", "Bias s"), ("bias_v", "Bias v"), ("bias_a", "Bias a")),
    ]


@pytest.mark.parametrize(
    ("best", "values", "expected"),
    [("low", [2.0, 1.0], 1.0), ("high", [2.0, 1.0], 2.0), (0.95, [0.99, 0.93, 1.2], 0.93)],
)
def test_the_best_mean_has_the_smallest_loss(best, values, expected) -> None:
    score = scores.Score("x", "X", scores.energy_score, best=best)
    assert min(values, key=score.loss) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "my score"}, "score 'my score': expected a name of letters"),
        ({"table": "first"}, "score x: table='first'; expected headline, further or None"),
        ({"best": "lower"}, "score x: best='lower'; expected low, high or a number"),
    ],
)
def test_a_score_that_makes_no_sense_is_refused(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        scores.Score(**{"name": "x", "label": "X", "function": scores.crps, **arguments})


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda samples, ordered, observed: samples.mean(1), r"\[6, 20\]"),
        (lambda samples, ordered, observed: 1.0, "float"),
    ],
)
def test_a_function_must_give_one_number_per_window(function, returned) -> None:
    wrong = scores.Score("wrong", "W", function)
    with pytest.raises(InputError, match=f"score wrong: its function returned {returned} for 6"):
        scores.score_all(SAMPLES, OBSERVED, [wrong])
