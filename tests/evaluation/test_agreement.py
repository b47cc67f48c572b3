"""Two-sample tests and interval overlaps where the right answer is known."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier

from asbc.evaluation.agreement import agreement, c2st, summarise_agreement


def normal(problems, draws, shift, seed):
    rng = np.random.default_rng(seed)
    sample = rng.normal(size=(problems, draws, 4))
    sample[..., 0] += np.asarray(shift)[:, None]
    return torch.from_numpy(sample).float()


def test_c2st_reaches_the_best_possible_accuracy():
    shift = [0.0, 1.0, 2.0, 4.0]
    first, second = normal(4, 500, [0] * 4, 0), normal(4, 500, shift, 1)
    accuracy = c2st(first, second, np.random.default_rng(2))
    # Two unit normals at distance d: nobody is right more often than Phi(d / 2).
    np.testing.assert_allclose(accuracy, norm.cdf(np.array(shift) / 2), atol=0.06)


def test_c2st_sees_a_difference_in_spread_as_well_as_scikit_learn():
    first = normal(1, 400, [0], 3)
    second = 1.8 * normal(1, 400, [0], 4)
    ours = float(c2st(first, second, np.random.default_rng(5))[0])
    points = torch.cat([first[0], second[0]]).numpy()
    label = np.repeat([0, 1], 400)
    network = MLPClassifier((40, 40), max_iter=40, alpha=0.01, random_state=0)
    order = np.random.default_rng(0).permutation(800)
    theirs = cross_val_score(network, points[order], label[order], cv=3).mean()
    assert ours == pytest.approx(theirs, abs=0.05)


def test_c2st_sees_what_only_two_parameters_together_show():
    """Normals that differ in one correlation: all that the best classifier sees, no more."""
    correlation = np.array([0.0, 0.5, 0.8, 0.95])
    first, second = normal(4, 1000, [0] * 4, 10), normal(4, 1000, [0] * 4, 11)
    rho = torch.from_numpy(correlation).float()[:, None]
    second[..., 1] = rho * second[..., 0] + (1 - rho**2).sqrt() * second[..., 1]
    accuracy = c2st(first, second, np.random.default_rng(12))
    # Half the mass in which the densities differ, summed over a fine grid.
    grid = np.linspace(-7, 7, 701)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2
    alone = multivariate_normal([0, 0], np.eye(2)).pdf(np.dstack([x, y]))
    together = [
        multivariate_normal([0, 0], [[1, r], [r, 1]]).pdf(np.dstack([x, y])) for r in correlation
    ]
    best = [0.5 + np.abs(density - alone).sum() * cell / 4 for density in together]
    np.testing.assert_allclose(accuracy, best, atol=0.04)


def test_agreement_is_good_with_itself_and_bad_when_shifted():
    exact = normal(2, 400, [0, 0], 6)
    amortized = normal(2, 400, [0, 3], 7)
    table = agreement(exact, amortized, list("abcd"), ["x", "y"], np.random.default_rng(8))
    assert table["c2st"][0] < 0.6 < 0.9 < table["c2st"][1]
    assert table["overlap_a"][0] > 0.85 and table["overlap_a"][1] < 0.15
    assert table["overlap_b"].min() > 0.8
    assert table["shift_a"][1] == pytest.approx(3, abs=0.2)
    summary = summarise_agreement(table, exact_seconds=8.0, amortized_seconds=0.004)
    assert summary["speed_up"] == pytest.approx(2000)
    assert summary["interval_overlap"]["a"] == pytest.approx(table["overlap_a"].mean())
