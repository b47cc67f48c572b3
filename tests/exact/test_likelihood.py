"""The likelihoods from small statistics equal those of whole trajectories."""

import numpy as np
import pytest
import torch

from asbc.errors import InputError
from asbc.exact.statistics import Statistics, Transitions, runs, statistics, transitions
from asbc.simulator import Simulator
from asbc.simulator.laws import SumoIDM

jnp = pytest.importorskip("jax.numpy")
pytest.importorskip("numpyro")
from asbc.exact.likelihood import TrajectoryLikelihood  # noqa: E402


def states_of(pairs, i):
    pair = pairs.pair(i)
    columns = [pair["gap"], pair["speed"], pair["speed"] - pair["leader_speed"]]
    return torch.stack(columns, dim=-1)


def evaluate(simulator, theta, data, driver):
    likelihood = TrajectoryLikelihood.of(simulator)
    mine = Statistics(*(jnp.asarray(part[driver]) for part in data))
    return np.asarray(likelihood(jnp.asarray(theta.double().numpy()), mine))


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_likelihood_equals_the_simulators(residual, simulators, typical, pairs_of):
    simulator = simulators[residual]
    pairs = pairs_of(simulator, typical[residual].expand(3, -1), 90)
    theta = simulator.prior.sample(50, np.random.default_rng(0))
    data = statistics(simulator, transitions(simulator, pairs))
    assert not data.side.any()
    for driver in range(3):
        states = states_of(pairs, driver).expand(50, -1, -1)
        expected = simulator.log_likelihood(theta, states).numpy()
        np.testing.assert_allclose(
            evaluate(simulator, theta, data, driver), expected, rtol=1e-6, atol=1e-4
        )


def test_clipped_steps_are_exact_for_independent_residuals(simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, typical["gaussian"].expand(1, -1), 60)
    speed = pairs.speed.clone()
    speed[20:26] = 0.0  # standing
    speed[40] = speed[39] + 1.0  # at the upper bound, as is the step out of standstill
    object.__setattr__(pairs, "speed", speed)
    data = statistics(simulator, transitions(simulator, pairs))
    assert (data.side == 1).sum() == 6 and (data.side == -1).sum() == 2
    theta = simulator.prior.sample(50, np.random.default_rng(0))
    expected = simulator.log_likelihood(theta, states_of(pairs, 0).expand(50, -1, -1)).numpy()
    np.testing.assert_allclose(evaluate(simulator, theta, data, 0), expected, rtol=1e-9)


def test_steps_and_pooling(simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, typical["gaussian"].expand(3, -1), 60)
    data = statistics(simulator, transitions(simulator, pairs, steps=30))
    assert data.steps.tolist() == [29, 29, 29]
    theta = simulator.prior.sample(5, np.random.default_rng(0))
    together = evaluate(simulator, theta, data.pooled(), 0)
    apart = sum(evaluate(simulator, theta, data, driver) for driver in range(3))
    np.testing.assert_allclose(together, apart, rtol=1e-12)


def test_runs_are_cut_at_clipped_steps():
    driver = Transitions(np.arange(7.0)[:, None].repeat(9, 1), np.array([0, 0, 1, 0, -1, 1, 0]))
    assert [run[:, 0].tolist() for run in runs(driver)] == [[0, 1], [3], [6]]


def test_other_laws_are_refused(simulators, typical, pairs_of):
    ours = simulators["gaussian"]
    other = Simulator(SumoIDM(), ours.residual, ours.prior, ours.kinematics)
    with pytest.raises(InputError, match="know the IDM only, not SumoIDM"):
        transitions(other, pairs_of(ours, typical["gaussian"].expand(1, -1), 30))
