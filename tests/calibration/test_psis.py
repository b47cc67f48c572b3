"""Importance weights against analytic ratios, prior Monte Carlo and hand-written densities."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal

from asbc.data.pairs import Pairs
from asbc.simulator.weighted_draws import log_weights, resample, smooth
from asbc.trained_model import Model

NO_LEAK = torch.zeros(400)


def normal_ratio(
    scale: float, shift: float, drivers: int = 400, draws: int = 2000
) -> torch.Tensor:
    """log of 3 N(0, 1) / N(shift, scale^2) at draws of the latter."""
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((drivers, draws)))
    x = shift + scale * z
    return math.log(3) + Normal(0.0, 1.0).log_prob(x) - Normal(shift, scale).log_prob(x)


def test_evidence_its_error_and_effective_draws_of_a_normal() -> None:
    result = smooth(normal_ratio(scale=1.2, shift=0.3), NO_LEAK)
    assert float(result.log_evidence.mean()) == pytest.approx(math.log(3), abs=2e-3)
    # The reported error is the spread over repetitions.
    spread = float(result.log_evidence.std())
    assert float(result.log_evidence_error.mean()) == pytest.approx(spread, rel=0.15)
    # E[w^2] / E[w]^2 of two normals, in closed form.
    variance, scale2 = 1 / (2 - 1 / 1.44), 1.44
    second = math.sqrt(scale2 * variance) * math.exp(0.3**2 / (2 * scale2 - 1))
    assert float(result.effective_draws.mean()) == pytest.approx(2000 / second, rel=0.03)
    torch.testing.assert_close(result.weights.sum(1), torch.ones(400).double())


@pytest.mark.parametrize(("scale", "shape"), [(0.8, 0.36), (0.6, 0.64), (0.45, 0.80)])
def test_k_hat_finds_the_tail_of_too_narrow_proposals(scale: float, shape: float) -> None:
    """Weights of a normal with a narrower one have the Pareto shape 1 - scale^2."""
    k_hat = smooth(normal_ratio(scale, 0.0), NO_LEAK).k_hat
    assert float(k_hat.median()) == pytest.approx(shape, abs=0.12)


def test_a_leaking_proposal_keeps_its_evidence() -> None:
    """Draws of N(0, 1.2) redrawn until positive, for the target 3 N(0, 1) on x > 0."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(np.abs(rng.standard_normal((400, 2000)) * 1.2))
    log_weight = math.log(3) + Normal(0.0, 1.0).log_prob(x) - Normal(0.0, 1.2).log_prob(x)
    result = smooth(log_weight, torch.full((400,), 0.5))
    assert float(result.log_evidence.mean()) == pytest.approx(math.log(1.5), abs=2e-3)


def test_a_driver_without_any_usable_draw_is_marked() -> None:
    log_weight = torch.zeros(3, 200).double()
    log_weight[1] = -torch.inf
    result = smooth(log_weight, torch.tensor([0.0, 0.0, 1.0]))
    assert result.k_hat[1:].tolist() == [torch.inf, torch.inf]
    assert result.effective_draws.tolist() == pytest.approx([200.0, 0.0, 0.0])
    assert torch.isnan(result.log_evidence[1:]).all()


def test_weights_are_prior_times_likelihood_over_q(
    gaussian_model: Model, simulate_pairs: Callable[..., tuple[torch.Tensor, Pairs]]
) -> None:
    """One weight, from scalar formulas and scipy's densities."""
    model = gaussian_model
    _, pairs = simulate_pairs(model.simulator, 3)
    theta, _ = model.sample(pairs, 4, seed=0)
    states = model.contexts(pairs)
    value = log_weights(model.posterior, model.simulator, theta, states)[1, 2]
    v0, s0, headway, a, b, sigma = theta[1, 2].double().tolist()
    gap, speed, approach = states[1].double().numpy().T
    desired = s0 + speed * headway + speed * approach / (2 * math.sqrt(a * b))
    law = a * (1 - (speed / v0) ** 4 - (desired / gap) ** 2)
    residual = np.diff(speed) / 0.2 - law[:-1]
    expected = stats.norm(0, sigma).logpdf(residual).sum()
    for marginal, x in zip(model.simulator.prior.marginals, theta[1, 2].double(), strict=True):
        ends = np.log([marginal.low, marginal.high])
        z = (ends - math.log(marginal.centre)) / marginal.log_scale
        density = stats.truncnorm(*z, math.log(marginal.centre), marginal.log_scale)
        expected += density.logpdf(math.log(x)) - math.log(x)
    expected -= float(model.posterior.log_prob(theta[1:2, 2], states[1:2]))
    assert float(value) == pytest.approx(expected, abs=1e-3)


def test_evidence_agrees_with_plain_prior_sampling(
    gaussian_model: Model, simulate_pairs: Callable[..., tuple[torch.Tensor, Pairs]]
) -> None:
    model = gaussian_model
    _, pairs = simulate_pairs(model.simulator, 40)
    states = model.contexts(pairs)
    theta, leak = model.sample(pairs, 2000, seed=0)
    result = smooth(log_weights(model.posterior, model.simulator, theta, states), leak)
    # Z = E_prior[L]: slow to converge, but it knows no network.
    prior = model.simulator.prior.sample(40_000, np.random.default_rng(8))
    good = torch.nonzero(result.k_hat < 0.5).flatten()[:6]
    for i in good.tolist():
        log_lik = model.simulator.log_likelihood(prior, states[i])
        weight = (log_lik - log_lik.max()).exp()
        reference = float(log_lik.max() + weight.mean().log())
        error = float(weight.std() / weight.mean() / math.sqrt(len(weight)))
        distance = abs(float(result.log_evidence[i]) - reference)
        assert distance < 4 * math.hypot(error, float(result.log_evidence_error[i]))


def test_resampling_takes_each_draw_in_proportion() -> None:
    rng = np.random.default_rng(3)
    weights = torch.from_numpy(rng.dirichlet(np.full(50, 0.5), size=4))
    theta = torch.arange(50.0).expand(4, 50).unsqueeze(-1)
    chosen = resample(theta, weights, 1000, np.random.default_rng(0)).squeeze(-1).long()
    for row, weight in zip(chosen, weights, strict=True):
        count = torch.bincount(row, minlength=50)
        assert bool((count >= (1000 * weight).floor() - 1e-9).all())
        assert bool((count <= (1000 * weight).ceil() + 1e-9).all())
        # In random order: the first half is a fair part of the whole.
        assert float((row[:500].float().mean() - row[500:].float().mean()).abs()) < 3.0
    again = resample(theta[:2], weights[:2], 1000, np.random.default_rng(0)).squeeze(-1).long()
    assert torch.equal(again, chosen[:2])
