"""The population's sampler where the answer is known: normal observations of normal drivers."""

from functools import partial

import numpy as np
import pytest

from asbc.exact.diagnostics import NutsSettings
from asbc.exact.statistics import statistics, transitions

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro.infer.util import log_density  # noqa: E402
from scipy import stats  # noqa: E402

from asbc.baselines import hierarchical_model  # noqa: E402
from asbc.baselines.hierarchical_model import (  # noqa: E402
    LKJ_CONCENTRATION,
    SD_SCALE,
    population_draws,
    population_prior,
)
from asbc.exact import nuts  # noqa: E402
from asbc.exact.drivers import DriverModel  # noqa: E402
from asbc.exact.importance import PROPOSED, Normal  # noqa: E402

NOISE, DRIVERS = np.array([0.05, 0.6]), 30
SETTINGS = NutsSettings(chains=2, warmup=300, draws=1000)


@pytest.fixture(scope="module")
def normal():
    """What is seen of each driver, and the model."""
    rng = np.random.default_rng(3)
    truth = np.array([1.0, -0.5]) + rng.normal(size=(DRIVERS, 2)) * [0.4, 0.3]
    seen = jnp.asarray(truth + NOISE * rng.normal(size=(DRIVERS, 2)))
    model = DriverModel(
        2, jnp.exp, lambda theta, y: -0.5 * jnp.square((jnp.log(theta) - y) / NOISE).sum()
    )
    return seen, model


@pytest.fixture(scope="module")
def wide():
    return Normal(jnp.array([0.5, 0.0]), jnp.linalg.cholesky(jnp.array([[1.0, 0.3], [0.3, 0.5]])))


def known(model, data, wide, key, at_once):
    """Draws of drivers under a wide prior, made in this process."""
    build = partial(hierarchical_model.known_batch, model)
    with nuts.driver_pool(None, build, len(jax.tree.leaves(data)[0]), at_once) as pool:
        return hierarchical_model.known_drivers(pool, data, wide, key, at_once)


@pytest.fixture(scope="module")
def draws(normal, wide):
    """Of every driver under the wide prior."""
    seen, driver = normal
    return known(driver, seen, wide, 0, DRIVERS)


@pytest.fixture(scope="module")
def sampled(normal):
    seen, driver = normal
    return hierarchical_model.sample_population(driver, seen, SETTINGS, 0, DRIVERS)


def marginal(noise=NOISE):
    """The population with its drivers integrated out on paper."""

    def model(y):
        mean, root = population_prior(2)
        covariance = root @ root.T + jnp.diag(noise**2)
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance).expand([len(y)]), obs=y)

    return model


def sites_of(mean, sd, factor):
    """What NUTS samples for this population."""
    normal_sd = stats.norm.ppf(stats.halfnorm.cdf(sd, scale=SD_SCALE))
    return {"mean": mean, "sd_normal": normal_sd, "factor": factor}


def test_prior_of_the_population():
    """Up to a constant: row k of d (from 1) of an LKJ factor counts as diagonal^(d-k+2 eta-2)."""
    differences = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        root = np.linalg.cholesky(np.cov(rng.normal(size=(2, 10))))
        mean, sd = rng.normal(size=2), np.exp(rng.normal(size=2))
        factor = root / np.linalg.norm(root, axis=1, keepdims=True)
        sites = sites_of(mean, sd, factor)
        ours, traced = log_density(lambda: population_prior(2) and None, (), {}, sites)
        np.testing.assert_allclose(traced["sd"]["value"], sd, rtol=1e-6)
        # sd is half-normal if the quantile that stands for it is normal.
        expected = stats.norm.logpdf([mean, sites["sd_normal"]]).sum()
        power = 2 * LKJ_CONCENTRATION - 2
        differences.append(float(ours) - expected - power * np.log(factor[1, 1]))
    np.testing.assert_allclose(differences, differences[0], atol=1e-6)


def test_draws_of_a_driver_follow_its_posterior(normal, wide, draws):
    seen, _ = normal
    precision = np.linalg.inv(wide.factor @ wide.factor.T)
    posterior = np.linalg.inv(precision + np.diag(NOISE**-2.0))
    mean = (np.asarray(seen) / NOISE**2 + precision @ np.asarray(wide.mean)) @ posterior
    sd = np.sqrt(np.diag(posterior))
    error = (np.asarray(draws.z).mean(1) - mean) / sd
    assert np.abs(error).max() < 0.25 and np.abs(error.mean(0)).max() < 0.03
    np.testing.assert_allclose(np.asarray(draws.z).std(1).mean(0) / sd, 1, atol=0.05)
    assert (np.asarray(draws.ess) > 0.5 * PROPOSED).all()
    expected = stats.multivariate_normal(wide.mean, wide.factor @ wide.factor.T)
    np.testing.assert_allclose(draws.log_prior[0], expected.logpdf(draws.z[0]), rtol=1e-8)


def test_marginal_density_is_that_of_integrated_drivers(normal, wide, draws):
    """Differences between populations, as exactly as the drivers' draws allow."""
    seen, driver = normal
    model = hierarchical_model.marginal_model(draws, wide)
    values = []
    for mean, sd, correlation in [((1.0, -0.5), (0.4, 0.3), 0.0), ((0.8, -0.3), (0.5, 0.4), 0.5)]:
        factor = np.array([[1.0, 0.0], [correlation, np.sqrt(1 - correlation**2)]])
        sites = sites_of(np.array(mean), np.array(sd), factor)
        ours, _ = log_density(model, (None,), {}, sites)
        exact, _ = log_density(marginal(), (seen,), {}, sites)
        values.append((float(ours), float(exact)))
    (a, b), (c, d) = values
    assert abs(b - d) > 2  # the two are not alike
    assert a - c == pytest.approx(b - d, abs=0.5)


@pytest.mark.slow
def test_sampler_hardly_diverges(sampled):
    assert sampled.chains.diverging.mean() < 0.02
    assert sampled.driver_ess.shape == (DRIVERS,) and sampled.driver_ess.min() > 20


@pytest.mark.slow
def test_sampler_agrees_with_the_marginal_posterior(normal, sampled):
    """Theta integrates out, and plain NUTS does the rest."""
    seen, driver = normal
    ours = sampled.chains
    exact = nuts.sample(marginal(), SETTINGS, 1, seen)
    for name in ("mean", "sd", "factor"):
        mine, theirs = (chains.sites[name].reshape(2000, -1) for chains in (ours, exact))
        spread = theirs.std(0) + 1e-9
        np.testing.assert_allclose((mine.mean(0) - theirs.mean(0)) / spread, 0, atol=0.25)
        np.testing.assert_allclose((mine.std(0) + 1e-9) / spread, 1, atol=0.2)
    # A driver's z given the population is normal: check one against many draws of it.
    mean, root = (np.asarray(part) for part in population_draws(exact, 2000))
    precision = np.linalg.inv(root @ root.transpose(0, 2, 1)) + np.diag(NOISE**-2.0)
    pull = np.einsum("nij,nj->ni", precision - np.diag(NOISE**-2.0), mean)
    expected = np.linalg.solve(precision, (pull + np.asarray(seen[0]) / NOISE**2)[..., None])
    mine = np.log(ours.sites["theta"][:, :, 0]).reshape(2000, 2)
    np.testing.assert_allclose(
        (mine.mean(0) - expected[..., 0].mean(0)) / mine.std(0), 0, atol=0.2
    )


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_modes_of_simulated_drivers_lie_near_the_truth(residual, simulators, typical, pairs_of):
    """The same steps with the likelihood of trajectories: the proposals must find the drivers."""
    simulator = simulators[residual]
    pairs = pairs_of(simulator, typical[residual].expand(3, -1), 300)
    data = statistics(simulator, transitions(simulator, pairs))
    model = DriverModel.of(simulator)
    broad = Normal(jnp.zeros(model.dim), jnp.eye(model.dim))
    draws = known(model, data, broad, 2, 3)
    assert (np.asarray(draws.ess) > 100).all()
    z = np.asarray(draws.z)
    away = (z.mean(1) - simulator.prior.to_normal(typical[residual]).numpy()) / z.std(1)
    assert np.abs(away).max() < 4 and np.sqrt(np.square(away).mean()) < 2
