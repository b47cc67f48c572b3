"""Unbiased scores against closed forms, and gradients against finite differences."""

import math

import numpy as np
import pytest
import torch

from asbc.evaluation import scores as reported
from asbc.predictive.proper_scores import PROPER, bounded_gradient, crps, energy_score


def normal_score(y: float, mean: float, sd: float) -> float:
    """The CRPS of a normal law at y, in closed form (Gneiting and Raftery, 2007)."""
    z = (y - mean) / sd
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    cdf = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return sd * (z * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi))


@pytest.mark.parametrize("name", PROPER)
@pytest.mark.parametrize("draws", [2, 3, 8])
def test_unbiased_in_the_number_of_draws(name, draws):
    # In one dimension both scores are the CRPS.
    rng = torch.Generator().manual_seed(draws)
    windows = 200_000
    samples = 0.3 + 1.7 * torch.randn(windows, draws, 1, generator=rng, dtype=torch.float64)
    value = PROPER[name](samples, torch.full((windows, 1), 1.0, dtype=torch.float64))
    error = float(value.std()) / math.sqrt(windows)
    assert abs(float(value.mean()) - normal_score(1.0, 0.3, 1.7)) < 4 * error
    assert error < 0.005


def test_the_reported_score_is_larger_by_a_share_of_the_spread():
    rng = torch.Generator().manual_seed(0)
    samples = torch.randn(3, 10, 7, generator=rng, dtype=torch.float64)
    observed = torch.randn(3, 7, generator=rng, dtype=torch.float64)
    pairs = (samples[:, :, None] - samples[:, None]).norm(dim=-1).sum((1, 2))
    correction = pairs / 2 * (1 / (10 * 9) - 1 / 100)
    expected = reported.energy_score(samples, observed) - correction
    torch.testing.assert_close(energy_score(samples, observed), expected)
    by_step = energy_score(samples.transpose(1, 2).reshape(21, 10, 1), observed.reshape(21, 1))
    torch.testing.assert_close(crps(samples, observed), by_step.view(3, 7).mean(1))


@pytest.mark.parametrize("name", PROPER)
def test_gradients_agree_with_finite_differences(name):
    rng = torch.Generator().manual_seed(1)
    samples = torch.randn(2, 5, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    observed = torch.randn(2, 4, generator=rng, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: PROPER[name](s, observed), (samples,))


@pytest.mark.parametrize("name", PROPER)
def test_identical_draws_have_finite_gradients(name):
    # Everybody stands: all speeds, predicted and observed, are exactly 0.
    samples = torch.zeros(2, 4, 6, requires_grad=True)
    PROPER[name](samples, torch.zeros(2, 6)).sum().backward()
    assert samples.grad is not None and bool(samples.grad.isfinite().all())


def test_bounded_gradient_is_the_identity_below_its_limit():
    theta = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], requires_grad=True)
    weight = torch.tensor([[0.3, 0.4], [3e6, 4e6], [math.inf, 1.0]])
    out = bounded_gradient(theta, limit=1.0)
    assert torch.equal(out, theta)
    (out * weight).nan_to_num().sum().backward()
    (grad,) = torch.autograd.grad((bounded_gradient(theta, 1.0) * weight).sum(), theta)
    np.testing.assert_allclose(grad[0], weight[0])
    np.testing.assert_allclose((grad[1] * theta[1]).norm().item(), 1.0, rtol=1e-5)
    np.testing.assert_allclose(grad[1] / grad[1].norm(), weight[1] / weight[1].norm(), rtol=1e-5)
    assert torch.equal(grad[2], torch.zeros(2))
