"""The NumPyro priors against ASBC's Prior and scipy."""

import numpy as np
import pytest
import torch
from scipy import stats

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")
import jax.numpy as jnp  # noqa: E402
from numpyro.infer.util import log_density  # noqa: E402

from asbc.exact import likelihood as priors  # noqa: E402


@pytest.fixture
def density_of():
    def evaluate(prior, **sites):
        def model():
            prior()

        value, _ = log_density(model, (), {}, {k: jnp.asarray(v) for k, v in sites.items()})
        return float(value)

    return evaluate


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_asbc_prior_is_the_simulators(residual, simulators, density_of):
    prior = simulators[residual].prior
    for theta in prior.sample(5, np.random.default_rng(0)).double():
        # The density of log theta is that of theta times the Jacobian.
        expected = float(prior.log_prob(theta) + theta.log().sum())
        ours = density_of(priors.asbc_prior(prior.marginals), log_theta=theta.log().numpy())
        assert ours == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_normal_coordinates_are_the_simulators(residual, simulators):
    """Value, slope and curvature, against the prior's own."""
    prior = simulators[residual].prior
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)[:, None].expand(-1, prior.dim)
    theta = jax.jit(priors.theta_of_normal(prior.marginals))
    points = jnp.asarray(z.numpy())
    np.testing.assert_allclose(theta(points), prior.from_normal(z), rtol=1e-6)
    slope = jax.jit(jax.grad(lambda z: theta(z).sum()))
    np.testing.assert_allclose(slope(points), prior.normal_slope(z), rtol=1e-5)
    curvature = jax.jit(jax.grad(lambda z: slope(z).sum()))(points)
    step = 1e-4
    near = (slope(points + step) - slope(points - step)) / (2 * step)
    np.testing.assert_allclose(curvature, near, rtol=1e-4, atol=1e-8)
    far = jnp.full(prior.dim, 50.0)
    np.testing.assert_allclose(theta(far), prior.high, rtol=1e-5)
    assert np.isfinite(slope(far)).all()


def test_reference_prior_is_the_published_one(density_of):
    log_theta = np.array([2.1, 0.5, 0.4, -0.31, 0.7])
    law = stats.norm.logpdf(
        log_theta, [2.0, 0.69, 0.47, -0.3, 0.51], [0.3, 1.0, 1.0, 0.01, 0.5]
    ).sum()
    sigma = stats.expon.logpdf(3e-4, scale=1e-4)
    ours = density_of(priors.reference_prior(["sigma"]), log_theta=log_theta, sigma=3e-4)
    assert ours == pytest.approx(law + sigma, rel=1e-6)

    kernel = stats.expon.logpdf(2e-5, scale=1 / 8e4) + stats.expon.logpdf(1e-5, scale=1e-5)
    ell = stats.truncnorm.logpdf(1.4, -1, np.inf, loc=1, scale=1)
    ours = density_of(
        priors.reference_prior(["sigma", "ell", "white"]),
        log_theta=log_theta,
        kernel_variance=2e-5,
        ell=1.4,
        white_variance=1e-5,
    )
    assert ours == pytest.approx(law + kernel + ell, rel=1e-6)
