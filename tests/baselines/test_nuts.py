"""NUTS against a grid and importance sampling, and against parameters that are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.errors import InputError
from asbc.evaluation.checks import rank_statistics, rank_test
from asbc.exact.diagnostics import NutsSettings
from asbc.exact.statistics import statistics, transitions

pytest.importorskip("numpyro")
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from asbc.exact import drivers as driver_models
from asbc.exact import nuts
from asbc.exact.drivers import exact_drivers, nuts_drivers
from asbc.exact.hierarchy import NewDrivers
from asbc.exact.likelihood import TrajectoryLikelihood

SHORT = NutsSettings(chains=2, warmup=300, draws=1000)
HEADWAY, A_MAX = 2, 3


@pytest.fixture(scope="module")
def context(simulators, typical, pairs_of):
    return pairs_of(simulators["gaussian"], typical["gaussian"][None], 60, seed=5)


def slice_log_density(simulator, theta, context, headway, a_max):
    """The simulator's own posterior density with all but T and a_max held fixed, by torch."""
    points = theta.double().expand(*headway.shape, -1).clone()
    points[..., HEADWAY], points[..., A_MAX] = headway, a_max
    states = context.contexts(60).double().expand(*headway.shape, -1, -1)
    return simulator.prior.log_prob(points) + simulator.log_likelihood(points, states)


def test_nuts_agrees_with_a_grid_and_with_importance_sampling(simulators, typical, context):
    simulator, theta = simulators["gaussian"], typical["gaussian"]
    prior = simulator.prior
    low, high = (torch.log(bound.double()[[HEADWAY, A_MAX]]) for bound in (prior.low, prior.high))
    centre = np.log([prior.marginals[i].centre for i in (HEADWAY, A_MAX)])
    likelihood = TrajectoryLikelihood.of(simulator)
    fixed = jnp.asarray(theta.double().numpy())

    def model(data):
        law = dist.TruncatedNormal(centre, 1.0, low=low.numpy(), high=high.numpy()).to_event(1)
        free = numpyro.deterministic("theta", jnp.exp(numpyro.sample("free", law)))
        point = fixed.at[HEADWAY].set(free[0]).at[A_MAX].set(free[1])
        numpyro.factor("trajectories", likelihood(point, data))

    data = statistics(simulator, transitions(simulator, context))
    chains = nuts.sample(model, SHORT, 0, jnp_row(data))
    draws = chains.sites["theta"].reshape(-1, 2)
    assert not chains.diverging.any()

    # The grid covers the bulk of the posterior; the density is that of theta, not of its log.
    spans = [
        torch.linspace(*np.quantile(draws[:, i], [0, 1]) * [0.9, 1.1], 300, dtype=torch.float64)
        for i in range(2)
    ]
    headway, a_max = torch.meshgrid(*spans, indexing="ij")
    log_density = slice_log_density(simulator, theta, context, headway, a_max)
    mass = torch.softmax(log_density.flatten(), 0)
    compare_moments(draws, mass, headway, a_max)

    rng = np.random.default_rng(0)
    proposal = rng.multivariate_normal(draws.mean(0), 2 * np.cov(draws.T), size=20_000)
    inside = torch.from_numpy(proposal).clamp_min(0.01)
    target = slice_log_density(simulator, theta, context, *inside.unbind(-1))
    deviation = proposal - draws.mean(0)
    distance = (deviation @ np.linalg.inv(2 * np.cov(draws.T)) * deviation).sum(1)
    weight = torch.softmax(target + 0.5 * torch.from_numpy(distance), 0)
    compare_moments(draws, weight, *inside.unbind(-1))


def jnp_row(data):
    return type(data)(*(jnp.asarray(part[0]) for part in data))


def compare_moments(draws, mass, headway, a_max):
    """Means within 0.15, standard deviations within 12% and the correlation within 0.1."""
    points = torch.stack([headway.flatten(), a_max.flatten()])
    mean = points @ mass
    covariance = ((points - mean[:, None]) * mass) @ (points - mean[:, None]).T
    sd = covariance.diagonal().sqrt()
    np.testing.assert_allclose((draws.mean(0) - mean.numpy()) / sd.numpy(), 0, atol=0.15)
    np.testing.assert_allclose(draws.std(0) / sd.numpy(), 1, atol=0.12)
    exact = float(covariance[0, 1] / sd.prod())
    assert np.corrcoef(draws.T)[0, 1] == pytest.approx(exact, abs=0.1)


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="nuts.chains=1; expected at least 2"):
        NutsSettings(chains=1)
    with pytest.raises(InputError, match="nuts.target_accept=1.5"):
        NutsSettings(target_accept=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_posteriors_cover_the_truth_at_the_nominal_rate(residual, simulators, pairs_of):
    """Simulation-based calibration of NUTS per driver: theta from the prior, ranks uniform."""
    simulator, count = simulators[residual], 120
    truth = simulator.prior.sample(count, np.random.default_rng(11))
    pairs = pairs_of(simulator, truth, 75, seed=12)
    settings = NutsSettings(chains=2, warmup=500, draws=500)
    found = nuts_drivers(simulator, pairs, 75, settings, seed=0, at_once=60)
    draws = torch.from_numpy(found.theta).flatten(0, 1).transpose(0, 1)
    thinned = draws[:, ::10]  # nearly independent draws
    ranks = rank_statistics(truth.double(), thinned).numpy()
    # One test for each parameter, at a joint level of 1%.
    level = 1 - 0.01 / simulator.dim
    for column in range(simulator.dim):
        test = rank_test(ranks[:, column], thinned.shape[1], np.random.default_rng(0), level)
        assert test.inside, f"{simulator.parameter_names[column]}: p = {test.p_value}"
    ends = torch.tensor([0.05, 0.95], dtype=torch.float64)
    low, high = torch.quantile(draws, ends, dim=1)
    covered = ((truth >= low) & (truth <= high)).double().mean()
    assert float(covered) == pytest.approx(0.9, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_a_driver_on_whom_nuts_fails_is_sampled_again(residual, simulators, pairs_of):
    """Two samplers of one posterior: chains that hardly move, and long ones that converge."""
    simulator = simulators[residual]
    truth = simulator.prior.sample(2, np.random.default_rng(3))
    pairs = pairs_of(simulator, truth, 75, seed=4)
    stuck = NutsSettings(chains=2, warmup=1, draws=500, max_tree_depth=1)
    again = exact_drivers(simulator, pairs, 75, stuck, seed=0, at_once=2)
    assert again.convergence.converged
    assert again.convergence.drivers_by_importance == pairs.pair_id
    patient = NutsSettings(chains=2, warmup=1000, draws=3000, target_accept=0.95)
    chains = exact_drivers(simulator, pairs, 75, patient, seed=0, at_once=2)
    assert chains.convergence.converged and not chains.convergence.drivers_by_importance
    found, exact = (np.log(run.theta).reshape(-1, 2, simulator.dim) for run in (again, chains))
    # 1000 draws on one side, 400 or more effective ones on the other: a standard error of 0.06.
    np.testing.assert_allclose((found.mean(0) - exact.mean(0)) / exact.std(0), 0, atol=0.2)
    np.testing.assert_allclose(found.std(0) / exact.std(0), 1, atol=0.15)


def test_only_failures_that_can_be_mended_are_sampled_again(simulators, context, monkeypatch):
    """100 draws cannot have an effective size of 400; where 50 are enough, others take over."""
    normal = np.random.default_rng(0).normal(size=(2, 2, 50, 1, 6))
    apart = np.exp(normal[0] + [[[[0.0]]], [[[9.0]]]])  # two chains that never met
    new = np.exp(normal[1])

    def chains(*_):
        return [nuts.Chains({"theta": apart[:, :, 0]}, np.zeros((2, 50), bool), np.ones((2, 50)))]

    def again(population, draws, data, settings, keys, at_once):
        assert (len(data.steps), len(keys), at_once) == (1, 1, 1)
        return NewDrivers(new, np.array([100.0]))

    monkeypatch.setattr(driver_models, "sample_drivers", chains)
    monkeypatch.setattr(driver_models, "sample_new_drivers", again)
    few = NutsSettings(chains=2, draws=50, max_r_hat=1.2)
    found = exact_drivers(simulators["gaussian"], context, 60, few, seed=0, at_once=4)
    assert found.convergence.drivers_not_converged == context.pair_id
    assert not found.convergence.drivers_by_importance
    np.testing.assert_array_equal(found.theta, apart)
    enough = replace(few, min_ess=50)
    found = exact_drivers(simulators["gaussian"], context, 60, enough, seed=0, at_once=4)
    assert found.convergence.drivers_by_importance == context.pair_id
    assert found.convergence.converged and found.convergence.ess_bulk <= 100
    np.testing.assert_array_equal(found.theta, new)
