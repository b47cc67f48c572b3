"""A posterior learned from selected pairs: with weights it is the exact one, without it is not.

log theta ~ N(0, 1) is seen four times with noise of 0.7, so its posterior is normal with a
variance of 1 / (1 + 4 / 0.49) = 0.109. Pairs are selected by exp(2 log theta), which without
weights moves the posterior's mean by up to half of its standard deviation.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from asbc.design.targeted import choose
from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.flow import MaskedAutoregressiveFlow
from asbc.posterior.transform import PriorNormal
from asbc.simulator import Prior
from asbc.training.loop import one_cycle
from asbc.utils.random import standard_normal, stream

NOISE, STEPS = 0.7, 4
VARIANCE = 1 / (1 + STEPS / NOISE**2)


@pytest.fixture(scope="module")
def prior() -> Prior:
    marginal = {"unit": "1", "centre": 1.0, "log_scale": 1.0, "low": 1e-2, "high": 1e2}
    return Prior({"theta": marginal}, {})


def observe(theta: Tensor, rng: np.random.Generator) -> Tensor:
    """What is seen of theta (n, 1): states (n, 4, 3), of which the first column tells."""
    seen = theta.log() + NOISE * standard_normal(rng, len(theta), STEPS)
    return torch.stack([seen, 0 * seen, 0 * seen], dim=-1)


def train(prior: Prior, theta: Tensor, states: Tensor, weight: Tensor) -> PosteriorEstimator:
    torch.manual_seed(0)
    estimator = PosteriorEstimator(
        LocalGlobalEncoder(model_dim=8, layers=1, heads=2, dropout=0.0),
        partial(MaskedAutoregressiveFlow, layers=2, hidden=16, dropout=0.0),
        PriorNormal(prior),
        prior,
    )
    estimator.posterior.set_scaling(theta, states)
    optimizer, steps = torch.optim.Adam(estimator.parameters()), 500
    for step in range(steps):
        rows = torch.from_numpy(stream(0, "rows", step).integers(len(theta), size=256))
        optimizer.param_groups[0]["lr"] = 1e-2 * one_cycle(step / steps)
        log_q = estimator.posterior.training_log_prob(theta[rows], states[rows])
        optimizer.zero_grad()
        (-(log_q * weight[rows]).mean()).backward()
        optimizer.step()
    return estimator.eval()


def errors_of_mean(prior: Prior, weigh: bool) -> Tensor:
    """Errors of the posterior mean of log theta, in exact standard deviations, of 300 drivers."""
    rng = stream(0, "pool")
    pool = prior.sample(60_000, rng)
    picks, log_ratio = choose(pool[:, 0].square().clamp(max=50), 6000, 0.2, rng)
    theta = pool[picks]
    weight = log_ratio.exp() if weigh else torch.ones(len(picks))
    estimator = train(prior, theta, observe(theta, rng), weight)
    drivers = torch.exp(torch.linspace(0.0, 1.5, 300))[:, None]
    states = observe(drivers, stream(1, "drivers"))
    draws = estimator.posterior.sample(states, 400, stream(2, "draws")).theta[..., 0].log()
    exact = VARIANCE * states[..., 0].sum(1) / NOISE**2
    return (draws.mean(1) - exact) / VARIANCE**0.5


def test_weights_undo_the_selection(prior):
    assert abs(float(errors_of_mean(prior, weigh=True).mean())) < 0.1
    assert float(errors_of_mean(prior, weigh=False).mean()) > 0.25
