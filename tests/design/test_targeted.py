"""Targeted design: known densities, known inclusion probabilities, and weights that undo both."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.design.disagreement import fit_surrogate, inclusion, pair_features, systematic_picks
from asbc.design.known_drivers import NO_ROUND, known_pairs
from asbc.design.mixture import (
    PooledProposal,
    UniformPoints,
    log_balance,
    pool,
    prior_alone,
)
from asbc.design.simulations import Simulations
from asbc.design.targeted import TargetedAcquisition, choose
from asbc.errors import InputError
from asbc.utils.random import stream

SETTINGS = {
    "name": "targeted",
    "subset_size": 4,
    "prior_share": 0.3,
    "samples_per_trajectory": 100,
    "synthetic_share": 0.0,
    "cell_share": 0.5,
    "sobol": True,
    "candidates": 20,
    "uniform_share": 0.5,
    "members": 5,
    "surrogate_pairs": 300,
    "known_draws": 3,
    "known_share": 0.5,
}


class PriorDraws:
    """The prior in place of a trained posterior; its members disagree a little."""

    def __init__(self, prior, shift: float = 0.0) -> None:
        self.prior, self.shift = prior, shift

    def sample(self, states, n, rng):
        theta = self.prior.sample(len(states) * n, rng).view(len(states), n, -1)
        return SimpleNamespace(theta=theta, leak_rate=torch.zeros(len(states)))

    def log_prob(self, theta, states):
        return self.prior.log_prob(theta) + self.shift * theta[..., 0]

    def member(self, key):
        return PriorDraws(self.prior, shift=0.01 * (key % 7))


@pytest.fixture
def proposal(prior) -> PooledProposal:
    """Far from the prior: narrow, tilted and off its centre."""
    mean = torch.linspace(-1, 1, prior.dim, dtype=torch.float64)
    factor = 0.4 * torch.eye(prior.dim, dtype=torch.float64)
    factor[1, 0] = 0.3
    return PooledProposal(0.3, mean, factor)


def test_density_of_the_mixture_against_torch(prior, proposal):
    z = torch.randn(50, prior.dim, dtype=torch.float64)
    covariance = proposal.factor @ proposal.factor.T
    ours = torch.distributions.MultivariateNormal(proposal.mean, covariance).log_prob(z).exp()
    unit = torch.eye(prior.dim, dtype=torch.float64)
    theirs = torch.distributions.MultivariateNormal(0 * proposal.mean, unit).log_prob(z).exp()
    expected = torch.log((0.3 * theirs + 0.7 * ours) / theirs)
    torch.testing.assert_close(proposal.log_ratio(z), expected)
    assert not bool(prior_alone(prior).log_ratio(z).any())


@pytest.mark.parametrize("sobol", [True, False])
def test_weighted_draws_of_the_mixture_follow_the_prior(prior, proposal, sobol):
    """Shares of the prior's quintiles in each parameter, within five standard errors."""
    theta = proposal.draw(UniformPoints(prior.dim + 1, sobol, seed=0)(100_000), prior)
    z = prior.to_normal(theta).double()
    weight = torch.exp(-proposal.log_ratio(z))
    assert float(weight.max()) <= 1 / 0.3 + 1e-9
    share = torch.special.ndtr(z)
    for column in share.unbind(1):
        for fifth in range(5):
            inside = ((column >= fifth / 5) & (column < (fifth + 1) / 5)).double()
            error = float((weight * inside).std()) / len(z) ** 0.5
            assert abs(float((weight * inside).mean()) - 0.2) < 5 * error
    assert abs(float((share[:, 0] < 0.2).double().mean()) - 0.2) > 0.1


def test_sobol_points_fill_the_cube_more_evenly_than_random_ones():
    """Against scipy's measure of discrepancy; they go on where they were."""
    from scipy.stats import qmc

    sobol, random = (UniformPoints(6, kind, seed=3) for kind in (True, False))
    points = torch.cat([sobol(256), sobol(256)])
    assert qmc.discrepancy(points.numpy()) < 0.3 * qmc.discrepancy(random(512).numpy())
    again = UniformPoints(6, True, seed=3)(512)
    assert torch.equal(points, again) and float(points.min()) > 0 and float(points.max()) < 1
    assert not torch.equal(points, UniformPoints(6, True, seed=4)(512))


def test_windows_from_cells_are_rare_leaders_too(space):
    """Recorded windows only; by cells, the rarest leaders come up more often than by windows."""
    bank, rng = space.bank, stream(0, "windows")
    real = len(bank.real.gap)
    ids = {share: bank.sample_spread(20_000, share, rng) for share in (0.0, 1.0)}
    counts = {share: torch.bincount(i, minlength=real).double() for share, i in ids.items()}
    assert all(len(c) == real and float(c.min()) > 0 for c in counts.values())
    expected = 20_000 / real
    assert float((counts[0.0] - expected).abs().max()) < 5 * expected**0.5
    order, first, size = bank._cells
    assert sorted(order.tolist()) == list(range(real)) and int(size.sum()) == real
    share = 20_000 / len(size)
    for start, n in zip(first.tolist(), size.tolist(), strict=True):
        held = float(counts[1.0][order[start : start + n]].sum())
        assert abs(held - share) < 5 * share**0.5


def test_the_warm_up_is_from_the_prior_behind_recorded_leaders(space, prior):
    chosen = TargetedAcquisition(**SETTINGS).warm_up(space).take(4096)
    share = torch.special.ndtr(prior.to_normal(chosen.theta).double())
    tenth = (10 * share).floor().clamp(0, 9).long()
    for column in tenth.unbind(1):
        # Evenly filled: far closer to a tenth each than independent draws would be.
        assert (torch.bincount(column, minlength=10) - 409.6).abs().max() < 12
    assert not bool(space.bank.is_synthetic(chosen.window_id).any())
    assert not bool(chosen.log_ratio.any())


def test_the_pool_has_the_moments_of_the_posteriors_draws(posterior, space):
    drawn = posterior.sample(space.contexts, 4000, stream(1, "d")).theta.flatten(0, 1)
    z = space.prior.to_normal(drawn).double()
    pooled = pool(posterior, space.contexts, 0.5, 4000, space.prior, stream(0, "d"))
    torch.testing.assert_close(pooled.mean, z.mean(0), rtol=0, atol=0.05)
    covariance = pooled.factor @ pooled.factor.T
    torch.testing.assert_close(covariance, torch.cov(z.T), rtol=0.1, atol=0.05)


def test_balance_over_rounds_is_the_mixture_of_their_densities(prior, proposal):
    z = torch.randn(40, prior.dim, dtype=torch.float64)
    other = proposal._replace(share=0.6, mean=-proposal.mean)
    proposals = {0: prior_alone(prior), 1: proposal, 2: other}
    counts = {0: 100, 1: 300, 2: 600}
    expected = torch.log(0.1 + 0.3 * proposal.log_ratio(z).exp() + 0.6 * other.log_ratio(z).exp())
    torch.testing.assert_close(log_balance(z, proposals, counts), expected)
    assert float(log_balance(z, proposals, counts).exp().min()) >= 0.1  # weights at most n / n_0


@pytest.mark.parametrize("skew", [0.0, 1.0, 4.0])
def test_inclusion_probabilities_sum_to_the_picks_and_bound_the_weights(skew):
    score = torch.exp(skew * torch.randn(500, generator=torch.Generator().manual_seed(0)))
    probability = inclusion(score, 100, 0.5)
    assert float(probability.sum()) == pytest.approx(100)
    assert float(probability.min()) > 0 and float(probability.max()) <= 1
    _, log_ratio = choose(score, 100, 0.5, stream(0, "picks"))
    assert float(log_ratio.exp().max()) <= 2 + 1e-6


def test_candidates_are_picked_as_often_as_their_probability_says():
    score = torch.tensor([1.0, 2.0, 3.0, 10.0, 4.0, 20.0, 0.5, 1.5])
    probability = inclusion(score, 4, 0.3)
    rng, times, tries = stream(0, "often"), torch.zeros(8), 20_000
    for _ in range(tries):
        picks = systematic_picks(probability, rng)
        assert len(picks.unique()) == 4
        times[picks] += 1
    error = 5 * (probability * (1 - probability) / tries).sqrt()
    assert bool(((times / tries - probability).abs() <= error + 1e-9).all())


def test_the_surrogate_finds_where_members_disagree(posterior, space, kept):
    """The stub's members differ by a shift, so their spread is a function of theta and x."""
    surrogate = fit_surrogate(posterior, kept, space, 1, members=7, pairs=300)
    z = space.prior.to_normal(kept.theta)
    predicted = surrogate.predict(z, space.bank.window_features[kept.window_id])
    assert surrogate.fit > 0.3
    assert float(predicted.min()) >= 0.25 and float(predicted.max()) <= 4
    assert (
        pair_features(z, space.bank.window_features[kept.window_id]).shape[1] == 16 + 16 * 17 / 2
    )


def weighted_mean(kept: Simulations, weight, prior) -> torch.Tensor:
    return (weight[:, None] * prior.to_normal(kept.theta)).double().mean(0)


def test_weights_of_all_rounds_give_the_prior_back(posterior, space, kept, prior):
    """Theta of heavily selected rounds, weighted, has the prior's mean; unweighted it has not."""
    strategy = TargetedAcquisition(**SETTINGS | {"uniform_share": 0.3, "candidates": 10})
    parts, proposals = [kept], {0: prior_alone(prior)}
    for round in (1, 2):
        plan = strategy.plan(round, posterior, space, kept)
        chosen = plan.take(4000)
        proposals[round] = plan.proposal
        rows = len(chosen.theta)
        parts.append(
            Simulations(
                theta=chosen.theta,
                states=torch.zeros(rows, 20, 3),
                window_id=chosen.window_id,
                round=torch.full((rows,), round),
                log_ratio=chosen.log_ratio,
            )
        )
    names = ("theta", "states", "window_id", "round", "log_ratio")
    joined = Simulations(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names})
    weight = strategy.weights(joined, proposals, space)
    assert float(weight.mean()) == pytest.approx(1)
    z = prior.to_normal(joined.theta).double()
    error = 5 * (weight[:, None] * z).std(0) / len(z) ** 0.5
    assert bool((weighted_mean(joined, weight, prior).abs() < error).all())
    assert float(z.mean(0).abs().max()) > 0.15


def test_without_selection_every_draw_of_the_mixture_is_taken(posterior, space, kept):
    strategy = TargetedAcquisition(**SETTINGS | {"uniform_share": 1.0})
    plan = strategy.plan(1, posterior, space, kept)
    assert not bool(plan.take(50).log_ratio.any())
    assert "surrogate_fit" not in plan.diagnostics


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prior_share", 0.0, "acquisition.prior_share=0 leaves weights unbounded"),
        ("uniform_share", 0.0, "acquisition.uniform_share=0 leaves weights unbounded"),
        ("correction", "importance", "targeted weighs its simulations itself"),
        ("members", 1, "acquisition.members=1; expected"),
        ("known_share", 1, "acquisition.known_share=1 leaves simulations without a weight"),
        ("known_draws", 0, "acquisition.known_draws=0; expected"),
    ],
)
def test_values_that_break_the_weights_are_refused(field, value, message):
    with pytest.raises(InputError, match=message):
        TargetedAcquisition(**SETTINGS | {field: value})


def test_observed_drivers_are_training_pairs_of_the_first_round(space, simulator, kept):
    strategy = TargetedAcquisition(**SETTINGS)
    drivers = space.prior.sample(4, stream(0, "drivers"))
    windows = space.bank.windows.take(torch.arange(4))
    rollout = simulator.rollout(
        drivers, windows.leader_speed, windows.gap, windows.speed, stream(0, "noise")
    )
    seen = replace(space, contexts=rollout.states, likelihood=simulator)
    posterior = PriorDraws(space.prior)
    plan = strategy.plan(1, posterior, seen, kept)
    assert plan.known is not None
    assert plan.known_share == pytest.approx(0.5 * len(plan.known) / (4 * 3))
    assert len(plan.known) % 3 == 0 and set(plan.known.round.tolist()) == {NO_ROUND}
    # None where a likelihood does not tell, where they have no share, and not again later.
    assert strategy.plan(2, posterior, seen, kept).known is None
    assert strategy.plan(1, posterior, replace(seen, likelihood=None), kept).known is None
    alone = TargetedAcquisition(**SETTINGS | {"known_share": 0.0})
    assert alone.plan(1, posterior, seen, kept).known is None


def test_known_pairs_are_exact_posterior_draws(space, simulator):
    """Against the prior's own draws, weighted by the likelihood: another way to the same means."""
    windows = space.bank.windows.take(torch.arange(6))
    drivers = space.prior.sample(6, stream(4, "drivers"))
    states = simulator.rollout(
        drivers, windows.leader_speed, windows.gap, windows.speed, stream(4, "noise")
    ).states
    pairs = known_pairs(PriorDraws(space.prior), simulator, states, 200, stream(5, "known"))
    drawn = space.prior.sample(400_000, stream(6, "prior"))
    z = space.prior.to_normal(drawn).double()
    reached = 0
    for x in states:
        own = (pairs.states == x).all(dim=2).all(dim=1)
        weight = simulator.log_likelihood(drawn, x[None]).softmax(0)
        if not bool(own.any()) or 1 / float(weight.square().sum()) < 200:
            continue
        reached += 1
        mean = (weight[:, None] * z).sum(0)
        spread = (weight[:, None] * (z - mean) ** 2).sum(0).sqrt()
        found = space.prior.to_normal(pairs.theta[own]).double()
        assert bool(((found.mean(0) - mean).abs() < 0.35 * spread).all())
        assert bool(((found.std(0) / spread).log().abs() < 0.35).all())
    assert reached >= 3


def test_observed_stretches_do_not_overlap(pair_maker):
    pairs = pair_maker(3, 70)
    strategy = TargetedAcquisition(**SETTINGS | {"subset_size": 100})
    contexts = strategy.observed(pairs, 20, seed=0)
    whole = pairs.contexts(70)
    expected = torch.cat([whole[:, start : start + 20] for start in (0, 20, 40)])
    assert sorted(contexts.flatten(1).tolist()) == sorted(expected.flatten(1).tolist())
    assert len(TargetedAcquisition(**SETTINGS).observed(pairs, 20, seed=0)) == 4


def test_selecting_2000_of_50000_takes_well_under_five_seconds(posterior, space, kept):
    strategy = TargetedAcquisition(**SETTINGS | {"candidates": 25})
    plan = strategy.plan(1, posterior, space, kept)
    start = time.process_time()
    assert len(plan.take(2000).theta) == 2000
    assert time.process_time() - start < 5


def test_the_yaml_builds_it():
    built = build(compose("train", ["acquisition=targeted"]).acquisition)
    assert isinstance(built, TargetedAcquisition)
    assert replace(built, uniform_share=1.0).uniform_share == 1
    assert np.isfinite(built.prior_share)
