import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from asbc.simulator import Prefix
from asbc.simulator.matern import MaternResidual
from asbc.simulator.state_space import transition
from asbc.utils.random import standard_normal, stream, uniform

LENGTHS = [0.3, 1.0, 3.0, 20.0]


def kernel(times, sigma, ell):
    """The paper's kernel as a dense matrix."""
    r = math.sqrt(5) * np.abs(times[:, None] - times[None]) / ell
    return sigma**2 * (1 + r + r**2 / 3) * np.exp(-r)


class UnitNormals:
    """Stands in for a generator: row i of a draw is the i-th unit vector.

    Samples are linear in the normal variates, so these rows reveal the whole matrix that makes
    samples out of them, and with it their exact covariance.
    """

    def standard_normal(self, shape, dtype):
        return np.eye(*shape, dtype=dtype)


class Zeros:
    def standard_normal(self, shape, dtype):
        return np.zeros(shape, dtype=dtype)


def exact_covariance(process, sigma, ell, steps, dt, prefix=None):
    """Covariance of `process.sample`, without any Monte-Carlo error."""
    rows = 4 + 7 * steps  # at least as many as variates per trajectory; the others give zeros
    hyper = torch.tensor([[sigma, ell]], dtype=torch.float64).repeat(rows, 1)
    if prefix is not None:
        prefix = Prefix(*(x.repeat(rows, 1) for x in prefix[:2]), prefix.noise)
    rows_of_map = process.sample(hyper, steps, dt, UnitNormals(), prefix)
    mean = process.sample(hyper[:1], steps, dt, Zeros(), prefix and first_row(prefix))
    return ((rows_of_map - mean).T @ (rows_of_map - mean)).numpy(), mean[0].numpy()


def first_row(prefix):
    return Prefix(prefix.residuals[:1], prefix.observed[:1], prefix.noise)


@pytest.mark.parametrize("ell", LENGTHS)
def test_sample_covariance_of_many_draws(ell):
    """Within Monte-Carlo error of the kernel at all lags."""
    n, steps, dt, sigma, nugget = 200_000, 24, 0.2, 0.3, 1e-3
    hyper = torch.tensor([[sigma, ell]]).repeat(n, 1)
    draws = MaternResidual(nugget).sample(hyper, steps, dt, stream(0, "matern")).double().numpy()
    expected = kernel(dt * np.arange(steps), sigma, ell) + nugget * sigma**2 * np.eye(steps)
    error = draws.T @ draws / n - expected
    variance = np.diag(expected)
    standard_error = np.sqrt((np.outer(variance, variance) + expected**2) / n)
    assert np.abs(error / standard_error).max() < 4.5
    assert np.abs(draws.mean(0) / np.sqrt(variance / n)).max() < 4.5


@pytest.mark.parametrize("nugget", [0.0, 1e-3])
@pytest.mark.parametrize("dt", [0.04, 0.2, 1.0])
@pytest.mark.parametrize("ell", LENGTHS)
def test_exact_covariance_of_the_sampler(ell, dt, nugget):
    steps = 40
    actual, mean = exact_covariance(MaternResidual(nugget), 0.7, ell, steps, dt)
    expected = kernel(dt * np.arange(steps), 0.7, ell) + nugget * 0.49 * np.eye(steps)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)
    assert not mean.any()


@pytest.mark.parametrize("nugget", [0.0, 1e-3])
def test_correlation_matrices(nugget):
    shapes = torch.tensor(LENGTHS)[:, None]
    actual = MaternResidual(nugget).correlation(shapes, 30, 0.2)
    expected = [kernel(0.2 * np.arange(30), 1.0, ell) + nugget * np.eye(30) for ell in LENGTHS]
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("x", [1e-3, 0.0045, 0.1, 1.5, 8.0])
def test_process_noise_has_full_relative_accuracy(x):
    def g(s):
        return mpmath.matrix([s**2 / 2, s - s**2 / 2, 1 - 2 * s + s**2 / 2]) * mpmath.exp(-s)

    actual = transition(torch.tensor([math.sqrt(5) / x], dtype=torch.float64), 1.0).noise[..., 0]
    with mpmath.workdps(40):
        for i in range(3):
            for j in range(3):
                integral = mpmath.quad(lambda s, i=i, j=j: g(s)[i] * g(s)[j], [0, x])
                expected = float(integral * 16 / 3)
                assert actual[i, j].item() == pytest.approx(expected, rel=1e-12, abs=1e-15 * x)


@pytest.mark.parametrize("dt", [0.04, 0.2])
@pytest.mark.parametrize("ell", LENGTHS)
def test_log_likelihood_equals_the_dense_normal(ell, dt):
    steps, sigma, nugget = 75, 0.4, 1e-3
    hyper = torch.tensor([[sigma, ell]], dtype=torch.float64).repeat(5, 1)
    process = MaternResidual(nugget)
    residuals = process.sample(hyper, steps, dt, stream(1, "matern"))
    residuals[-1] = standard_normal(stream(2), steps)  # a far less likely one
    covariance = kernel(dt * np.arange(steps), sigma, ell) + nugget * sigma**2 * np.eye(steps)
    expected = stats.multivariate_normal(cov=covariance).logpdf(residuals.numpy())
    actual = process.log_likelihood(residuals, hyper, dt)
    assert actual.dtype == torch.float64
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("ell", LENGTHS)
def test_log_likelihood_of_the_pure_kernel(ell):
    """Against 60 digits: the dense matrix without a nugget is singular in double precision."""
    steps, sigma, dt = 20, 0.4, 0.2
    hyper = torch.tensor([[sigma, ell]], dtype=torch.float64)
    residuals = MaternResidual(0).sample(hyper, steps, dt, stream(3, "matern"))
    with mpmath.workdps(60):
        times = [mpmath.mpf("0.2") * i for i in range(steps)]
        covariance = mpmath.matrix(steps)
        for i in range(steps):
            for j in range(steps):
                r = mpmath.sqrt(5) * abs(times[i] - times[j]) / mpmath.mpf(ell)
                value = (1 + r + r**2 / 3) * mpmath.exp(-r)
                covariance[i, j] = mpmath.mpf(sigma) ** 2 * value
        factor = mpmath.cholesky(covariance)
        white = mpmath.lu_solve(factor, mpmath.matrix(residuals[0].tolist()))
        expected = -sum(z**2 for z in white) / 2 - sum(
            mpmath.log(factor[i, i]) for i in range(steps)
        )
        expected = float(expected - steps * mpmath.log(2 * mpmath.pi) / 2)
    actual = MaternResidual(0).log_likelihood(residuals, hyper, dt).item()
    assert actual == pytest.approx(expected, rel=1e-6)


def dense_conditional(sigma, ell, dt, nugget, prefix, steps):
    """Mean and covariance of the next values by the formula for a joint normal."""
    seen = prefix.observed[0].numpy()
    length = len(seen)
    times = dt * np.arange(length + steps)
    joint = kernel(times, sigma, ell) + nugget * sigma**2 * np.eye(length + steps)
    joint[:length, :length] += prefix.noise * sigma**2 * np.eye(length)
    past, future = np.flatnonzero(seen), np.arange(length, length + steps)
    gain = np.linalg.solve(joint[np.ix_(past, past)], joint[np.ix_(past, future)]).T
    mean = gain @ prefix.residuals[0].double().numpy()[past]
    return mean, joint[np.ix_(future, future)] - gain @ joint[np.ix_(past, future)]


@pytest.mark.parametrize("seen", ["11111", "00110", "00001", "1", "1" * 25])
@pytest.mark.parametrize("ell", LENGTHS)
def test_conditioning_on_a_prefix_equals_the_dense_conditional(ell, seen):
    sigma, dt, nugget, steps = 0.3, 0.2, 1e-3, 30
    observed = torch.tensor([[c == "1" for c in seen]])
    values = 0.3 * standard_normal(stream(4), 1, len(seen), dtype=torch.float64)
    prefix = Prefix(torch.where(observed, values, math.nan), observed, noise=1e-2)
    actual = exact_covariance(MaternResidual(nugget), sigma, ell, steps, dt, prefix)
    mean, covariance = dense_conditional(sigma, ell, dt, nugget, prefix, steps)
    np.testing.assert_allclose(actual[1], mean, rtol=0, atol=1e-5 * sigma)
    np.testing.assert_allclose(actual[0], covariance, rtol=0, atol=1e-5 * sigma**2)


def test_an_unobserved_prefix_changes_nothing():
    hyper = torch.tensor([[0.3, 0.5], [0.2, 3.0], [0.5, 18.0]]).double()
    process = MaternResidual()
    nothing = Prefix(torch.full((3, 6), math.nan), torch.zeros(3, 6, dtype=torch.bool), 1e-2)
    plain = process.sample(hyper, 20, 0.2, stream(5))
    torch.testing.assert_close(process.sample(hyper, 20, 0.2, stream(5), nothing), plain)
    empty = Prefix(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.bool), 1e-2)
    assert torch.equal(process.sample(hyper, 20, 0.2, stream(5), empty), plain)


def test_rows_do_not_depend_on_the_batch():
    hyper = torch.stack([0.3 + uniform(stream(6), 500), 0.5 + 9 * uniform(stream(7), 500)], 1)
    for steps in (1, 2, 5, 50):
        whole = MaternResidual().sample(hyper, steps, 0.2, stream(8))
        assert whole.shape == (500, steps) and whole.dtype == torch.float32
        assert torch.equal(MaternResidual().sample(hyper[:13], steps, 0.2, stream(8)), whole[:13])
        rng = stream(8)
        parts = [MaternResidual().sample(part, steps, 0.2, rng) for part in hyper.split(211)]
        assert torch.equal(torch.cat(parts), whole)


def censored_log_likelihood(covariance, values, mask):
    """Density of the seen values times the probability of the others, by scipy's integral."""
    seen, hidden = np.flatnonzero(~mask), np.flatnonzero(mask)
    known, cross = covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, hidden)]
    gain = np.linalg.solve(known, cross).T
    rest = covariance[np.ix_(hidden, hidden)] - gain @ cross
    below = stats.multivariate_normal(gain @ values[seen], rest, seed=0).cdf(values[hidden])
    return stats.multivariate_normal(cov=known).logpdf(values[seen]) + math.log(below)


@pytest.mark.parametrize("ell", [0.4, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(
    "steps, largest", [(8, 0.1), (12, 0.45)], ids=["stops", "stops and drives on"]
)
def test_censored_likelihood_is_close_to_the_normal_integral(ell, steps, largest):
    """Of the fifth to the eighth value only bounds are known; an approximation, see the method."""
    n, sigma = 20, 0.3
    process, hyper = MaternResidual(), torch.tensor([[sigma, ell]] * n, dtype=torch.float64)
    covariance = kernel(0.2 * np.arange(steps), sigma, ell) + 1e-3 * sigma**2 * np.eye(steps)
    mask = torch.zeros(n, steps, dtype=torch.bool)
    mask[:, 4:8] = True
    values = process.sample(hyper, steps, 0.2, stream(9))
    slack = 0.1 * standard_normal(stream(10), n, steps, dtype=torch.float64).abs()
    values = torch.where(mask, values + slack, values)
    expected = [
        censored_log_likelihood(covariance, row, mask[0].numpy()) for row in values.numpy()
    ]
    actual = process.log_likelihood(values, hyper, 0.2, lower=mask)
    error = actual.numpy() - expected
    assert np.sqrt(np.mean(error**2)) < largest
    assert abs(error.mean()) < 0.25
    mirrored = process.log_likelihood(-values, hyper, 0.2, upper=mask)
    torch.testing.assert_close(mirrored, actual)
