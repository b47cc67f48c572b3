import math

import numpy as np
import pytest
import torch

from asbc.design.weights import correction, effective_sample_size, importance_weights
from asbc.errors import InputError


def test_no_correction_weighs_all_alike():
    assert correction("none")(torch.tensor([0.0, -3.0, 9.0])).tolist() == [1.0, 1.0, 1.0]


def test_weights_are_proportional_to_the_ratio():
    ratio = np.random.default_rng(0).uniform(0.5, 2.0, 1000)
    weights = importance_weights(torch.from_numpy(np.log(ratio) + 700))
    np.testing.assert_allclose(weights.numpy(), ratio / ratio.mean(), rtol=1e-9)


def test_weights_are_truncated_at_the_root_of_their_number():
    ratio = np.ones(10_000)
    ratio[0] = 1e6  # alone 99% of the sum
    weights = importance_weights(torch.from_numpy(np.log(ratio))).numpy()
    # Before the truncation the mean is 1, so the largest weight becomes sqrt(10,000) = 100.
    untruncated = ratio / ratio.mean()
    assert weights[0] / weights[1] == pytest.approx(100 / untruncated[1])
    assert weights.mean() == pytest.approx(1)


def test_importance_weighting_recovers_the_prior_mean():
    rng = np.random.default_rng(1)
    proposal, prior = (1.0, 0.8), (0.0, 1.0)
    x = rng.normal(*proposal, 200_000)
    log = [-0.5 * ((x - m) / s) ** 2 - math.log(s) for m, s in (prior, proposal)]
    weights = importance_weights(torch.from_numpy(log[0] - log[1])).numpy()
    assert abs(np.mean(weights * x)) < 0.05
    assert 1 < effective_sample_size(torch.from_numpy(weights)) < 200_000


def test_effective_sample_size_of_equal_weights_is_their_number():
    assert effective_sample_size(torch.full((50,), 0.3)) == pytest.approx(50)


def test_unknown_correction_names_the_field():
    with pytest.raises(
        InputError, match="acquisition.correction=maybe; expected one of none, imp"
    ):
        correction("maybe")
