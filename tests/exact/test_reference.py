"""Exact posteriors of simulated drivers, and the distance of other posteriors from them."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from asbc.data.windows import LeaderWindows
from asbc.exact.diagnostics import NutsSettings
from asbc.exact.reference import (
    ExactPosteriors,
    ObservedPosteriors,
    as_pairs,
    closeness,
    exact_posteriors,
    observed_posteriors,
    target_loss,
)
from asbc.posterior.posterior import PosteriorSamples
from asbc.simulator.robust import simulate_drivers
from asbc.simulator.weighted_draws import adapt, log_joint, smooth
from asbc.utils.files import load_tensors, save_tensors
from asbc.utils.random import standard_normal, stream

both_residuals = pytest.mark.parametrize("residual", ["gaussian", "matern"])


@pytest.fixture
def windows() -> LeaderWindows:
    """Leaders that slow down and speed up, followers at a plausible distance."""
    rng = np.random.default_rng(0)
    phase = torch.from_numpy(rng.uniform(0, 6, (40, 1))).float()
    leader = 9 + 5 * torch.sin(0.1 * torch.arange(75) + phase)
    place = torch.arange(40)
    return LeaderWindows(leader, 8 + 1.5 * leader[:, 0], leader[:, 0], place, 0 * place)


@both_residuals
def test_sampler_sees_the_simulators_likelihood(simulators, windows, residual):
    """Differences over theta: the JAX likelihood leaves out nothing that depends on it."""
    from asbc.exact.likelihood import TrajectoryLikelihood
    from asbc.exact.statistics import statistics, transitions

    simulator = simulators[residual]
    drivers = simulate_drivers(simulator, windows, 5, seed=0)
    data = statistics(simulator, transitions(simulator, as_pairs(drivers, simulator.dt)))
    theirs = TrajectoryLikelihood.of(simulator)(drivers.theta.double().numpy(), data)
    ours = simulator.log_likelihood(drivers.theta, drivers.states)
    np.testing.assert_allclose(np.asarray(theirs), ours.numpy(), rtol=1e-4, atol=1e-3)


class Gaussian:
    """The same Gaussian for every trajectory."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def sample(self, states, n, rng):
        theta = standard_normal(rng, len(states), n, 3)
        theta[..., 0] += self.shift
        return PosteriorSamples(theta, torch.zeros(len(states)))


def test_closeness_and_file(tmp_path):
    draws = standard_normal(stream(0, "exact"), 4, 800, 3)
    exact = ExactPosteriors(torch.zeros(4, 3), torch.zeros(4, 9, 3), draws, torch.ones(4) > 0)
    save_tensors(exact._asdict(), tmp_path / "new" / "exact.pt")
    again = ExactPosteriors(**load_tensors(tmp_path / "new" / "exact.pt"))
    assert all(torch.equal(mine, read) for mine, read in zip(exact, again, strict=True))
    alike = closeness(Gaussian(0), exact, ("a", "b", "c"))
    apart = closeness(Gaussian(2), exact, ("a", "b", "c"))
    assert alike["c2st"].mean() < 0.55
    # Two unit normals two deviations apart: the best classifier is right Phi(1) = 0.84 of times.
    assert apart["c2st"].mean() == pytest.approx(0.841, abs=0.03)
    np.testing.assert_allclose(apart["shift_a"], 2, atol=0.2)
    assert apart["shift_b"].abs().max() < 0.2


class StandardNormal:
    """q(theta | x) = N(0, I) whatever x is."""

    def log_prob(self, theta, states):
        return (-0.5 * theta.square() - 0.5 * math.log(2 * math.pi)).sum(-1)


def test_target_loss_is_the_cross_entropy_at_the_exact_draws():
    """Of N(0, I) at draws of N(m, I): the entropy of 3 standard normals plus |m|^2 / 2."""
    draws = standard_normal(stream(0, "exact"), 3, 20_000, 3)
    draws[1, :, 0] += 2.0
    sure = torch.tensor([True, True, False])
    loss = target_loss(StandardNormal(), ObservedPosteriors(torch.zeros(3, 9, 3), draws, sure))
    entropy = 1.5 * math.log(2 * math.pi * math.e)
    assert loss[:2].tolist() == pytest.approx([entropy, entropy + 2], abs=0.06)
    assert math.isnan(loss[2])  # its draws are not known to be exact


class Sampled(NamedTuple):
    """What NUTS returns, as far as it is read."""

    theta: np.ndarray
    converged: np.ndarray


def test_exact_posteriors_are_kept_under_all_that_they_depend_on(
    simulators, windows, tmp_path, monkeypatch
):
    """The cache must know the file's content, the model and its own format, not a path."""
    asked = []

    def sample(simulator, seen, names, nuts, seed, at_once, engine):
        asked.append(len(seen))
        theta = np.broadcast_to(simulator.prior.high.numpy(), (2, 150, len(seen), simulator.dim))
        return Sampled(theta, np.ones(len(seen), dtype=bool))

    monkeypatch.setattr("asbc.exact.drivers.exact_drivers", sample)
    gaussian = simulators["gaussian"]
    pairs = as_pairs(simulate_drivers(gaussian, windows, 3, seed=0), gaussian.dt)

    def look(simulator=gaussian, pairs=pairs, steps=75):
        return observed_posteriors(simulator, pairs, steps, tmp_path)

    first, again = look(), look()
    assert asked == [3] and torch.equal(first.draws, again.draws)
    assert first.draws.shape == (3, 200, 6) and torch.equal(first.states, pairs.contexts(75))
    moved = replace(pairs, gap=pairs.gap + 0.01)
    look(pairs=moved)
    look(simulators["matern"])
    look(steps=60)
    monkeypatch.setattr("asbc.exact.reference.FORMAT", 0)
    look()
    assert asked == [3] * 5


@pytest.mark.slow
@both_residuals
def test_exact_posteriors_agree_with_importance_sampling(simulators, windows, residual):
    """NUTS against adapted importance sampling with torch's likelihood: two separate codes."""
    simulator = simulators[residual]
    exact = exact_posteriors(simulator, windows, 6, 1000, nuts=NutsSettings(draws=500))
    assert bool(exact.converged.all()) and bool(simulator.prior.contains(exact.theta).all())
    n, rng = 4000, stream(0, "proposals")
    theta = simulator.prior.sample(6 * n, rng).view(6, n, -1)
    weight = log_joint(simulator, theta, exact.states) - simulator.prior.log_prob(theta.double())
    for _ in range(12):
        theta, weight = adapt(simulator, theta, weight, exact.states, rng)
    found = smooth(weight, torch.zeros(6))
    reliable = (found.k_hat < 0.7) & (found.effective_draws > 400)
    assert int(reliable.sum()) >= 4
    share = found.weights[..., None]
    mean = (share * theta).sum(1)
    spread = (share * (theta - mean[:, None]).square()).sum(1).sqrt()
    # 400 effective draws on either side: a standard error of 0.07 in these units.
    shift = ((exact.draws.mean(1) - mean) / spread)[reliable]
    ratio = (exact.draws.std(1) / spread).log()[reliable]
    assert float(shift.abs().max()) < 0.3
    assert float(ratio.abs().max()) < 0.3
