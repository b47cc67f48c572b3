"""The population's density block by block, and its sampler where the answer is known."""

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.baselines.settings import NutsSettings
from asbc.baselines.statistics import statistics
from asbc.baselines.transitions import transitions

jax = pytest.importorskip("jax")
nuts = pytest.importorskip("asbc.baselines.nuts")  # turns on double precision
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro.infer.util import log_density  # noqa: E402

from asbc.baselines.hierarchical_model import (  # noqa: E402
    LKJ_CONCENTRATION,
    SD_SCALE,
    Population,
    population_draws,
)
from asbc.baselines.likelihood import TrajectoryLikelihood  # noqa: E402
from asbc.baselines.population_sampler import sample_population  # noqa: E402


def direct(simulator, pairs, sites, log_theta):
    """log p(population), p(drivers | population) and p(data | drivers), by scipy and torch.

    The first up to a constant: row k of d (from 1) of an LKJ Cholesky factor counts as
    diagonal^(d - k + 2 eta - 2).
    """
    mean, sd, factor = sites["mean"], sites["sd"], sites["factor"]
    marginals, dim = simulator.prior.marginals, len(mean)
    centre, scale = np.log([m.centre for m in marginals]), [m.log_scale for m in marginals]
    root = sd[:, None] * factor
    power = dim - np.arange(1, dim + 1) + 2 * LKJ_CONCENTRATION - 2
    states = torch.stack(
        [pairs.gap, pairs.speed, pairs.speed - pairs.leader_speed], dim=-1
    ).unflatten(0, (len(pairs), -1))
    return (
        stats.norm.logpdf(mean, centre, scale).sum()
        + stats.halfnorm.logpdf(sd, scale=SD_SCALE).sum()
        + (power * np.log(np.diag(factor)))[1:].sum(),
        stats.multivariate_normal.logpdf(log_theta, mean, root @ root.T).sum(),
        float(
            simulator.log_likelihood(torch.from_numpy(np.exp(log_theta)), states.double()).sum()
        ),
    )


@pytest.mark.parametrize("residual", ["gaussian", pytest.param("matern", marks=pytest.mark.slow)])
def test_every_block_has_the_density_of_a_direct_formula(residual, simulators, typical, pairs_of):
    simulator = simulators[residual]
    pairs = pairs_of(simulator, typical[residual].expand(3, -1), 60)
    if residual == "gaussian":  # for which clipped steps have an exact likelihood
        pairs.speed[70:75] = 0.0
    data = statistics(simulator, transitions(simulator, pairs))
    assert (data.side != 0).sum() == (6 if residual == "gaussian" else 0)
    data = jax.tree.map(jnp.asarray, data)
    population = Population.of(simulator.prior.marginals, TrajectoryLikelihood.of(simulator))
    rng, dim = np.random.default_rng(1), simulator.dim
    differences = []
    for _ in range(2):
        root = np.linalg.cholesky(np.cov(rng.normal(size=(dim, 5 * dim))))
        sites = {
            "mean": population.centre + 0.1 * rng.normal(size=dim),
            "sd": np.exp(0.3 * rng.normal(size=dim)),
            "factor": root / np.linalg.norm(root, axis=1, keepdims=True),
        }
        covariance_root = sites["sd"][:, None] * sites["factor"]
        deviation = 0.3 * rng.normal(size=(3, dim))
        log_theta = sites["mean"] + deviation @ covariance_root.T
        whitener = jnp.linalg.inv(covariance_root)
        prior, drivers, trajectories = direct(simulator, pairs, sites, log_theta)
        # The Jacobian of the deviations, which depends on the population.
        volume = 3 * np.log(np.diag(covariance_root)).sum()
        centred, _ = log_density(population.centred, (jnp.asarray(log_theta),), {}, sites)
        non_centred, _ = log_density(
            population.non_centred, (jnp.asarray(deviation), data), {}, sites
        )
        each = jax.vmap(population.driver, in_axes=(0, None, None, 0))(
            jnp.asarray(log_theta), sites["mean"], whitener, data
        )
        differences.append(
            [
                float(centred) - prior - drivers,
                float(non_centred) - prior - trajectories,
                float(each.sum()) - drivers - trajectories - volume,
            ]
        )
    np.testing.assert_allclose(differences, differences[:1] * 2, rtol=0, atol=2e-3)


NOISE, DRIVERS = np.array([0.05, 0.6]), 30
SETTINGS = NutsSettings(chains=2, warmup=300, draws=1000, target_accept=0.8)


@pytest.fixture(scope="module")
def sampled():
    """Normal observations of normal drivers, their population, and its draws."""
    rng = np.random.default_rng(3)
    truth = np.array([1.0, -0.5]) + rng.normal(size=(DRIVERS, 2)) * [0.4, 0.3]
    seen = jnp.asarray(truth + NOISE * rng.normal(size=(DRIVERS, 2)))
    population = Population(
        np.zeros(2),
        np.ones(2),
        lambda theta, y: -0.5 * jnp.square((jnp.log(theta) - y) / NOISE).sum(),
    )
    return seen, population, sample_population(population, seen, SETTINGS, 0)


@pytest.mark.slow
def test_sampler_agrees_with_the_marginal_posterior(sampled):
    """Theta integrates out, and plain NUTS does the rest."""
    seen, population, ours = sampled

    def marginal(y):
        mean, root = population.prior()
        covariance = root @ root.T + jnp.diag(NOISE**2)
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance).expand([DRIVERS]), obs=y)

    exact = nuts.sample(marginal, SETTINGS, 1, seen)
    for name in ("mean", "sd", "factor"):
        mine, theirs = (chains.sites[name].reshape(2000, -1) for chains in (ours, exact))
        spread = theirs.std(0) + 1e-9
        np.testing.assert_allclose((mine.mean(0) - theirs.mean(0)) / spread, 0, atol=0.25)
        np.testing.assert_allclose((mine.std(0) + 1e-9) / spread, 1, atol=0.2)
    # A driver's log theta given the population is normal: check one against many draws of it.
    mean, root = population_draws(exact, 2000)
    precision = np.linalg.inv(root @ root.transpose(0, 2, 1)) + np.diag(NOISE**-2.0)
    pull = np.einsum("nij,nj->ni", precision - np.diag(NOISE**-2.0), mean)
    expected = np.linalg.solve(precision, (pull + np.asarray(seen[0]) / NOISE**2)[..., None])
    mine = np.log(ours.sites["theta"][:, :, 0]).reshape(2000, 2)
    np.testing.assert_allclose(
        (mine.mean(0) - expected[..., 0].mean(0)) / mine.std(0), 0, atol=0.2
    )


@pytest.mark.slow
@pytest.mark.xfail(reason="about one draw in ten diverges in some block; the cause is not found")
def test_sampler_hardly_diverges_on_normal_drivers(sampled):
    assert sampled[2].diverging.mean() < 0.02
