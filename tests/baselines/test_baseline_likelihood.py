"""The likelihoods from small statistics equal those of whole trajectories."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from asbc.errors import InputError
from asbc.exact.statistics import Statistics, Transitions, runs, statistics, transitions
from asbc.simulator import Simulator
from asbc.simulator.laws import SumoIDM

jnp = pytest.importorskip("jax.numpy")
pytest.importorskip("numpyro")
from asbc.baselines import pooled_models as memory  # noqa: E402
from asbc.exact.likelihood import TrajectoryLikelihood  # noqa: E402


def states_of(pairs, i, steps=None):
    pair = pairs.pair(i)
    columns = [pair["gap"], pair["speed"], pair["speed"] - pair["leader_speed"]]
    return torch.stack(columns, dim=-1)[:steps]


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


def dense_slices(simulator, pairs, theta, covariance):
    """The log-density of slices cut by hand, with scipy."""
    steps, total = len(covariance), 0.0
    for i in range(len(pairs)):
        residual = simulator.residuals(theta[None], states_of(pairs, i)[None])[0].double().numpy()
        for start in range(0, len(residual) - steps + 1, steps):
            piece = residual[start : start + steps]
            total += multivariate_normal.logpdf(piece, np.zeros(steps), covariance)
    return total


def test_slice_likelihood_equals_scipy(simulators, typical, pairs_of):
    simulator, theta = simulators["matern"], typical["matern"].double()
    pairs = pairs_of(simulator, typical["matern"].expand(2, -1), 50)
    cut = memory.slice_statistics(transitions(simulator, pairs), steps=20)
    assert cut.slices == 4  # 49 transitions each: two slices, and 9 steps that fill none
    time = np.arange(20) * 0.2
    lag = np.abs(time[:, None] - time)

    scaled = np.sqrt(5) * lag / 1.5
    matern = 0.3**2 * ((1 + scaled + scaled**2 / 3) * np.exp(-scaled) + 1e-3 * np.eye(20))
    ours = memory.slice_log_likelihood(
        jnp.asarray(theta.numpy()), cut, memory.matern52(1e-3)(lag, theta.numpy()), 4.0
    )
    assert float(ours) == pytest.approx(dense_slices(simulator, pairs, theta, matern), rel=1e-4)

    smooth = 0.3**2 * np.exp(-(lag**2) / (2 * 1.5**2)) + 0.05**2 * np.eye(20)
    longer = np.append(theta.numpy(), 0.05)
    ours = memory.slice_log_likelihood(
        jnp.asarray(longer), cut, memory.squared_exponential(lag, longer), 4.0
    )
    assert float(ours) == pytest.approx(dense_slices(simulator, pairs, theta, smooth), rel=1e-4)


def test_slices_longer_than_the_data_are_refused(simulators, typical, pairs_of):
    simulator = simulators["matern"]
    pairs = pairs_of(simulator, typical["matern"].expand(1, -1), 15)
    with pytest.raises(InputError, match="slice_seconds"):
        memory.slice_statistics(transitions(simulator, pairs), steps=20)
