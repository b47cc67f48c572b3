"""Posteriors on which a Markov chain gets stuck, where the answer is known."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")
import jax.numpy as jnp  # noqa: E402
from scipy import stats  # noqa: E402

from asbc.exact import importance  # noqa: E402
from asbc.exact.nuts import driver_pool, map_drivers, random_key  # noqa: E402

KEPT = 4000


def humps(z):
    """0.3 N((-4, 0), 0.3^2 I) + 0.7 N((4, 1), 0.5^2 I)."""
    parts = [
        jnp.log(share / sd**2) - 0.5 * jnp.square((z - jnp.array(mean)) / sd).sum()
        for share, mean, sd in [(0.3, (-4.0, 0.0), 0.3), (0.7, (4.0, 1.0), 0.5)]
    ]
    return jax.nn.logsumexp(jnp.stack(parts))


def banana(z):
    """z1 ~ N(0, 1), z2 given z1 ~ N(z1^2, 0.1^2)."""
    return -0.5 * jnp.square(z[0]) - 0.5 * jnp.square((z[1] - z[0] ** 2) / 0.1)


@pytest.fixture(scope="module")
def drawn():
    """Draws and effective number of proposals of both posteriors, one after the other."""
    prior = importance.Normal(jnp.zeros(2), 3 * jnp.eye(2))

    @jax.jit
    @jax.vmap
    def both(random, own):
        def log_density(z):
            return jnp.where(own == 0, humps(z), banana(z))

        return importance.importance_draws(log_density, prior, KEPT, random)

    with driver_pool(None, lambda: both, 2, at_once=2) as pool:
        return map_drivers(pool, [0, 1], np.arange(2), at_once=2)


def test_two_humps_are_found_and_weighed(drawn):
    (z, _), (ess, _) = drawn
    right = z[:, 0] > 0
    assert right.mean() == pytest.approx(0.7, abs=0.03)
    np.testing.assert_allclose(z[right].mean(0), [4, 1], atol=0.05)
    np.testing.assert_allclose(z[right].std(0), 0.5, rtol=0.06)
    np.testing.assert_allclose(z[~right].std(0), 0.3, rtol=0.08)
    assert ess > 0.3 * importance.PROPOSED


def test_a_bent_posterior_is_followed_into_its_arms(drawn):
    (_, z), (_, ess) = drawn
    assert ess > 0.1 * importance.PROPOSED
    assert z[:, 0].mean() == pytest.approx(0, abs=0.08) and z[:, 0].std() == pytest.approx(
        1, abs=0.06
    )
    # E z2 = 1, var z2 = 2.01; what is left of z2 has sd 0.1.
    assert z[:, 1].mean() == pytest.approx(1, abs=0.1)
    assert (z[:, 1] - z[:, 0] ** 2).std() == pytest.approx(0.1, rel=0.06)
    assert stats.kstest(z[:, 0], "norm").statistic < 0.04


def test_draws_come_in_no_order(drawn):
    """The halves of a repeat must be alike, or r-hat would see what is not there."""
    for z in drawn[0]:
        first, second = np.split(z, 2)
        np.testing.assert_allclose(first.mean(0), second.mean(0), atol=0.12 * z.std())


def test_small_matrices_are_factored_as_by_lapack():
    root = np.random.default_rng(2).normal(size=(5, 5))
    matrix = root @ root.T + 0.1 * np.eye(5)
    factor = np.asarray(jax.jit(importance.small_cholesky)(matrix))
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-9, atol=1e-12)
    inverse = jax.jit(importance.small_inverse)(factor)
    np.testing.assert_allclose(inverse, np.linalg.inv(factor), rtol=1e-9, atol=1e-12)
    assert np.isnan(importance.small_cholesky(jnp.asarray(matrix - 10 * np.eye(5)))).any()


def test_systematic_places():
    weight = np.array([0.5, 0.0, 0.25, 0.25])
    places = np.asarray(importance._systematic(jnp.asarray(weight), 8, random_key(0)))
    np.testing.assert_array_equal(np.bincount(places, minlength=4), 8 * weight)


def test_tempering_keeps_a_tenth():
    log_weight = jnp.asarray(np.random.default_rng(0).normal(size=2000) * 30)
    power = importance._tempering(log_weight)
    weight = np.asarray(jax.nn.softmax(power * log_weight))
    assert 200 <= 1 / np.square(weight).sum() < 400
    assert importance._tempering(jnp.zeros(2000)) == 1


def test_normal_density_is_scipys():
    rng = np.random.default_rng(1)
    factor = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
    mean, z = rng.normal(size=3), rng.normal(size=(4, 5, 3))
    ours = importance.Normal(jnp.asarray(mean), jnp.asarray(factor)).log_prob(jnp.asarray(z))
    expected = stats.multivariate_normal(mean, factor @ factor.T).logpdf(z)
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_a_last_batch_that_is_not_full():
    keys, data = list(range(5)), np.arange(5.0)
    with driver_pool(None, lambda: lambda random, own: (own * 2, random), 5, 2) as pool:
        found = map_drivers(pool, keys, data, at_once=2)
    np.testing.assert_array_equal(found[0], 2 * data)
    np.testing.assert_array_equal(found[1], [random_key(key) for key in keys])
