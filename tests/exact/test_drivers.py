"""Posteriors of drivers one by one, against known parameters and other samplers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.evaluation.sbc import rank_statistics, rank_test
from asbc.exact.diagnostics import NutsSettings

pytest.importorskip("numpyro")
import jax.numpy as jnp  # noqa: E402
from scipy import stats  # noqa: E402

from asbc.exact import drivers as module  # noqa: E402
from asbc.exact import importance  # noqa: E402
from asbc.exact.drivers import (  # noqa: E402
    DriverModel,
    exact_drivers,
    nuts_drivers,
    sample_by_importance,
)
from asbc.exact.importance import Normal  # noqa: E402
from asbc.exact.statistics import transitions  # noqa: E402

NOISE = np.array([0.05, 0.6])
# Chains that hardly move.
STUCK = NutsSettings(chains=2, warmup=1, draws=500, max_tree_depth=1)


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_posteriors_cover_the_truth_at_the_nominal_rate(residual, simulators, pairs_of):
    """Simulation-based calibration of NUTS per driver: theta from the prior, ranks uniform."""
    simulator, count = simulators[residual], 120
    truth = simulator.prior.sample(count, np.random.default_rng(11))
    pairs = pairs_of(simulator, truth, 75, seed=12)
    settings = NutsSettings(chains=2, warmup=500, draws=500)
    seen = transitions(simulator, pairs, 75)
    found = nuts_drivers(simulator, seen, pairs.pair_id, settings, seed=0, at_once=60)
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
    seen = transitions(simulator, pairs, 75)
    again = exact_drivers(simulator, seen, pairs.pair_id, STUCK, seed=0, at_once=2)
    assert again.convergence.converged
    assert again.convergence.drivers_by_importance == pairs.pair_id
    patient = NutsSettings(chains=2, warmup=1000, draws=3000, target_accept=0.95)
    chains = exact_drivers(simulator, seen, pairs.pair_id, patient, seed=0, at_once=2)
    assert chains.convergence.converged and not chains.convergence.drivers_by_importance
    found, exact = (np.log(run.theta).reshape(-1, 2, simulator.dim) for run in (again, chains))
    # 1000 draws on one side, 400 or more effective ones on the other: a standard error of 0.06.
    np.testing.assert_allclose((found.mean(0) - exact.mean(0)) / exact.std(0), 0, atol=0.2)
    np.testing.assert_allclose(found.std(0) / exact.std(0), 1, atol=0.15)


@pytest.mark.slow
def test_failures_that_no_draws_could_mend_are_left(simulators, typical, pairs_of):
    """100 draws cannot have an effective size of 400, however they are drawn."""
    pairs = pairs_of(simulators["gaussian"], typical["gaussian"][None], 60, seed=5)
    few = replace(STUCK, draws=50)
    seen = transitions(simulators["gaussian"], pairs, 60)
    found = exact_drivers(simulators["gaussian"], seen, pairs.pair_id, few, seed=0, at_once=1)
    assert found.convergence.drivers_not_converged == pairs.pair_id
    assert not found.convergence.drivers_by_importance
    # The chains are still there, and nothing else.
    assert found.theta.shape == (2, 50, 1, 6) and (found.data["sample_stats"].n_steps == 1).all()
    assert "constant_data" not in found.data.groups()


def bent(theta, bend):
    """log theta: standard normal ridges around a parabola, or one hump where bend is 0."""
    z = jnp.log(theta)
    arm = jnp.square((z[1] - bend * z[0] ** 2) / 0.05)
    return -0.5 * jnp.where(bend == 0, jnp.square(z / 0.3).sum(), arm)


def test_drivers_with_weak_proposals_are_sampled_again(monkeypatch):
    """So few proposals follow the hump, but not the ridges: the best of all tries is kept."""
    sizes = {"TRIED": 200, "PROPOSED": 500, "PARTS": 4, "ADAPTATIONS": 8, "NEWTON_STEPS": 10}
    for name, size in sizes.items():
        monkeypatch.setattr(importance, name, size)
    tries = []

    def watched(pool, keys, data, *arguments):
        z, ess = map_drivers(pool, keys, data, *arguments)
        tries.append({float(bend): (z[i].copy(), ess[i].copy()) for i, bend in enumerate(data)})
        return z, ess

    map_drivers = module.map_drivers
    monkeypatch.setattr(module, "map_drivers", watched)
    model, bends = DriverModel(2, jnp.exp, bent), np.array([0.0, 1.0, 3.0, 6.0])
    settings = NutsSettings(chains=2, draws=800)
    found = sample_by_importance(model, model.prior(), bends, settings, [1, 2, 3, 4], 4)
    assert [set(drivers) for drivers in tries] == [{0, 1, 3, 6}] + 3 * [{1, 3, 6}]
    firsts = 0
    for driver, bend in enumerate(bends):
        of_driver = [drivers[bend] for drivers in tries if bend in drivers]
        best = int(np.argmax([ess.min() for _, ess in of_driver]))
        firsts += best == 0
        z, ess = of_driver[best]
        np.testing.assert_allclose(np.log(found.theta[:, :, driver]), z, rtol=1e-9, atol=1e-12)
        assert found.ess[driver] == pytest.approx(ess.sum())
    assert firsts < 4  # a later try was better for one of them


@pytest.mark.slow
def test_drivers_under_a_prior_that_is_not_known_for_sure():
    """Two equally likely priors: a posterior of two normals, weighed by their evidence."""
    model = DriverModel(
        2, jnp.exp, lambda theta, y: -0.5 * jnp.square((jnp.log(theta) - y) / NOISE).sum()
    )
    means, sds = np.array([[0.0, 0.0], [1.0, -1.0]]), np.array([[0.4, 0.5], [0.3, 0.2]])
    priors = Normal(jnp.asarray(means), jnp.asarray(sds[:, :, None] * np.eye(2)))
    seen = np.array([[0.2, 0.1], [0.9, -0.4], [0.6, -2.0]])
    settings = NutsSettings(chains=2, draws=2000)
    new = sample_by_importance(model, priors, seen, settings, [1, 2, 3], 2)
    assert new.theta.shape == (2, 2000, 3, 2) and (new.ess > 2000).all()
    z = np.log(new.theta).reshape(-1, 3, 2)
    for driver, y in enumerate(seen):
        evidence = stats.norm.pdf(y, means, np.hypot(sds, NOISE)).prod(1)
        share = evidence / evidence.sum()
        variance = 1 / (sds**-2.0 + NOISE**-2.0)
        centre = variance * (means / sds**2 + y / NOISE**2)
        mean = share @ centre
        sd = np.sqrt(share @ (variance + centre**2) - mean**2)
        np.testing.assert_allclose((z[:, driver].mean(0) - mean) / sd, 0, atol=0.1)
        np.testing.assert_allclose(z[:, driver].std(0) / sd, 1, atol=0.07)
