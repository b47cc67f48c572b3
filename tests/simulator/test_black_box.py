"""Black boxes: the same trajectories as the simulator inside, failures flagged, reasons given."""

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.data.windows import LeaderWindows, evaluation_windows
from asbc.errors import InputError
from asbc.evaluation.predict import predict_windows
from asbc.simulator import Prior
from asbc.simulator.black_box import BlackBoxSimulator, require_likelihood
from asbc.simulator.residuals import GaussianResidual, NoResidual
from asbc.simulator.robust import ContextSimulator, simulate_drivers
from asbc.utils.random import stream


class Boxed:
    """Our own simulator, as if only its trajectories were known."""

    def __init__(self, inner, broken=lambda theta: torch.zeros(len(theta), dtype=torch.bool)):
        self.inner, self.broken = inner, broken
        self.parameters = inner.parameter_names

    def simulate(self, theta, leader_speed, gap, speed, dt, rng):
        states = self.inner.rollout(theta, leader_speed, gap, speed, rng, check=False).states
        states = states.clone()
        states[self.broken(theta), 7:] = torch.nan
        return states


def boxed(inner, *broken) -> BlackBoxSimulator:
    return BlackBoxSimulator(Boxed(inner, *broken), inner.prior, dt=inner.dt)


@pytest.fixture
def drive():
    leader = 12 + torch.linspace(0, 3, 40).sin().expand(30, -1)
    return leader, torch.full((30,), 25.0), leader[:, 0]


def test_a_boxed_simulator_drives_as_it_does_unboxed(build_simulator, drive):
    inner = build_simulator("matern")
    theta = inner.prior.sample(30, stream(0, "theta"))
    leader = torch.cat([drive[0], drive[0][:, -1:]], dim=1)  # a box also drives the last decision
    plain = inner.rollout(theta, leader, *drive[1:], stream(0, "noise"))
    box = boxed(inner).rollout(theta, *drive, stream(0, "noise"))
    assert torch.equal(box.states, plain.states[:, :-1])
    assert torch.equal(box.collided, plain.collided)
    # The convention of data and simulator: v[t + 1] = v[t] + a[t] dt.
    torch.testing.assert_close(box.acceleration, plain.acceleration[:, :-1], atol=2e-5, rtol=0)


def test_behind_a_leader_who_is_watched_it_drives_at_the_end(build_simulator, drive):
    simulator = boxed(build_simulator("matern"))
    theta = simulator.prior.sample(30, stream(0, "theta"))
    leader, gap, speed = drive
    whole = simulator.rollout(theta, leader, gap, speed, stream(0, "noise"))
    drives = simulator.begin(theta, gap, speed, 40, stream(0, "noise"))
    for now in leader[0].tolist():
        drives.follow(now)
    for ours, theirs in zip(drives.rollout(), whole, strict=True):
        assert torch.equal(ours, theirs)


def test_failed_simulations_are_flagged_held_and_announced(build_simulator, drive, caplog):
    inner = build_simulator("gaussian")
    theta = inner.prior.sample(30, stream(0, "theta"))
    slow = theta[:, 0] < 30
    rollout = boxed(inner, lambda t: t[:, 0] < 30).rollout(theta, *drive, stream(0, "noise"))
    plain = boxed(inner).rollout(theta, *drive, stream(0, "noise"))
    assert 0 < slow.sum() < 30 and torch.equal(rollout.collided, slow | plain.collided)
    assert all(series.isfinite().all() for series in rollout)
    assert torch.equal(rollout.states[~slow], plain.states[~slow])
    held = rollout.states[slow]
    assert torch.equal(held[:, :7], plain.states[slow][:, :7])
    assert torch.equal(held[:, 7:], held[:, 6:7].expand_as(held[:, 7:]))
    assert f"{int(slow.sum())} of 30 simulations failed" in caplog.text


def test_training_and_checks_see_no_failed_simulation(build_simulator, drive):
    inner = build_simulator("gaussian")
    windows = LeaderWindows(*drive, torch.arange(30), torch.arange(30))
    simulator = ContextSimulator(boxed(inner, lambda t: t[:, 0] < 30), drift=0.1)
    drivers = simulate_drivers(simulator, windows, 50, seed=0)
    assert len(drivers.theta) == 50 and drivers.states.isfinite().all()
    # Nothing stands still from the seventh step on, as a failed one would.
    assert (drivers.states[:, 7:].std(1) > 0).all()


def test_all_failing_is_an_error_not_a_loop(build_simulator, drive):
    inner = build_simulator("gaussian")
    windows = LeaderWindows(*drive, torch.arange(30), torch.arange(30))
    with pytest.raises(InputError, match="only 0 of"):
        simulate_drivers(boxed(inner, lambda t: t[:, 0] > 0), windows, 10, seed=0)


def test_predictions_start_no_residual_where_there_is_none(build_simulator, pairs_of):
    inner = build_simulator("none")
    theta = inner.prior.sample(3, stream(0, "theta"))
    pairs = pairs_of(inner, theta, 60)
    chosen = evaluation_windows(pairs, horizon=20, stride=20, max_windows=2)
    draws = theta[:, None].expand(-1, 4, -1)
    ours = predict_windows(boxed(inner), draws, pairs, chosen, 5, 0.01, seed=0)
    assert torch.equal(ours.gap, predict_windows(inner, draws, pairs, chosen, 0, 0.0, seed=0).gap)


def test_what_needs_a_likelihood_says_why_it_is_refused(build_simulator, drive):
    simulator = boxed(build_simulator("gaussian"))
    theta, states = torch.ones(1, 6), torch.ones(1, 5, 3)
    for ask in (
        lambda: simulator.log_likelihood(theta, states),
        lambda: simulator.residuals(theta, states),
        lambda: simulator.censored(states),
        lambda: simulator.law_acceleration(theta, *states[..., 0, :].unbind(-1)),
    ):
        with pytest.raises(InputError, match="Boxed is a black box without"):
            ask()
    with pytest.raises(InputError, match="baseline=unpooled: Boxed is a black box"):
        require_likelihood(simulator, "baseline=unpooled")
    require_likelihood(build_simulator("gaussian"), "baseline=unpooled")


@pytest.mark.parametrize("name", ["unpooled", "hierarchical", "b_idm", "ma_idm", "point_fit"])
def test_baselines_that_need_a_likelihood_refuse(name, build_simulator):
    from types import SimpleNamespace

    method = build(compose("baseline", [f"baseline={name}"]).baseline)
    task = SimpleNamespace(simulator=boxed(build_simulator("gaussian")))
    with pytest.raises(InputError, match=f"baseline={name}: Boxed is a black box"):
        method.fit(task)


def test_laplace_refuses(build_simulator):
    from asbc.posterior.laplace import Laplace

    with pytest.raises(InputError, match="transform=laplace"):
        Laplace(boxed(build_simulator("gaussian")))


def test_a_box_that_does_not_fit_is_refused(build_simulator, drive):
    inner = build_simulator("gaussian")
    with pytest.raises(InputError, match="Boxed has the parameters"):
        BlackBoxSimulator(Boxed(inner), build_simulator("matern").prior)
    with pytest.raises(InputError, match="no residual can be added"):
        BlackBoxSimulator(Boxed(inner), inner.prior, residual=GaussianResidual())

    class Short(Boxed):
        def simulate(self, *arguments):
            return super().simulate(*arguments)[:, :-1]

    theta = inner.prior.sample(30, stream(0, "theta"))
    with pytest.raises(InputError, match=r"shape \(30, 40, 3\); expected \(30, 41, 3\)"):
        BlackBoxSimulator(Short(inner), inner.prior).rollout(theta, *drive, stream(0, "noise"))


def test_no_residual_is_the_law_alone(build_simulator, drive):
    deterministic = build_simulator("none")
    theta = deterministic.prior.sample(30, stream(0, "theta"))
    alone = deterministic.rollout(theta, *drive, stream(0, "noise"))
    noisy = build_simulator("gaussian")
    quiet = torch.cat([theta, torch.zeros(30, 1)], dim=1)
    expected = noisy.rollout(quiet, *drive, stream(0, "noise"), check=False)
    assert torch.equal(alone.states, expected.states)
    assert NoResidual().sample(torch.empty(2, 0), 3, 0.2, np.random.default_rng(0)).shape == (2, 3)


def test_prior_of_a_box_is_its_own(build_simulator):
    inner = build_simulator("gaussian")
    assert isinstance(boxed(inner).prior, Prior) and boxed(inner).dim == 6
