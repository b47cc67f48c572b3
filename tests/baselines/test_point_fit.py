"""Point fits find known parameters, and their spread is that of their residuals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.baselines.point_fit import PointFit, fitted_residual, law_only, minimise
from asbc.errors import InputError


def test_minimise_finds_minima_inside_and_on_the_side_of_the_box():
    target = torch.tensor([[0.3, 5.0], [2.0, 7.0]])  # the second lies beyond the box in column 0
    low, high = torch.tensor([0.0, 4.0]), torch.tensor([1.0, 9.0])
    start = torch.tensor([[0.9, 8.0], [0.1, 4.5]])
    best, least = minimise(
        lambda x: (x - target).square().sum(1), start, low, high, 400, learning_rate=0.2
    )
    np.testing.assert_allclose(best, [[0.3, 5.0], [1.0, 7.0]], atol=0.02)
    np.testing.assert_allclose(least, [0.0, 1.0], atol=0.04)


def test_minimise_survives_a_problem_without_a_value():
    start = torch.tensor([[0.5], [0.5]])
    best, least = minimise(
        lambda x: torch.where(torch.tensor([True, False]), x[:, 0] ** 2, torch.nan),
        start,
        torch.zeros(1),
        torch.ones(1),
        100,
    )
    assert best[0] < 0.1 and best[1] == 0.5 and torch.isinf(least[1])


@pytest.fixture(scope="module")
def noise_free_task(task_of, pairs_of):
    """Drivers whose observations are noise-free simulations with known parameters."""
    task = task_of("gaussian")
    quiet = law_only(task.simulator)
    truth = torch.tensor([[25.0, 2.0, 1.2, 1.0, 1.5], [35.0, 4.0, 2.0, 1.6, 2.5]])
    driven = pairs_of(quiet, truth, 80, seed=3)
    return replace(task, known=driven.select([0]), test=driven), truth


def test_fit_per_driver_reproduces_the_gap(noise_free_task):
    task, truth = noise_free_task
    fitted = PointFit(starts=4, steps=100).fit(task)
    assert fitted.theta.shape == (2, 20, 6)
    assert (fitted.theta == fitted.theta[:, :1]).all()  # a point: every draw is the same
    assert fitted.details["rmse_gap"] < 0.1
    law = fitted.theta[:, 0, :5]
    # Gap and speed pin down the distance a driver keeps; v0 and b hardly show in 8 s.
    speed = torch.full((2,), 8.0)
    ours = task.simulator.law.equilibrium_gap(law, speed)
    theirs = task.simulator.law.equilibrium_gap(truth, speed)
    np.testing.assert_allclose(ours, theirs, rtol=0.05)


def test_the_fit_sees_the_context_only(noise_free_task):
    task, _ = noise_free_task
    method = PointFit(starts=2, steps=8)
    gap = task.test.gap.clone()
    for start in task.test.offsets[:-1].tolist():
        gap[start + task.context_steps : start + 80] += 5.0
    changed = replace(task, test=replace(task.test, gap=gap))
    torch.testing.assert_close(method.fit(task).theta, method.fit(changed).theta)


def test_pooled_fit_learns_from_the_known_pairs(noise_free_task):
    task, truth = noise_free_task
    fitted = PointFit(pooled=True, starts=4, steps=80).fit(task)
    assert fitted.details["fits"] == 1 and fitted.theta.shape == (2, 20, 6)
    assert (fitted.theta[0] == fitted.theta[1]).all()
    gap = task.simulator.law.equilibrium_gap(fitted.theta[0, 0], torch.tensor(8.0))
    exact = task.simulator.law.equilibrium_gap(truth[0], torch.tensor(8.0))
    assert float(gap) == pytest.approx(float(exact), rel=0.05)


def test_spread_is_that_of_the_residuals(task_of, typical):
    task = task_of("gaussian")
    states = task.test.contexts(80)[:, None]
    law = typical["gaussian"][None, :5].repeat(2, 1)
    theta = fitted_residual(task.simulator, law, states)
    residuals = task.simulator.residuals(theta, states[:, 0])
    np.testing.assert_allclose(theta[:, 5], residuals.square().mean(1).sqrt(), rtol=0.01)
    assert float(theta[:, 5].mean()) == pytest.approx(0.3, rel=0.15)


def test_correlated_residuals_are_fitted_by_maximum_likelihood(task_of, typical):
    task = task_of("matern", steps=60)
    states = task.test.contexts(60)[:, None]
    theta = fitted_residual(task.simulator, typical["matern"][None, :5].repeat(2, 1), states)
    best = task.simulator.log_likelihood(theta, states[:, 0])
    truth = task.simulator.log_likelihood(typical["matern"].expand(2, -1), states[:, 0])
    assert (best >= truth - 0.05).all()


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="baseline.starts=0"):
        PointFit(starts=0)
