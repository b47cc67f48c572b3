import math
import statistics

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from asbc.design.selection import (
    member_uncertainty,
    pair_up,
    representativeness,
    standardise,
    uncertainty,
)
from asbc.utils.random import key, stream


def test_uncertainty_equals_the_formula():
    rng = np.random.default_rng(0)
    log_density = rng.normal(-5, 3, (4, 3, 6))  # members, contexts, candidates
    epsilon = 1e-3
    expected = []
    for n in range(6):
        scores = []
        for c in range(3):
            values = log_density[:, c, n].tolist()
            scores.append(
                statistics.fmean(values) + math.log(statistics.pvariance(values) + epsilon)
            )
        expected.append(statistics.fmean(scores))
    computed = uncertainty(torch.from_numpy(log_density), epsilon)
    np.testing.assert_allclose(computed.numpy(), expected, rtol=1e-12)


def test_agreeing_members_stay_finite():
    score = uncertainty(torch.full((5, 2, 3), -4.0), epsilon=1e-6)
    np.testing.assert_allclose(score.numpy(), -4 + math.log(1e-6))


def test_standardised_scores_have_mean_zero_and_variance_one():
    score = torch.from_numpy(np.random.default_rng(1).normal(7, 4, 500))
    score[[3, 9]] = torch.tensor([-torch.inf, torch.nan], dtype=torch.float64)
    standard = standardise(score)
    finite = torch.isfinite(score)
    assert standard[~finite].tolist() == [-torch.inf, -torch.inf]
    assert abs(standard[finite].mean()) < 1e-12
    assert abs(standard[finite].var(correction=0) - 1) < 1e-12
    assert torch.equal(standard[finite].argsort(), score[finite].argsort())


def test_equal_scores_standardise_to_zero():
    assert standardise(torch.full((4,), 2.5)).tolist() == [0.0] * 4


@pytest.mark.parametrize("neighbours", [1, 5])
def test_representativeness_against_scikit_learn(neighbours):
    features = np.random.default_rng(2).standard_normal((300, 10))
    model = NearestNeighbors(n_neighbors=neighbours).fit(features)
    distance, _ = model.kneighbors()  # without the point itself
    expected = 1 / (1e-3 + distance.mean(axis=1))
    computed = representativeness(torch.from_numpy(features), neighbours, 1e-3)
    np.testing.assert_allclose(computed.numpy(), expected, rtol=1e-6)


def test_copies_of_a_window_do_not_make_it_representative():
    """Twenty leaders that stand are one window, as far from the others as it is alone."""
    others = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    standing = torch.full((1, 4), 5.0)
    once = representativeness(torch.cat([others, standing]), 5, 1e-3)
    often = representativeness(torch.cat([others, standing.expand(20, -1)]), 5, 1e-3)
    torch.testing.assert_close(often[:31], once)
    assert torch.equal(often[30:], often[30].expand(20))


def test_representativeness_of_very_few_windows():
    features = torch.tensor([[0.0], [3.0]])
    np.testing.assert_allclose(representativeness(features, 5, 1e-3), 1 / 3.001)
    assert representativeness(features[:1], 5, 1e-3).tolist() == [1.0]


def test_member_uncertainty_is_the_formula_over_keyed_members(posterior, space):
    theta = space.prior.sample(30, stream(0, "theta"))
    expected = np.zeros(30)
    for context in space.contexts:
        log_q = np.stack(
            [
                posterior.member(key(space.seed, "member", 2, m))
                .log_prob_grid(theta, context[None])[0]
                .double()
                .numpy()
                for m in range(5)
            ]
        )
        expected += (log_q.mean(0) + np.log(log_q.var(0) + 1e-6)) / len(space.contexts)
    expected = (expected - expected.mean()) / expected.std()
    computed = member_uncertainty(theta, 2, posterior, space, 5, 1e-6)
    np.testing.assert_allclose(computed.numpy(), expected, atol=1e-4)


def test_pairing_gives_different_windows_in_proportion_to_their_counts():
    counts = torch.tensor([1, 2, 4, 8, 1])
    paired = pair_up(20_000, 1, counts, stream(0, "pair"))
    share = torch.bincount(paired.flatten(), minlength=5) / 20_000
    np.testing.assert_allclose(share, counts / 16, atol=0.015)
    several = pair_up(500, 3, counts, stream(0, "pair"))
    assert all(len(set(row)) == 3 for row in several.tolist())
    assert pair_up(10, 9, counts, stream(0, "pair")).shape == (10, 5)
