"""Moods: the parameters of a driver's segments, against sampled processes and closed forms."""

import math

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.data.windows import LeaderWindows
from asbc.simulator.robust import ContextSimulator, drive_segments

DRIVERS = 40_000
NAN = float("nan")


@pytest.fixture(scope="module")
def simulator():
    return build(compose("train", ["residual=matern"]).simulator)


@pytest.fixture(scope="module")
def theta(simulator):
    """In the middle of the prior's box, so that its edges do not count."""
    middle = (simulator.prior.low.log() + simulator.prior.high.log()) / 2
    return middle.exp().expand(DRIVERS, -1)


def logs(context, theta, age):
    """Log moods and log parameters to infer, relative to theta."""
    age = torch.tensor([age]).expand(len(theta), -1)
    moods, later = context.moods(theta, age, np.random.default_rng(0))
    return (moods / theta[:, None]).log().double(), (later / theta).log().double()


def test_one_segment_is_a_context_as_ever(simulator, theta) -> None:
    context = ContextSimulator(simulator, drift=0.05, residual_drift=0.1, wander=0.3)
    moods, later = logs(context, theta, [0.0])
    # The law's parameters are about those to infer, the residual's to infer about those driven.
    assert float(later[:, :5].abs().max()) < 1e-6 and float(moods[..., 5:].abs().max()) < 1e-6
    np.testing.assert_allclose(moods[:, 0, :5].std(0), 0.05, rtol=0.02)
    np.testing.assert_allclose(later[:, 5:].std(0), 0.1, rtol=0.02)
    assert float(later.mean(0).abs().max()) < 2e-3


@pytest.mark.parametrize("count", [2, 4])
def test_the_residual_to_come_is_best_known_by_the_mean_of_the_segments(
    simulator, theta, count
) -> None:
    """An unknown level plus each segment's own: least squares give each the same weight."""
    context = ContextSimulator(simulator, residual_drift=0.1)
    moods, later = logs(context, theta, [0.0, 15.0, NAN, NAN][:count])
    own = 0.1 / math.sqrt(2)
    assert float(moods[:, 0, 5:].abs().max()) < 1e-6  # the newest is theta's
    np.testing.assert_allclose(moods[:, 1:, 5:].std(0), 0.1, rtol=0.02)
    for column in (5, 6):
        others = moods[:, 1:, column].numpy()
        weights, *_ = np.linalg.lstsq(others, later[:, column].numpy(), rcond=None)
        np.testing.assert_allclose(weights, 1 / count, atol=0.02)
        rest = later[:, column].numpy() - others @ weights
        assert rest.std() == pytest.approx(own * math.sqrt(1 + 1 / count), rel=0.02)


def test_old_segments_say_less_of_a_residual_that_wanders(simulator, theta) -> None:
    """The best weights are those of the covariance of the process, level and all."""
    age = [0.0, 20.0, 200.0]
    context = ContextSimulator(
        simulator, residual_drift=0.06, residual_wander=0.06, wander_seconds=40.0
    )
    moods, later = logs(context, theta, age)
    times = np.array([*age, 0.0])
    apart = np.abs(times[:, None] - times)
    kernel = 0.06**2 * np.exp(-apart / 40) + 0.06**2 / 2 * np.eye(4)
    kernel += 1e4  # the level
    expected = np.linalg.solve(kernel[:3, :3], kernel[:3, 3])
    others = moods[:, 1:, 5].numpy()
    weights, *_ = np.linalg.lstsq(others, later[:, 5].numpy(), rcond=None)
    np.testing.assert_allclose(weights, expected[1:], atol=0.02)
    assert weights[0] > 1.5 * weights[1]


def test_what_wanders_is_an_ornstein_uhlenbeck_process(simulator, theta) -> None:
    """Against the process itself, sampled at the times of the segments and at the present."""
    age = [0.0, 20.0, 50.0, NAN]
    context = ContextSimulator(simulator, drift=0.02, wander=0.05, wander_seconds=40.0)
    moods, later = logs(context, theta, age)
    assert float(later.abs().max()) < 1e-6
    rng = np.random.default_rng(1)
    steps = np.array([0.0, 20.0, 30.0])  # back in time from the present
    path = [rng.normal(size=DRIVERS)]
    for step in steps[1:]:
        keep = math.exp(-step / 40.0)
        path.append(keep * path[-1] + math.sqrt(1 - keep**2) * rng.normal(size=DRIVERS))
    path.append(rng.normal(size=DRIVERS))  # long ago
    moved = 0.05 * (np.stack(path) - path[0]) + 0.02 * rng.normal(size=(4, DRIVERS))
    for column in (0, 3):
        found = np.cov(moods[..., column].numpy().T)
        np.testing.assert_allclose(found, np.cov(moved), atol=0.03 * 0.005)


def test_a_driver_who_keeps_to_one_theta_does_so_in_every_segment(simulator, theta) -> None:
    moods, later = logs(ContextSimulator(simulator), theta[:5], [0.0, 15.0, NAN])
    assert float(moods.abs().max()) == 0 and float(later.abs().max()) == 0


def test_moods_and_what_comes_stay_in_the_priors_box(simulator) -> None:
    context = ContextSimulator(simulator, drift=0.5, residual_drift=2.0, wander=0.5)
    theta = simulator.prior.sample(2000, np.random.default_rng(0))
    age = torch.tensor([[0.0, 15.0, NAN]]).expand(2000, -1)
    moods, later = context.moods(theta, age, np.random.default_rng(1))
    assert bool(simulator.prior.contains(moods).all() and simulator.prior.contains(later).all())


def test_driven_segments_say_what_is_to_infer(simulator, theta) -> None:
    context = ContextSimulator(simulator, residual_drift=0.1)
    count = torch.tensor([[75, 40], [20, 0]])
    leader = LeaderWindows(
        torch.full((3, 75), 10.0),
        *(torch.full((3,), 30.0), torch.full((3,), 10.0)),
        *(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)),
    )
    age = torch.zeros(2, 2)
    segments, later, usable = drive_segments(
        context, theta[:2], leader, count, age, np.random.default_rng(0)
    )
    assert segments.lengths is count and bool(usable.all())
    assert torch.equal(later[:, :5], theta[:2, :5]) and not torch.equal(later, theta[:2])
    assert bool((segments.states[1, 1] == 0).all())
