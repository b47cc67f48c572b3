import numpy as np
import pytest
import torch

from asbc.design.proposal import LeaderMixture, PriorProposal, SoftShrinkProposal
from asbc.utils.random import stream


def is_pooled(theta, posterior, space, samples):
    """Which rows of theta are posterior samples: none of the prior's draws equals one."""
    rng = stream(0, "draw")
    rng.random(len(theta), dtype=np.float32)
    space.prior.sample(len(theta), rng)
    pool = posterior.sample(space.contexts, samples, rng).theta.flatten(0, 1)
    return (theta[:, None] == pool).all(-1).any(-1)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_mixture_has_the_scheduled_proportion(share, posterior, space):
    proposal = SoftShrinkProposal([1.0, 0.9, share], samples_per_trajectory=500)
    n = 2000
    drawn = proposal.draw(n, 2, posterior, space, stream(0, "draw"))
    pooled = is_pooled(drawn.theta, posterior, space, 500).float().mean().item()
    assert abs(pooled - (1 - share)) <= 4 * np.sqrt(share * (1 - share) / n)
    assert drawn.diagnostics["lambda"] == share
    assert space.prior.contains(drawn.theta).all()


def test_no_posterior_sample_is_used_twice_while_the_pool_lasts(posterior, space):
    proposal = SoftShrinkProposal([0.0, 0.0], samples_per_trajectory=100)
    pool = 100 * len(space.contexts)
    theta = proposal.draw(pool, 1, posterior, space, stream(0, "draw")).theta
    assert len(theta.unique(dim=0)) == pool
    twice = proposal.draw(2 * pool, 1, posterior, space, stream(0, "draw")).theta
    _, counts = twice.unique(dim=0, return_counts=True)
    assert counts.tolist() == [2] * pool


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_log_ratio_is_prior_over_mixture(share, posterior, space):
    posterior.leak = 0.25
    drawn = SoftShrinkProposal([share], 50).draw(40, 0, posterior, space, stream(0, "draw"))
    for theta, log_ratio in zip(drawn.theta, drawn.log_ratio, strict=True):
        prior = float(space.prior.log_prob(theta).double().exp())
        densities = [
            float(posterior.log_prob_grid(theta[None], context[None]).double().exp()) / 0.75
            for context in space.contexts
        ]
        expected = prior / (share * prior + (1 - share) * np.mean(densities))
        assert float(log_ratio) == pytest.approx(np.log(expected), abs=2e-4)
    assert drawn.diagnostics["leak_rate"] == pytest.approx(0.25)


def test_the_prior_proposal_needs_no_correction(posterior, space):
    drawn = PriorProposal().draw(5000, 7, posterior, space, stream(1, "draw"))
    assert torch.equal(drawn.theta, space.prior.sample(5000, stream(1, "draw")))
    assert drawn.log_ratio.abs().max() == 0


def test_windows_follow_the_leader_schedule(bank):
    mixture = LeaderMixture([0.0, 0.25, 1.0])
    shares = [
        bank.is_synthetic(mixture.draw(4000, round, bank, stream(0, "w"))).float().mean().item()
        for round in range(3)
    ]
    assert shares[0] == 0.0 and shares[2] == 1.0
    assert abs(shares[1] - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)
