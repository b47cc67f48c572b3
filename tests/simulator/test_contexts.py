"""Contexts that the simulator alone would not make."""

import pytest
import torch

from asbc.simulator.contexts import ContextSimulator
from asbc.utils.checks import InputError
from asbc.utils.random import stream

COUNT, STEPS = 4000, 20


@pytest.fixture
def simulator(build_simulator):
    return build_simulator("gaussian")


@pytest.fixture
def roll(simulator):
    """Rollouts of one theta behind steady leaders, under given perturbations."""
    theta = simulator.prior.icdf(torch.full((1, simulator.dim), 0.5)).expand(COUNT, -1).float()
    leader = torch.full((COUNT, STEPS), 12.0)
    start = torch.full((COUNT,), 30.0), torch.full((COUNT,), 12.0)

    def run(source=None, **sizes: float):
        source = source or ContextSimulator(simulator, **sizes)
        return source.rollout(theta, leader, *start, stream(0, "contexts"))

    return run


def test_without_perturbation_it_is_the_simulator(roll, simulator):
    assert ContextSimulator(simulator).exact
    assert not ContextSimulator(simulator, drift=0.1).exact
    assert torch.equal(roll().states, roll(simulator).states)


def test_measurement_errors_have_their_sizes_and_are_consistent(roll):
    clean, measured = roll(), roll(gap_noise=0.4, speed_noise=0.2)
    assert torch.equal(clean.acceleration, measured.acceleration)  # what was driven is the same
    gap = measured.gap - clean.gap
    speed = measured.speed - clean.speed
    leader = (measured.speed - measured.approach_rate) - 12.0
    for error, size in ((gap, 0.4), (speed, 0.2), (leader, 0.2)):
        assert float(error.std()) == pytest.approx(size, rel=0.02)
        assert abs(float(error.mean())) < 4 * size / (COUNT * STEPS) ** 0.5
    # Errors of follower, leader and gap have nothing to do with each other.
    table = torch.stack([gap.flatten(), speed.flatten(), leader.flatten()])
    assert float((torch.corrcoef(table) - torch.eye(3)).abs().max()) < 0.02


def test_drift_is_log_normal_and_stays_in_the_box(roll, simulator, monkeypatch):
    seen = {}
    rollout = type(simulator).rollout

    def spy(self, theta, *args, **kwargs):
        seen["theta"] = theta
        return rollout(self, theta, *args, **kwargs)

    monkeypatch.setattr(type(simulator), "rollout", spy)
    roll(drift=0.1)
    centre = simulator.prior.icdf(torch.full((1, simulator.dim), 0.5))
    ratio = torch.log(seen["theta"] / centre)
    assert ratio.std(0).tolist() == pytest.approx([0.1] * simulator.dim, rel=0.05)
    roll(drift=5.0)
    assert bool(simulator.prior.contains(seen["theta"]).all())


@pytest.mark.parametrize("name", ["drift", "gap_noise", "speed_noise"])
def test_sizes_below_zero_are_refused(simulator, name):
    with pytest.raises(InputError, match=f"robust.{name}=-1"):
        ContextSimulator(simulator, **{name: -1})
