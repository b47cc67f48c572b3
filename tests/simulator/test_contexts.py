"""Contexts that the simulator alone would not make."""

import pytest
import torch
from scipy import stats

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


def test_drift_is_a_truncated_log_normal_about_theta(simulator):
    prior = simulator.prior
    theta = prior.icdf(torch.full((1, simulator.dim), 0.5)).float().expand(COUNT, -1)
    sizes = [0.1] * 5 + [0.2]
    later = ContextSimulator(simulator, 0.1, 0.2).later(theta, stream(0, "drift"))
    change = torch.log(later / theta).double()
    assert change.std(0).tolist() == pytest.approx(sizes, rel=0.05)
    assert float((change.mean(0) / torch.tensor(sizes)).abs().max()) < 4 / COUNT**0.5
    # Where the box is near, against scipy.
    wide = ContextSimulator(simulator, 2.0, 2.0).later(theta, stream(0, "drift"))
    assert bool(prior.contains(wide).all())
    for i in range(simulator.dim):
        bounds = [float(torch.log(b[i] / theta[0, i])) / 2 for b in (prior.low, prior.high)]
        exact = stats.truncnorm(*bounds, scale=2.0)
        assert stats.kstest(torch.log(wide / theta)[:, i].numpy(), exact.cdf).pvalue > 1e-3


def test_no_drift_leaves_parameters_alone(simulator):
    theta = simulator.prior.sample(10, stream(0, "theta"))
    assert torch.equal(ContextSimulator(simulator).later(theta, stream(0, "drift")), theta)
    law_only = ContextSimulator(simulator, drift=0.1).later(theta, stream(0, "drift"))
    assert torch.equal(law_only[:, 5:], theta[:, 5:])
    assert not bool((law_only[:, :5] == theta[:, :5]).any())


@pytest.mark.parametrize("name", ["drift", "residual_drift", "gap_noise", "speed_noise"])
def test_sizes_below_zero_are_refused(simulator, name):
    with pytest.raises(InputError, match=f"robust.{name}=-1"):
        ContextSimulator(simulator, **{name: -1})
