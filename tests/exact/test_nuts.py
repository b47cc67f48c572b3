"""NUTS against a grid and against importance sampling."""

import numpy as np
import pytest
import torch

from asbc.exact.diagnostics import NutsSettings
from asbc.exact.statistics import statistics, transitions

pytest.importorskip("numpyro")
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from asbc.exact import nuts  # noqa: E402
from asbc.exact.likelihood import TrajectoryLikelihood  # noqa: E402

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
