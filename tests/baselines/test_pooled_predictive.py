"""A population trained to predict finds drivers that are all alike."""

import torch

from asbc.baselines.pooled_predictive import DriverLaw, PooledPredictive
from asbc.predictive.objective import Predictive
from asbc.predictive.recorded_windows import RecordedWindows
from asbc.utils.random import standard_normal, stream

SMALL = Predictive(
    horizon=15, steps=80, check_every=20, windows=8, draws=8, validation_draws=16, stride=20
)


def test_it_predicts_better_than_the_prior_it_starts_from(task_of):
    task = task_of("gaussian", known=20, steps=100)
    fitted = PooledPredictive(SMALL, learning_rate=0.1).fit(task)
    assert fitted.theta.shape == (2, 20, 6)
    assert torch.equal(fitted.theta[0], fitted.theta[1])  # the same for everybody
    assert bool(task.simulator.prior.contains(fitted.theta).all())
    start = DriverLaw(task.simulator.prior)
    noise = standard_normal(stream(0, "pooled draws"), 1, 20, 6)
    before = start.sample(noise, noise)[0].detach()
    # Drivers whom neither has seen: the score of the trained law must be clearly the better one.
    examples = RecordedWindows(task.test, 40, 15, 5, "test").grid("first", 10, 20)

    def score(theta):
        rollout = SMALL.roll_out(task.simulator, theta.expand(len(examples), -1, -1), examples, 0)
        return SMALL.scores(rollout, examples).mean(0)

    ratio = score(fitted.theta[0]) / score(before)
    assert float(ratio.mean()) < 0.9
    again = PooledPredictive(SMALL, learning_rate=0.1).fit(task)
    assert torch.equal(again.theta, fitted.theta)
