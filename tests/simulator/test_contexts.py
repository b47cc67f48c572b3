"""Contexts that the simulator alone would not make."""

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.errors import InputError
from asbc.simulator.robust import ContextSimulator
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
    # The share of a trajectory is log-uniform on [0.01, 1]; it is the same for all its errors.
    share = (gap / 0.4).double().square().mean(1).sqrt()
    assert float(share.log10().mean()) == pytest.approx(-1.0, abs=0.05)
    assert 0.005 < float(share.min()) < 0.02 and 0.8 < float(share.max()) < 2
    for error, size in ((gap, 0.4), (speed, 0.2), (leader, 0.2)):
        expected = 0.9999 / (2 * np.log(100))  # E[share^2] of a log-uniform share
        assert float((error / size).double().square().mean()) == pytest.approx(expected, rel=0.1)
        assert abs(float(error.mean())) < 4 * size * (expected / COUNT / STEPS) ** 0.5
    # Given the share, errors of follower, leader and gap have nothing to do with each other.
    table = torch.stack([(e / share[:, None]).flatten() for e in (gap, speed, leader)])
    assert float((torch.corrcoef(table) - torch.eye(3)).abs().max()) < 0.02


@pytest.fixture
def driven(simulator, monkeypatch):
    """The parameters that the simulator itself is asked to drive with."""
    seen = {}
    rollout = type(simulator).rollout

    def spy(self, theta, *args, **kwargs):
        seen["theta"] = theta
        return rollout(self, theta, *args, **kwargs)

    monkeypatch.setattr(type(simulator), "rollout", spy)
    return seen


def test_the_law_drifts_during_the_context_and_the_residual_after_it(roll, simulator, driven):
    theta = simulator.prior.icdf(torch.full((1, simulator.dim), 0.5)).float().expand(COUNT, -1)
    roll(drift=0.1, residual_drift=0.2)
    later = ContextSimulator(simulator, 0.1, 0.2).later(theta, stream(0, "drift"))
    assert torch.equal(driven["theta"][:, 5:], theta[:, 5:])
    assert torch.equal(later[:, :5], theta[:, :5])
    for moved, size in ((driven["theta"][:, :5], 0.1), (later[:, 5:], 0.2)):
        columns = slice(0, 5) if size == 0.1 else slice(5, None)
        change = torch.log(moved / theta[:, columns]).double() / size
        assert change.std(0).tolist() == pytest.approx([1.0] * change.shape[1], rel=0.05)
        assert float(change.mean(0).abs().max()) < 4 / COUNT**0.5


def test_drift_is_truncated_to_the_box(roll, simulator, driven):
    prior = simulator.prior
    theta = prior.icdf(torch.full((1, simulator.dim), 0.5)).float()
    roll(drift=2.0)
    assert bool(prior.contains(driven["theta"]).all())
    for i in range(5):
        bounds = [float(torch.log(b[i] / theta[0, i])) / 2 for b in (prior.low, prior.high)]
        change = torch.log(driven["theta"][:, i] / theta[0, i]).numpy()
        assert stats.kstest(change, stats.truncnorm(*bounds, scale=2.0).cdf).pvalue > 1e-3


def test_no_drift_leaves_parameters_alone(simulator):
    theta = simulator.prior.sample(10, stream(0, "theta"))
    assert torch.equal(ContextSimulator(simulator).later(theta, stream(0, "drift")), theta)


@pytest.mark.parametrize("name", ["drift", "residual_drift", "gap_noise", "speed_noise"])
def test_sizes_below_zero_are_refused(simulator, name):
    with pytest.raises(InputError, match=f"robust.{name}=-1"):
        ContextSimulator(simulator, **{name: -1})
