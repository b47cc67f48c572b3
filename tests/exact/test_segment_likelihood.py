"""Likelihoods of drivers with several segments: products, against sums and dense covariances."""

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.exact.statistics import (
    Statistics,
    Transitions,
    runs,
    segment_transitions,
    statistics,
    transitions,
)
from asbc.simulator.segment_likelihood import known_log_likelihood

LENGTHS = torch.tensor([[40, 15, 0, 23], [18, 0, 0, 0], [40, 40, 40, 40]])


@pytest.fixture(params=["gaussian", "matern"])
def driven(request, simulators, typical, pairs_of):
    """A simulator, three drivers with their segments, and 20 parameters for each."""
    simulator = simulators[request.param]
    pairs = pairs_of(simulator, typical[request.param].expand(12, -1), 40)
    states = pairs.contexts(40).unflatten(0, (3, 4))
    # Padding may hold anything.
    states = torch.where(torch.arange(40)[:, None] < LENGTHS[..., None, None], states, torch.nan)
    theta = simulator.prior.sample(60, np.random.default_rng(0)).unflatten(0, (3, 20))
    return simulator, Segments(states, LENGTHS, torch.zeros(3, 4)), theta


def single(segments: Segments, driver: int) -> list[torch.Tensor]:
    """The states of each segment of a driver, (length, 3)."""
    lengths = segments.lengths[driver].tolist()
    return [segments.states[driver, j, :n] for j, n in enumerate(lengths) if n]


def dense(simulator, theta: torch.Tensor, parts: list[torch.Tensor]) -> np.ndarray:
    """Log-densities of all residuals at once, whose covariance has a block for each segment."""
    found = []
    for row in theta.double():
        residuals = [simulator.residuals(row, part.double()).numpy() for part in parts]
        shape = row[None, 6:]
        blocks = [
            simulator.residual.correlation(shape, len(r), simulator.dt)[0].numpy()
            for r in residuals
        ]
        covariance = float(row[5]) ** 2 * block_diag(*blocks)
        found.append(multivariate_normal.logpdf(np.concatenate(residuals), cov=covariance))
    return np.array(found)


def test_the_likelihood_of_segments_is_their_product(driven):
    simulator, segments, theta = driven
    found = known_log_likelihood(simulator, theta, segments)
    for driver in range(3):
        parts = single(segments, driver)
        product = sum(simulator.log_likelihood(theta[driver], x.expand(20, -1, -1)) for x in parts)
        torch.testing.assert_close(found[driver], product, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(
            found[driver].numpy(), dense(simulator, theta[driver], parts), rtol=1e-7, atol=1e-6
        )
    # A driver with one segment has the likelihood of that trajectory.
    alone = known_log_likelihood(simulator, theta[1:2], single(segments, 1)[0][None])
    torch.testing.assert_close(found[1:2], alone, rtol=1e-12, atol=1e-9)


def test_statistics_of_segments_are_those_of_their_product(driven):
    jnp = pytest.importorskip("jax.numpy")
    pytest.importorskip("numpyro")
    from asbc.exact import nuts  # noqa: F401  (switches JAX to double precision)
    from asbc.exact.likelihood import TrajectoryLikelihood

    simulator, segments, theta = driven
    seen = segment_transitions(simulator, segments)
    assert [len(driver.side) for driver in seen] == [39 + 14 + 22, 17, 4 * 39]
    assert [driver.starts for driver in seen] == [(39, 53), (), (39, 78, 117)]
    data = statistics(simulator, seen)
    likelihood = TrajectoryLikelihood.of(simulator)
    for driver in range(3):
        mine = Statistics(*(jnp.asarray(part[driver]) for part in data))
        found = np.asarray(likelihood(jnp.asarray(theta[driver].double().numpy()), mine))
        expected = dense(simulator, theta[driver], single(segments, driver))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-4)


def test_a_single_segment_has_the_transitions_of_its_trajectory(simulators, typical, pairs_of):
    simulator = simulators["matern"]
    pairs = pairs_of(simulator, typical["matern"].expand(2, -1), 40)
    one = segment_transitions(simulator, Segments.of(pairs.contexts(30)))
    for mine, theirs in zip(one, transitions(simulator, pairs, 30), strict=True):
        np.testing.assert_allclose(mine.design, theirs.design, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(mine.side, theirs.side)


@pytest.mark.parametrize(
    ("side", "starts", "expected"),
    [
        ([0, 0, 1, 0, -1, 1, 0], (), [[0, 1], [3], [6]]),
        ([0, 0, 0, 0, 0, 0, 0], (3, 5), [[0, 1, 2], [3, 4], [5, 6]]),
        ([0, 0, 1, 0, -1, 1, 0], (1, 3, 6), [[0], [1], [3], [6]]),
        ([1, 0, 0, 1, 0, 0, 1], (3, 5), [[1, 2], [4], [5]]),
    ],
)
def test_runs_are_cut_at_clipped_steps_and_between_segments(side, starts, expected):
    design = np.arange(7.0)[:, None].repeat(9, 1)
    found = runs(Transitions(design, np.array(side), starts))
    assert [run[:, 0].tolist() for run in found] == expected


def test_theta_must_belong_to_the_drivers(driven):
    simulator, segments, theta = driven
    with pytest.raises(InputError, match="theta"):
        known_log_likelihood(simulator, theta[:2], segments)
