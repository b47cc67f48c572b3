"""MA-IDM's likelihood of slices against dense Gaussian densities."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from asbc.errors import InputError
from asbc.exact.statistics import transitions

jnp = pytest.importorskip("jax.numpy")
pytest.importorskip("numpyro")
from asbc.baselines import pooled_models  # noqa: E402


def states_of(pairs, i):
    pair = pairs.pair(i)
    columns = [pair["gap"], pair["speed"], pair["speed"] - pair["leader_speed"]]
    return torch.stack(columns, dim=-1)


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
    cut = pooled_models.slice_statistics(transitions(simulator, pairs), steps=20)
    assert cut.slices == 4  # 49 transitions each: two slices, and 9 steps that fill none
    time = np.arange(20) * 0.2
    lag = np.abs(time[:, None] - time)

    scaled = np.sqrt(5) * lag / 1.5
    matern = 0.3**2 * ((1 + scaled + scaled**2 / 3) * np.exp(-scaled) + 1e-3 * np.eye(20))
    ours = pooled_models.slice_log_likelihood(
        jnp.asarray(theta.numpy()), cut, pooled_models.matern52(1e-3)(lag, theta.numpy()), 4.0
    )
    assert float(ours) == pytest.approx(dense_slices(simulator, pairs, theta, matern), rel=1e-4)

    smooth = 0.3**2 * np.exp(-(lag**2) / (2 * 1.5**2)) + 0.05**2 * np.eye(20)
    longer = np.append(theta.numpy(), 0.05)
    ours = pooled_models.slice_log_likelihood(
        jnp.asarray(longer), cut, pooled_models.squared_exponential(lag, longer), 4.0
    )
    assert float(ours) == pytest.approx(dense_slices(simulator, pairs, theta, smooth), rel=1e-4)


def test_slices_longer_than_the_data_are_refused(simulators, typical, pairs_of):
    simulator = simulators["matern"]
    pairs = pairs_of(simulator, typical["matern"].expand(1, -1), 15)
    with pytest.raises(InputError, match="slice_seconds"):
        pooled_models.slice_statistics(transitions(simulator, pairs), steps=20)
