"""The batched rollout against one trajectory at a time, written from the paper's equations."""

import math

import pytest
import torch

from asbc.config import CONF, compose
from asbc.simulator import Prefix
from asbc.utils.random import standard_normal, stream, uniform

RESIDUALS = ["gaussian", "matern"]
# Those that are simulated here; black boxes have tests of their own.
MODELS = sorted(
    path.stem
    for path in (CONF / "model").glob("*.yaml")
    if "BlackBox" not in compose("train", [f"model={path.stem}"]).simulator._target_
)
# The model whose gap is updated in this way.
KINEMATICS = {
    "paper": "idm",
    "leader_acceleration": "idm_leader_acceleration",
    "sumo": "sumo_idm",
}
DT = 0.2


def scenario(simulator, n, steps, seed=0):
    """Theta from the prior behind wandering leaders that now and then stand still.

    Some followers start so close and fast that they collide.
    """
    theta = simulator.prior.sample(n, stream(seed, "theta"))
    wander = 1.5 * standard_normal(stream(seed, "leader"), n, steps).cumsum(1)
    leader = (12 * uniform(stream(seed, "level"), n, 1) + wander).clamp(0, 35)
    gap = 0.5 + 40 * uniform(stream(seed, "gap"), n)
    return theta, leader, gap, leader[:, 0] + 5 * uniform(stream(seed, "speed"), n)


def loop(theta, leader, gap, speed, residual, kinematics="paper", sumo=False):
    """One trajectory in plain Python: the paper's equations and the design's bounds."""
    v0, s0, headway, a_max, b = theta[:5]
    states, accelerations = [], []
    for t, leader_speed in enumerate(leader):
        s = max(gap, 0.1)
        dynamic = speed * headway + speed * (speed - leader_speed) / (2 * math.sqrt(a_max * b))
        desired = s0 + (max(0.0, dynamic) if sumo else dynamic)
        a = a_max * (1 - (speed / v0) ** 4 - (desired / s) ** 2) + residual[t]
        a = max(min(max(a, -9.0), 5.0), -speed / DT)
        states.append((gap, speed, speed - leader_speed))
        accelerations.append(a)
        if t + 1 == len(leader):
            break
        next_speed = max(speed + a * DT, 0.0)
        if kinematics == "sumo":
            gap += (leader[t + 1] - next_speed) * DT
        else:
            gap += (leader_speed - speed) * DT - 0.5 * a * DT**2
        if kinematics == "leader_acceleration":
            gap += 0.5 * (leader[t + 1] - leader_speed) / DT * DT**2
        speed = next_speed
    return states, accelerations


def assert_equals_loop(simulator, arguments, rollout, residual, rtol, **options):
    rows = zip(*(x.tolist() for x in arguments), residual.tolist(), strict=True)
    reference = [loop(*row, **options) for row in rows]
    states = torch.tensor([states for states, _ in reference], dtype=torch.float64)
    accelerations = torch.tensor([a for _, a in reference], dtype=torch.float64)
    torch.testing.assert_close(rollout.states.double(), states, rtol=rtol, atol=100 * rtol)
    torch.testing.assert_close(
        rollout.acceleration.double(), accelerations, rtol=rtol, atol=1e4 * rtol
    )
    assert torch.equal(rollout.collided, (states[..., 0] <= 0).any(1))


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("kinematics", KINEMATICS)
def test_equals_a_loop_over_trajectories(build_simulator, residual, kinematics):
    simulator = build_simulator(residual, KINEMATICS[kinematics])
    arguments = [x.double() for x in scenario(simulator, 200, 50)]
    rollout = simulator.rollout(*arguments, stream(0, "noise"))
    noise = simulator.residual.sample(arguments[0][:, 5:], 50, DT, stream(0, "noise"))
    assert rollout.speed.min() == 0 and rollout.collided.any()  # the bounds are exercised
    options = {"kinematics": kinematics, "sumo": kinematics == "sumo"}
    assert_equals_loop(simulator, arguments, rollout, noise, rtol=1e-10, **options)


def test_single_precision_is_enough(build_simulator):
    simulator = build_simulator("matern")
    theta, leader, gap, speed = scenario(simulator, 200, 50)
    gap = gap + 20  # away from the collisions, where the law is stiff
    rollout = simulator.rollout(theta, leader, gap, speed, stream(0, "noise"))
    assert rollout.states.dtype == torch.float32
    noise = simulator.residual.sample(theta[:, 5:], 50, DT, stream(0, "noise"))
    assert_equals_loop(simulator, (theta, leader, gap, speed), rollout, noise, rtol=2e-5)


def test_paper_gap_update_drifts_by_half_a_step_of_the_leaders_speed_change(build_simulator):
    theta = torch.tensor([[33.3, 2.0, 1.6, 1.5, 1.67, 0.0]], dtype=torch.float64)
    leader = torch.linspace(10, 18, 41, dtype=torch.float64)[None]
    gap, speed = torch.tensor([30.0]).double(), torch.tensor([10.0]).double()
    final = {}
    for kinematics in ("paper", "leader_acceleration"):
        simulator = build_simulator(model=KINEMATICS[kinematics])
        rollout = simulator.rollout(theta, leader, gap, speed, stream(0), check=False)
        travelled = torch.trapezoid(rollout.speed, dx=DT)
        final[kinematics] = (rollout.gap[:, -1] + travelled - gap).item()
    exact = torch.trapezoid(leader, dx=DT).item()
    assert final["leader_acceleration"] == pytest.approx(exact)
    assert final["paper"] == pytest.approx(exact - 0.1 * 8)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_rows_do_not_depend_on_the_batch(build_simulator, residual):
    simulator = build_simulator(residual)
    arguments = scenario(simulator, 1000, 50)
    whole = simulator.rollout(*arguments, stream(1, "noise"))
    for n in (1, 10, 37):
        part = simulator.rollout(*(x[:n] for x in arguments), stream(1, "noise"))
        for few, many in zip(part, whole, strict=True):
            assert torch.equal(few, many[:n])
    rng = stream(1, "noise")
    pieces = zip(*(x.split(601) for x in arguments), strict=True)
    parts = [simulator.rollout(*piece, rng) for piece in pieces]
    assert torch.equal(torch.cat([part.states for part in parts]), whole.states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("residual", [*RESIDUALS, "none"])
@pytest.mark.parametrize("model", MODELS)
def test_a_leader_seen_speed_by_speed_is_followed_as_a_whole_one(
    build_simulator, residual, model, dtype
):
    simulator = build_simulator(residual, model=model)
    theta, leader, gap, speed = (x.to(dtype) for x in scenario(simulator, 30, 40))
    leader = leader[:1].expand(30, -1)
    observed = torch.ones(30, 3, dtype=torch.bool)
    prefix = Prefix(torch.ones(30, 3, dtype=dtype), observed, 0.01)
    whole = simulator.rollout(theta, leader, gap, speed, stream(1, "noise"), prefix)
    drives = simulator.begin(theta, gap, speed, 40, stream(1, "noise"), prefix)
    for now in leader[0].tolist():
        drives.follow(now)
    for ours, theirs in zip(drives.rollout(), whole, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("model", MODELS)
def test_prior_draws_behind_adversarial_leaders_stay_finite(build_simulator, residual, model):
    simulator = build_simulator(residual, model=model)
    n, steps = 10_000, 75
    theta = simulator.prior.sample(n, stream(2, "theta"))
    time = torch.arange(steps) * DT
    leaders = {
        "standstill": torch.zeros(steps),
        "emergency stop": (30 - 9 * time).clamp_min(0),
        "speed jump": torch.where(time < 5, 2.0, 38.0),
        "speed drop": torch.where(time < 5, 38.0, 0.0),
    }
    gap = 0.01 + 30 * uniform(stream(2, "gap"), n)
    speed = 40 * uniform(stream(2, "speed"), n)
    for name, leader in leaders.items():
        rollout = simulator.rollout(theta, leader.expand(n, -1), gap, speed, stream(2, name))
        assert rollout.states.isfinite().all() and rollout.acceleration.isfinite().all(), name
        assert rollout.speed.min() >= 0
        assert rollout.acceleration.min() >= -9 and rollout.acceleration.max() <= 5
        assert torch.equal(rollout.collided, (rollout.gap <= 0).any(1))
        assert 0 < rollout.collided.float().mean() < 1


def test_prefix_continues_the_residuals(build_simulator):
    """A driver seen to accelerate beyond the law goes on doing so, and forgets it in time."""
    simulator = build_simulator("matern")
    n = 4000
    theta = torch.tensor([[33.3, 2.0, 1.6, 1.5, 1.67, 0.3, 3.0]]).repeat(n, 1)
    leader, gap, speed = torch.full((n, 100), 15.0), torch.full((n,), 30.0), torch.full((n,), 15.0)
    prefix = Prefix(torch.full((n, 5), 0.6), torch.ones(n, 5, dtype=torch.bool), 1e-2)
    rollout = simulator.rollout(theta, leader, gap, speed, stream(3), prefix)
    residuals = simulator.residuals(theta, rollout.states, rollout.acceleration)
    assert residuals[:, 0].mean().item() == pytest.approx(0.6, abs=0.05)
    assert residuals[:, -1].mean().item() == pytest.approx(0, abs=4 * 0.3 / math.sqrt(n))


@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_hundred_thousand_rollouts_in_one_call(build_simulator, residual):
    simulator = build_simulator(residual)
    arguments = scenario(simulator, 100_000, 50)
    rollout = simulator.rollout(*arguments, stream(4))
    assert rollout.states.shape == (100_000, 50, 3)
    few = simulator.rollout(*(x[:20_000] for x in arguments), stream(4))
    assert torch.equal(few.states, rollout.states[:20_000])


@pytest.mark.parametrize("residual", RESIDUALS)
def test_gradients_reach_theta(build_simulator, residual):
    simulator = build_simulator(residual)
    theta, leader, gap, speed = (x.double() for x in scenario(simulator, 3, 12, seed=5))

    def simulate(theta):
        rollout = simulator.rollout(theta, leader, gap + 15, speed, stream(5), check=False)
        return rollout.states[:, -1], rollout.acceleration.square().mean(1)

    assert torch.autograd.gradcheck(simulate, theta.requires_grad_(), atol=1e-4)
