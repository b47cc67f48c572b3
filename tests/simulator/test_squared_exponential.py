"""MA-IDM's residual process against dense Gaussian formulas."""

import numpy as np
import torch
from scipy.stats import multivariate_normal, norm

from asbc.simulator import Prefix
from asbc.simulator.squared_exponential import SquaredExponentialResidual

PROCESS = SquaredExponentialResidual()
HYPER = (0.4, 0.9, 0.1)
DT = 0.2


def covariance(steps, sigma=HYPER[0], ell=HYPER[1], white=HYPER[2]):
    time = np.arange(steps) * DT
    lag = time[:, None] - time
    return sigma**2 * np.exp(-0.5 * (lag / ell) ** 2) + white**2 * np.eye(steps)


def hyper(rows):
    return torch.tensor([HYPER]).repeat(rows, 1)


def test_samples_have_the_kernels_covariance():
    draws = PROCESS.sample(hyper(40_000), 8, DT, np.random.default_rng(0)).double()
    np.testing.assert_allclose(np.cov(draws.T), covariance(8), atol=0.004)


def test_prefix_conditions_exactly():
    past, noise = 3, 0.02
    observed = torch.tensor([[0.3, 9.9, -0.2]])
    mask = torch.tensor([[True, False, True]])
    rows = 40_000
    prefix = Prefix(observed.repeat(rows, 1), mask.repeat(rows, 1), noise)
    draws = PROCESS.sample(hyper(rows), 6, DT, np.random.default_rng(1), prefix).double()

    joint = covariance(past + 6)
    keep = [0, 2]
    known = joint[np.ix_(keep, keep)] + noise * HYPER[0] ** 2 * np.eye(2)
    cross = joint[past:][:, keep]
    gain = cross @ np.linalg.inv(known)
    np.testing.assert_allclose(draws.mean(0), gain @ [0.3, -0.2], atol=0.01)
    np.testing.assert_allclose(np.cov(draws.T), joint[past:, past:] - gain @ cross.T, atol=0.004)


def test_a_prefix_that_was_not_observed_changes_nothing():
    nothing = Prefix(torch.full((4, 2), 7.0), torch.zeros(4, 2, dtype=torch.bool), 0.01)
    with_prefix = PROCESS.sample(hyper(4), 5, DT, np.random.default_rng(2), nothing)
    without = PROCESS.sample(hyper(4), 5, DT, np.random.default_rng(2))
    torch.testing.assert_close(with_prefix, without)


def test_rows_do_not_depend_on_the_batch():
    mixed = torch.tensor([HYPER, (0.2, 0.5, 0.05), HYPER, (0.7, 2.0, 0.01)])
    prefix = Prefix(torch.randn(4, 3), torch.ones(4, 3, dtype=torch.bool), 0.01)
    all_rows = PROCESS.sample(mixed, 7, DT, np.random.default_rng(3), prefix)
    first = Prefix(prefix.residuals[:2], prefix.observed[:2], 0.01)
    torch.testing.assert_close(
        PROCESS.sample(mixed[:2], 7, DT, np.random.default_rng(3), first), all_rows[:2]
    )


def test_log_likelihood_equals_scipy():
    values = torch.randn(3, 12, generator=torch.Generator().manual_seed(0)) * 0.4
    ours = PROCESS.log_likelihood(values, hyper(3), DT)
    theirs = multivariate_normal.logpdf(values.numpy(), np.zeros(12), covariance(12))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_censored_first_step_contributes_its_tail():
    value = torch.tensor([[0.25]])
    lower = torch.tensor([[True]])
    ours = PROCESS.log_likelihood(value, hyper(1), DT, lower, ~lower)
    sd = np.sqrt(HYPER[0] ** 2 + HYPER[2] ** 2)
    np.testing.assert_allclose(ours, norm.logcdf(0.25 / sd), rtol=1e-6)
