import math

import pytest
import torch

from asbc.simulator.laws import IDM, SumoIDM
from asbc.utils.random import stream, uniform

RECOMMENDED = torch.tensor([33.3, 2.0, 1.6, 1.5, 1.67], dtype=torch.float64)


def scalar_idm(theta, gap, speed, approach_rate, delta=4.0, sumo=False):
    """Equations (idm) and (sstar) of the paper, one number at a time."""
    v0, s0, headway, a_max, b = theta
    dynamic = speed * headway + speed * approach_rate / (2 * math.sqrt(a_max * b))
    desired = s0 + (max(0.0, dynamic) if sumo else dynamic)
    return a_max * (1 - (speed / v0) ** delta - (desired / gap) ** 2)


@pytest.mark.parametrize(
    "law, options",
    [(IDM(), {}), (IDM(delta=3.3), {"delta": 3.3}), (SumoIDM(), {"sumo": True})],
    ids=["delta 4", "other delta", "sumo"],
)
def test_acceleration_equals_the_scalar_equation(build_simulator, law, options):
    theta = build_simulator().prior.sample(500, stream(0, "idm")).double()
    u = uniform(stream(0, "state"), 500, 3, dtype=torch.float64)
    gap, speed, approach_rate = 0.5 + 80 * u[:, 0], 35 * u[:, 1], 30 * (u[:, 2] - 0.5)
    expected = [
        scalar_idm(row[:5], *state, **options)
        for row, *state in zip(
            theta.tolist(), gap.tolist(), speed.tolist(), approach_rate.tolist(), strict=True
        )
    ]
    actual = law.acceleration(theta, gap, speed, approach_rate)
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def test_one_theta_broadcasts_along_a_trajectory():
    gap = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
    speed, approach_rate = gap / 2, gap / 10 - 2
    actual = IDM().acceleration(RECOMMENDED, gap, speed, approach_rate)
    for t in range(3):
        expected = scalar_idm(
            RECOMMENDED.tolist(), gap[t].item(), speed[t].item(), approach_rate[t].item()
        )
        assert actual[t].item() == pytest.approx(expected)


def test_equilibrium_gap_is_a_fixed_point_of_the_rollout(build_simulator):
    simulator = build_simulator()
    theta = simulator.prior.sample(300, stream(1, "theta")).double()
    theta[:, 5] = 0
    speed = 18 * uniform(stream(1, "speed"), 300, dtype=torch.float64)
    gap = simulator.law.equilibrium_gap(theta, speed)
    leader = speed[:, None].repeat(1, 100)
    rollout = simulator.rollout(theta, leader, gap, speed, stream(1), check=False)
    torch.testing.assert_close(rollout.gap, gap[:, None].expand(-1, 100), rtol=1e-9, atol=0)
    torch.testing.assert_close(rollout.speed, leader, rtol=1e-9, atol=1e-9)
    assert rollout.acceleration.abs().max() < 1e-9


def test_equilibrium_gap_is_infinite_from_the_desired_speed_on():
    speed = torch.tensor([33.2999, 33.3, 36.0], dtype=torch.float64)
    assert IDM().equilibrium_gap(RECOMMENDED, speed).isinf().tolist() == [False, True, True]


def test_a_platoon_behind_a_constant_leader_converges(build_simulator):
    simulator = build_simulator()
    driver = torch.tensor([[33.3, 2.0, 1.6, 1.5, 1.67, 0.0]], dtype=torch.float64)
    leader = torch.full((1, 1500), 12.0, dtype=torch.float64)
    start = torch.tensor([60.0]).double(), torch.tensor([3.0]).double()
    for _ in range(5):
        rollout = simulator.rollout(driver, leader, *start, stream(0), check=False)
        assert not rollout.collided.any()
        leader = rollout.speed
    equilibrium = simulator.law.equilibrium_gap(driver, torch.tensor([12.0]).double())
    assert rollout.speed[0, -1].item() == pytest.approx(12, abs=1e-3)
    assert rollout.gap[0, -1].item() == pytest.approx(equilibrium.item(), rel=1e-3)
