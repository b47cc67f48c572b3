import math

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.simulator.residuals import GaussianResidual
from asbc.utils.random import standard_normal, stream

RESIDUALS = ["gaussian", "matern"]
TRUTH = {
    "gaussian": [25.0, 2.5, 1.3, 1.2, 1.8, 0.35],
    "matern": [25.0, 2.5, 1.3, 1.2, 1.8, 0.35, 1.5],
}


def varied_leaders(n, steps):
    """Leaders that crawl, brake, accelerate and drive away."""
    time = 0.2 * torch.arange(steps, dtype=torch.float64)
    phase = standard_normal(stream(0, "phase"), n, 2, 1, dtype=torch.float64)
    slow, fast = torch.sin(time / 17 + phase[:, 0]), torch.sin(time / 2.3 + phase[:, 1])
    return (15 + 17 * slow + 2 * fast).clamp(1, 34)


def simulate(simulator, truth, n, steps):
    theta = torch.tensor([truth], dtype=torch.float64).repeat(n, 1)
    leader = varied_leaders(n, steps)
    gap = simulator.law.equilibrium_gap(theta, leader[:, 0].clamp_max(15))
    rng = stream(0, "simulate", n)
    return theta, simulator.rollout(theta, leader, gap, leader[:, 0], rng, check=False)


def scalar_residuals(theta, states):
    """(v' - v)/dt minus the paper's equation, one number at a time."""
    v0, s0, headway, a_max, b = theta[:5]
    values = []
    for (gap, speed, rate), (_, next_speed, _) in zip(states[:-1], states[1:], strict=True):
        desired = s0 + speed * headway + speed * rate / (2 * math.sqrt(a_max * b))
        law = a_max * (1 - (speed / v0) ** 4 - (desired / gap) ** 2)
        values.append((next_speed - speed) / 0.2 - law)
    return np.array(values)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_trajectory_likelihood_equals_the_dense_normal(build_simulator, residual):
    simulator = build_simulator(residual)
    theta, rollout = simulate(simulator, TRUTH[residual], 6, 75)
    other = simulator.prior.sample(6, stream(1, "other")).double()
    for parameters in (theta, other):
        actual = simulator.log_likelihood(parameters, rollout.states)
        for i in range(6):
            values = scalar_residuals(parameters[i].tolist(), rollout.states[i].tolist())
            sigma = parameters[i, 5].item()
            covariance = sigma**2 * np.eye(74)
            if residual == "matern":
                lags = 0.2 * np.abs(np.subtract.outer(np.arange(74), np.arange(74)))
                r = math.sqrt(5) * lags / parameters[i, 6].item()
                kernel = sigma**2 * (1 + r + r**2 / 3) * np.exp(-r)
                covariance = kernel + 1e-3 * covariance
            expected = stats.multivariate_normal(cov=covariance).logpdf(values)
            assert actual[i].item() == pytest.approx(expected, rel=1e-6)


def test_residuals_invert_the_rollout(build_simulator):
    simulator = build_simulator("matern")
    theta, rollout = simulate(simulator, TRUTH["matern"], 5, 40)
    noise = simulator.residual.sample(theta[:, 5:], 40, 0.2, stream(0, "simulate", 5))
    by_difference = simulator.residuals(theta, rollout.states)
    by_observation = simulator.residuals(theta, rollout.states, rollout.acceleration)
    torch.testing.assert_close(by_difference, noise[:, :-1], rtol=0, atol=1e-9)
    torch.testing.assert_close(by_observation, noise, rtol=0, atol=1e-9)


def test_many_thetas_broadcast_over_one_trajectory(build_simulator):
    simulator = build_simulator("matern")
    _, rollout = simulate(simulator, TRUTH["matern"], 2, 30)
    theta = simulator.prior.sample(10, stream(2)).view(2, 5, 7)
    grid = simulator.log_likelihood(theta, rollout.states[:, None])
    for i in range(2):
        states = rollout.states[i].expand(5, -1, -1)
        torch.testing.assert_close(grid[i], simulator.log_likelihood(theta[i], states))


@pytest.mark.parametrize("residual", RESIDUALS)
def test_score_has_mean_zero_at_the_truth(build_simulator, residual):
    simulator = build_simulator(residual)
    theta, rollout = simulate(simulator, TRUTH[residual], 3000, 40)
    theta.requires_grad_()
    (score,) = torch.autograd.grad(simulator.log_likelihood(theta, rollout.states).sum(), theta)
    z = score.mean(0) / (score.std(0) / math.sqrt(len(score)))
    assert z.abs().max() < 4, z
    assert (score.std(0) > 0).all()


def test_score_has_mean_zero_where_accelerations_are_clipped(build_simulator):
    """Followers that come to a stop or brake at the limit: censored steps, exact for Gaussian."""
    simulator = build_simulator("gaussian")
    n, steps = 6000, 40
    theta = torch.tensor([[25.0, 2.5, 1.3, 1.2, 1.8, 0.8]], dtype=torch.float64).repeat(n, 1)
    leader = (6 - 0.4 * torch.arange(steps)).clamp_min(0).double().expand(n, -1)
    gap, speed = torch.full((n,), 12.0).double(), torch.full((n,), 7.0).double()
    rollout = simulator.rollout(theta, leader, gap, speed, stream(3, "stop"))
    assert 0.1 < (rollout.speed == 0).double().mean() < 0.9
    theta.requires_grad_()
    (score,) = torch.autograd.grad(simulator.log_likelihood(theta, rollout.states).sum(), theta)
    score = score[:, 1:]  # nothing is learnt about the desired speed here
    z = score.mean(0) / (score.std(0) / math.sqrt(n))
    assert z.abs().max() < 4, z


def test_censored_gaussian_terms():
    residuals = torch.tensor([[0.3, -0.5, 1.2]]).double()
    lower, upper = torch.tensor([[False, True, False]]), torch.tensor([[False, False, True]])
    actual = GaussianResidual().log_likelihood(
        residuals, torch.tensor([[0.4]]).double(), 0.2, lower, upper
    )
    normal = stats.norm(scale=np.float32(0.4))
    expected = normal.logpdf(0.3) + normal.logcdf(-0.5) + normal.logsf(1.2)
    assert actual.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_likelihood_gradient(build_simulator, residual):
    simulator = build_simulator(residual)
    theta, rollout = simulate(simulator, TRUTH[residual], 3, 12)
    states = rollout.states
    # One follower comes to a stop: censored.
    states[0, :, 1] = (1.1 - 0.2 * torch.arange(12)).clamp_min(0)
    assert torch.autograd.gradcheck(
        lambda x: simulator.log_likelihood(x, states), theta.requires_grad_(), rtol=1e-4
    )


def newton_maximiser(function, x, iterations, h=1e-3):
    """Maximiser of a batched function, and its standard errors, by numerical Newton steps."""
    dim = len(x)
    shifts = h * torch.eye(dim, dtype=torch.float64)
    corners = torch.tensor([(1, 1), (1, -1), (-1, 1), (-1, -1)], dtype=torch.float64)
    i, j = torch.cartesian_prod(torch.arange(dim), torch.arange(dim)).T
    for _ in range(iterations):
        steps = corners[:, :1, None] * shifts[i] + corners[:, 1:, None] * shifts[j]
        values = function((x + steps).view(-1, dim)).view(4, dim, dim)
        hessian = (corners.prod(1)[:, None, None] * values).sum(0) / (4 * h**2)
        slope = function(torch.cat([x + shifts, x - shifts])).view(2, dim)
        # Uphill also where the function is not concave, and never far.
        curvature, axes = torch.linalg.eigh(hessian)
        step = axes @ (axes.T @ (slope[0] - slope[1]) / (2 * h) / curvature.abs())
        x = x + step.clamp(-0.1, 0.1)
    return x, torch.linalg.inv(-hessian).diagonal().sqrt()


@pytest.mark.parametrize("residual, steps", [("gaussian", 5000), ("matern", 2000)])
def test_truth_is_recovered_as_the_maximiser(build_simulator, residual, steps):
    """From one long trajectory, starting 10% off in every parameter."""
    simulator = build_simulator(residual)
    truth, rollout = simulate(simulator, TRUTH[residual], 1, steps)

    def log_likelihood(log_theta):
        return simulator.log_likelihood(log_theta.exp(), rollout.states)

    target = truth[0].log()
    start = target + 0.1 * torch.tensor([1, -1, 1, -1, 1, -1, 1]).double()[: len(target)]
    estimate, standard_error = newton_maximiser(log_likelihood, start, 7)
    assert standard_error.max() < 0.15
    assert ((estimate - target) / standard_error).abs().max() < 3.5
