import numpy as np
import pytest
import torch

from asbc.design.acquisition import (
    JointAcquisition,
    RandomAcquisition,
    ThetaAcquisition,
    member_uncertainty,
    pair_up,
)
from asbc.design.proposal import LeaderMixture, PriorProposal, SoftShrinkProposal
from asbc.errors import InputError
from asbc.utils.random import key, stream

ROUNDS = [0.0, 0.5, 0.5]
SHRINK = SoftShrinkProposal(ROUNDS, samples_per_trajectory=50)
WINDOWS = LeaderMixture(ROUNDS)
SCORE = {"members": 5, "uncertainty_epsilon": 1e-6}
POOL = {
    "candidates": 60,
    "window_candidates": 40,
    "pairs_per_theta": 4,
    "neighbours": 3,
    "neighbour_epsilon": 1e-3,
    "gamma": 0.1,
    "tau_leader": 1.0,
    "tau_theta": 1.0,
}

STRATEGIES = {
    "joint": JointAcquisition(SHRINK, WINDOWS, **SCORE, **POOL),
    "prior_only": JointAcquisition(PriorProposal(), WINDOWS, **SCORE, **POOL),
    "theta_only": ThetaAcquisition(SHRINK, WINDOWS, candidates=60, **SCORE),
    "random": RandomAcquisition(PriorProposal(), WINDOWS),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_plan_is_a_function_of_seed_and_round(name, posterior, space):
    strategy = STRATEGIES[name]
    first, again, other = (strategy.plan(round, posterior, space).take(20) for round in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.theta, other.theta)
    assert space.prior.contains(first.theta).all()
    assert first.window_id.max() < len(space.bank)


@pytest.mark.parametrize("name", STRATEGIES)
def test_replacements_are_new_pairs(name, posterior, space):
    plan = STRATEGIES[name].plan(1, posterior, space)
    parts = [plan.take(15), plan.take(10)]
    rows = torch.cat([torch.cat([p.theta, p.window_id[:, None].float()], dim=1) for p in parts])
    assert len(rows.unique(dim=0)) == 25


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


def test_theta_only_takes_the_most_uncertain_first(posterior, space):
    strategy = STRATEGIES["theta_only"]
    plan = strategy.plan(1, posterior, space)
    taken = plan.take(60)
    alpha = member_uncertainty(taken.theta, 1, posterior, space, 5, 1e-6)
    assert (alpha.diff() <= 1e-9).all()
    with pytest.raises(InputError, match="acquisition.candidates"):
        plan.take(1)


def test_joint_picks_high_scores_and_logs_quantiles(posterior, space):
    plan = STRATEGIES["joint"].plan(1, posterior, space)
    assert {"lambda", "alpha", "leak_rate", "score_q05", "score_q50", "score_q95"} <= set(
        plan.diagnostics
    )
    assert plan.diagnostics["score_q05"] <= plan.diagnostics["score_q50"]
    assert set(plan.seconds) == {"propose", "score"}
    picked = member_uncertainty(plan.take(240).theta[:20], 1, posterior, space, 5, 1e-6)
    assert len(picked) == 20
    with pytest.raises(InputError, match="pool has no candidate left after 240"):
        plan.take(1)


def test_prior_only_differs_from_joint_in_the_proposal_alone(posterior, space):
    plan = STRATEGIES["prior_only"].plan(1, posterior, space)
    assert plan.diagnostics["lambda"] == 1.0
    assert plan.take(30).log_ratio.abs().max() == 0


def test_random_pairs_are_prior_draws_with_uniform_windows(posterior, space):
    pairs = STRATEGIES["random"].plan(1, posterior, space).take(20_000)
    uniform = (pairs.theta[:, 0] <= space.prior.icdf(torch.full((6,), 0.3))[0]).float().mean()
    assert abs(uniform - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 20_000)
    synthetic = space.bank.is_synthetic(pairs.window_id).float().mean()
    assert abs(synthetic - 0.5) < 4 * np.sqrt(0.25 / 20_000)
    counts = torch.bincount(pairs.window_id, minlength=len(space.bank)).double()
    real = len(space.bank.real.gap)
    expected = torch.cat(
        [
            torch.full((real,), 10_000 / real),
            torch.full((len(space.bank) - real,), 10_000 / (len(space.bank) - real)),
        ]
    )
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < len(expected) + 5 * np.sqrt(2 * len(expected))


def test_pairing_gives_different_windows_in_proportion_to_their_counts():
    counts = torch.tensor([1, 2, 4, 8, 1])
    paired = pair_up(20_000, 1, counts, stream(0, "pair"))
    share = torch.bincount(paired.flatten(), minlength=5) / 20_000
    np.testing.assert_allclose(share, counts / 16, atol=0.015)
    several = pair_up(500, 3, counts, stream(0, "pair"))
    assert all(len(set(row)) == 3 for row in several.tolist())
    assert pair_up(10, 9, counts, stream(0, "pair")).shape == (10, 5)


def test_theta_distances_are_in_prior_standard_deviations(space):
    draws = space.prior.sample(100_000, stream(0, "scale"))
    np.testing.assert_allclose(space.theta_scale, draws.std(dim=0), rtol=0.01)
