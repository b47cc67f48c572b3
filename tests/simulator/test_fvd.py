"""A second car-following law: one file, one yaml and this test are all it needs."""

import math

import pytest
import torch

from asbc.simulator.laws import FullVelocityDifference
from asbc.utils.random import stream, uniform

DRIVER = torch.tensor([33.3, 5.0, 15.0, 1.5, 0.6], dtype=torch.float64)


def scalar_fvd(theta, gap, speed, approach_rate):
    """The equation, one number at a time, with tanh written out."""
    v0, tau, width, beta, gamma = theta

    def tanh(x):
        return 1 - 2 / (math.exp(2 * x) + 1)

    optimal = v0 * (tanh(gap / width - beta) + tanh(beta)) / (1 + tanh(beta))
    return (optimal - speed) / tau - gamma * approach_rate


def test_acceleration_equals_the_scalar_equation(build_simulator):
    theta = build_simulator(model="fvd").prior.sample(300, stream(0, "fvd")).double()
    u = uniform(stream(0, "state"), 300, 3, dtype=torch.float64)
    state = torch.stack([0.5 + 80 * u[:, 0], 35 * u[:, 1], 30 * (u[:, 2] - 0.5)], 1)
    actual = FullVelocityDifference().acceleration(theta, *state.unbind(1))
    expected = [
        scalar_fvd(row[:5], *s) for row, s in zip(theta.tolist(), state.tolist(), strict=True)
    ]
    assert actual.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_limits():
    law, zero = FullVelocityDifference(), torch.tensor(0.0, dtype=torch.float64)
    assert law.acceleration(DRIVER, zero, zero, zero).item() == pytest.approx(0, abs=1e-12)
    free = law.acceleration(DRIVER, zero + 1e4, zero, zero).item()
    assert free == pytest.approx(33.3 / 5)  # v0 / tau on an empty road
    assert law.equilibrium_gap(DRIVER, zero).item() == pytest.approx(0, abs=1e-12)
    speeds = torch.tensor([33.2999, 33.3, 36.0], dtype=torch.float64)
    assert law.equilibrium_gap(DRIVER, speeds).isinf().tolist() == [False, True, True]


def test_equilibrium_gap_is_a_fixed_point_of_the_rollout(build_simulator):
    simulator = build_simulator(model="fvd")
    theta = simulator.prior.sample(200, stream(1, "theta")).double()
    theta[:, 5] = 0  # no residual
    speed = 1 + 17 * uniform(stream(1, "speed"), 200, dtype=torch.float64)
    gap = simulator.law.equilibrium_gap(theta, speed)
    leader = speed[:, None].repeat(1, 60)
    rollout = simulator.rollout(theta, leader, gap, speed, stream(1), check=False)
    torch.testing.assert_close(rollout.gap, gap[:, None].expand(-1, 60), rtol=1e-7, atol=0)
    assert rollout.acceleration.abs().max() < 1e-7


def test_the_prior_follows_the_law(build_simulator):
    prior = build_simulator("matern", model="fvd").prior
    assert prior.names == (*FullVelocityDifference.parameters, "sigma", "ell")


def test_the_whole_loop_runs_with_it(train_here, tiny, tmp_path):
    loss = train_here([*tiny, "model=fvd", "training.rounds=1"], tmp_path / "run")
    assert math.isfinite(loss)
