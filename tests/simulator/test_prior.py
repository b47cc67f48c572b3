import math

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.errors import InputError
from asbc.simulator import Prior
from asbc.simulator.prior import quantile_grid
from asbc.utils.random import stream

RESIDUALS = ["gaussian", "matern"]


def truncated_normal(marginal):
    """scipy's distribution of log x."""
    low, high = (
        (math.log(x / marginal.centre)) / marginal.log_scale for x in (marginal.low, marginal.high)
    )
    return stats.truncnorm(low, high, loc=math.log(marginal.centre), scale=marginal.log_scale)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_samples_follow_the_truncated_log_normal(build_simulator, residual):
    prior = build_simulator(residual).prior
    theta = prior.sample(20_000, stream(0, "prior"))
    assert theta.dtype == torch.float32
    assert bool(prior.contains(theta).all())
    assert bool((theta >= prior.low).all()) and bool((theta <= prior.high).all())
    for j, marginal in enumerate(prior.marginals):
        test = stats.kstest(theta[:, j].double().log().numpy(), truncated_normal(marginal).cdf)
        assert test.pvalue > 1e-3, marginal.name


@pytest.mark.parametrize("residual", RESIDUALS)
def test_density_integrates_to_one_in_every_dimension(build_simulator, residual):
    """On a grid per dimension, the others held at their centre."""
    prior = build_simulator(residual).prior
    centre = torch.tensor([m.centre for m in prior.marginals], dtype=torch.float64)
    for j, marginal in enumerate(prior.marginals):
        grid = torch.linspace(prior.low[j].item(), prior.high[j].item(), 20_001).double()
        theta = centre.repeat(len(grid), 1)
        theta[:, j] = grid
        others = sum(
            float(truncated_normal(m).logpdf(math.log(m.centre))) - math.log(m.centre)
            for m in prior.marginals
            if m is not marginal
        )
        density = (prior.log_prob(theta) - others).exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-4), marginal.name


def test_log_density_equals_scipy(build_simulator):
    prior = build_simulator("matern").prior
    theta = prior.sample(200, stream(1, "prior")).double()
    expected = sum(
        truncated_normal(m).logpdf(theta[:, j].log().numpy()) - theta[:, j].log().numpy()
        for j, m in enumerate(prior.marginals)
    )
    np.testing.assert_allclose(prior.log_prob(theta).numpy(), expected, rtol=1e-6)


def test_outside_the_support(build_simulator):
    prior = build_simulator().prior
    theta = prior.sample(4, stream(2, "prior"))
    theta[1, 2] = 0.5
    theta[2, 0] = -1.0
    theta[3, 1] = math.nan
    assert prior.contains(theta).tolist() == [True, False, False, False]
    log_prob = prior.log_prob(theta)
    assert log_prob[0].isfinite() and bool((log_prob[1:] == -math.inf).all())
    assert prior.contains(torch.stack([prior.low, prior.high])).all()
    assert prior.contains(torch.stack([prior.low, prior.high]).double()).all()


def test_gradient_of_the_log_density(build_simulator):
    prior = build_simulator("matern").prior
    theta = prior.sample(5, stream(3, "prior")).double().requires_grad_()
    assert torch.autograd.gradcheck(prior.log_prob, theta)


def test_inverse_distribution_function_reaches_the_bounds(build_simulator):
    prior = build_simulator().prior
    ends = prior.icdf(torch.stack([torch.zeros(6), torch.ones(6)]))
    torch.testing.assert_close(ends, torch.stack([prior.low, prior.high]))


LAW = {"v0": {"unit": "m/s", "centre": 30.0, "log_scale": 1.0, "low": 20.0, "high": 40.0}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"v1": {"low": 8.0}}, "prior.overrides.v1: no such name; expected one of v0"),
        ({"v0": {"lowest": 8.0}}, "prior.overrides.v0.lowest: no such name; expected one of unit"),
        ({"v0": {"low": 50.0}}, "prior of v0.*low < high"),
        ({"v0": {"low": -1.0}}, "prior of v0: low=-1.0; expected a number above 0"),
        ({"v0": {"log_scale": 0}}, "prior of v0: log_scale=0; expected a number above 0"),
        ({"v0": {"centre": "fast"}}, "prior of v0: centre=fast; expected a number above 0"),
    ],
)
def test_mistakes_in_the_settings_are_named(overrides, message):
    with pytest.raises(InputError, match=message):
        Prior(LAW, {}, overrides)


def test_an_override_replaces_a_field():
    assert Prior(LAW, {}, {"v0": {"low": 8.0}}).low.tolist() == [8]


def test_the_quantile_grid_has_the_priors_moments(build_simulator):
    prior = build_simulator("matern").prior
    grid, draws = quantile_grid(prior), prior.sample(200_000, stream(4, "prior"))
    np.testing.assert_allclose(grid.mean(0), draws.mean(0), rtol=0.01)
    np.testing.assert_allclose(grid.std(0), draws.std(0), rtol=0.02)


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_coordinates_that_are_normal_under_the_prior(build_simulator, residual):
    prior = build_simulator(residual).prior
    u = torch.linspace(-4, 4, 33, dtype=torch.float64)[:, None].expand(-1, prior.dim)
    theta = prior.from_normal(u)
    expected = prior.icdf(torch.special.ndtr(u))
    torch.testing.assert_close(theta.float(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(prior.to_normal(theta), u, rtol=0, atol=1e-4)
    # A standard normal, the slope and the prior's density are one statement.
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(u[4:-4]).sum(-1)
    slope = prior.normal_slope(u[4:-4]).log().sum(-1)
    torch.testing.assert_close(normal - slope, prior.log_prob(theta[4:-4]), rtol=0, atol=1e-6)
    ends = prior.to_normal(torch.stack([prior.low, prior.high]))
    assert torch.isfinite(ends).all() and (ends[0] < -5).all() and (ends[1] > 5).all()
