"""The floors are what they say."""

import numpy as np
import pytest
import torch

from asbc.baselines.floors import PriorPredictive, Recommended
from asbc.errors import InputError
from asbc.utils.random import stream

VALUES = {"v0": 33.3, "s0": 2.0, "T": 1.6, "a_max": 1.5, "b": 1.67}


def test_recommended_values_are_the_same_for_everyone(task_of):
    task = task_of("gaussian")
    fitted = Recommended(VALUES).fit(task)
    assert fitted.theta.shape == (2, 20, 6)
    np.testing.assert_allclose(
        fitted.theta[..., :5].flatten(0, 1).unique(dim=0)[0], [*VALUES.values()]
    )
    states = task.known.contexts(40)
    # The windows of the known pairs are 40 samples long, two of them in each.
    later = torch.stack([task.known.select([i]).contexts(80)[0, 40:] for i in range(3)])
    both = torch.cat([states, later])
    residuals = task.simulator.residuals(fitted.theta[0, :1].expand(6, -1), both)
    assert float(fitted.theta[0, 0, 5]) == pytest.approx(
        float(residuals.square().mean().sqrt()), rel=0.01
    )


def test_recommended_values_must_fit_the_law(task_of):
    with pytest.raises(InputError, match=r"baseline.values has \['v0'\], but the law needs"):
        Recommended({"v0": 33.3}).fit(task_of("gaussian"))


def test_prior_predictive_draws_from_the_prior(task_of):
    task = task_of("matern")
    theta = PriorPredictive().fit(task).theta
    expected = task.simulator.prior.sample(20, stream(0, "prior predictive"))
    torch.testing.assert_close(theta[0], expected)
    torch.testing.assert_close(theta[1], expected)
