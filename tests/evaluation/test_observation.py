"""The error of recordings, against recordings whose error is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, evaluation_windows
from asbc.errors import InputError
from asbc.evaluation.evaluate import evaluate_draws
from asbc.evaluation.observation import (
    STANDING,
    UNSEEN,
    Errors,
    Recorded,
    error_spread,
    kinematics_of,
    recorded,
    standing_error,
)
from asbc.evaluation.predict import drive_windows, predict_windows
from asbc.evaluation.protocol import EvaluationSettings, score_windows
from asbc.simulator.kinematics import (
    LeaderAccelerationKinematics,
    PaperKinematics,
    SumoKinematics,
)

STEPS, JITTER = 75, 0.4
RULES = (PaperKinematics, LeaderAccelerationKinematics, SumoKinematics)


def jittered(pairs: Pairs, sd: float = JITTER, seed: int = 0) -> Pairs:
    """The pairs as a tracker with independent errors of each gap would record them."""
    noise = np.random.default_rng(seed).normal(0, sd, len(pairs.gap))
    return replace(pairs, gap=pairs.gap + torch.from_numpy(noise).float())


@pytest.fixture(scope="module")
def setting(simulators, drivers, pairs_of):
    simulator = simulators["gaussian"]
    return simulator, pairs_of(simulator, 40, 200, drivers(simulator, 40))


@pytest.mark.parametrize("rule", RULES)
def test_a_perfect_recording_has_no_error(rule) -> None:
    """Whichever way gaps follow from speeds, as long as it is the rule they were made with."""
    rng = np.random.default_rng(3)
    speed = torch.from_numpy(10 + rng.normal(0, 0.2, (5, STEPS)).cumsum(1))
    leader = torch.from_numpy(10 + rng.normal(0, 0.2, (5, STEPS)).cumsum(1))
    gap = torch.full((5, STEPS), 20.0, dtype=torch.float64)
    for t in range(STEPS - 1):
        travelled = rule().leader_distance(leader[:, t : t + 2].T, 0.2)[0]
        own = rule().follower_distance(speed[:, t], speed[:, t + 1], 0.2)
        gap[:, t + 1] = gap[:, t] + travelled - own
    states = torch.stack([gap, speed, speed - leader], dim=-1)
    assert error_spread(states, rule(), 0.2, 50).max() < 1e-10
    others = [other for other in RULES if other is not rule]
    assert all(error_spread(states, other(), 0.2, 50).min() > 1e-3 for other in others)


def test_a_perfect_recording_is_predicted_as_without_the_model(setting) -> None:
    simulator, pairs = setting
    windows = evaluation_windows(pairs, 50, 20, 20, STEPS)
    assert Recorded(STEPS).spread(simulator, pairs, windows).max() < 1e-4  # float32 gaps


def test_independent_errors_are_recovered_at_every_step(setting) -> None:
    simulator, pairs = setting
    windows = evaluation_windows(pairs, 50, 20, 1, STEPS)
    spread = Recorded(STEPS).spread(simulator, jittered(pairs), windows)
    assert spread.shape == (40, 50)
    # e_k - e_0 of two independent errors.
    found = spread.square().mean(0).sqrt()
    np.testing.assert_allclose(found, JITTER * np.sqrt(2), rtol=0.08)


def test_a_bias_of_the_speed_grows_with_the_step_and_is_held_where_little_is_known() -> None:
    """A relative speed recorded 0.1 m/s too high is missed by 0.1 k dt after k steps."""
    states = torch.zeros(1, 30, 3)
    states[..., 0], states[..., 1], states[..., 2] = 20.0, 10.0, -0.1
    spread = error_spread(states, PaperKinematics(), 0.2, 40)[0]
    steps = np.minimum(np.arange(1, 41), 20)  # two thirds of the context
    np.testing.assert_allclose(spread, 0.1 * 0.2 * steps, rtol=1e-4)


def test_added_errors_have_the_spread_of_the_recording_and_half_is_common(setting) -> None:
    simulator, pairs = setting
    recorded = jittered(pairs)
    theta = torch.tensor([[30.0, 2.0, 1.5, 1.2, 1.8, 1e-6]]).expand(40, 4000, -1)
    window = EvaluationWindows(torch.tensor([3]), torch.tensor([STEPS]), 50)
    model = Recorded(STEPS)
    # Of recordings whose gaps jitter, lags of their speeds are seen too, small ones.
    late = model.kinematics(simulator, recorded, window)
    assert 0 < float(late.follower_lag.abs()) < 0.3
    own = theta[window.pair]
    exact = drive_windows(simulator, own, recorded, window, 5, 1e-2, 0, late)
    noisy = predict_windows(simulator, theta, recorded, window, 5, 1e-2, 0, model)
    error = (noisy.gap - exact.gap)[0]
    assert bool((error[:, 0] == 0).all())  # the start is the recorded gap
    spread = model.spread(simulator, recorded, window)[0]
    np.testing.assert_allclose(error[:, 1:].std(0), spread, rtol=0.05)
    correlation = np.corrcoef(error[:, 1:].T.numpy())
    np.testing.assert_allclose(correlation[np.triu_indices(50, 1)], 0.5, atol=0.06)
    for name in ("speed", "approach_rate", "acceleration", "collided"):
        assert torch.equal(getattr(noisy, name), getattr(exact, name))


def test_coverage_of_recorded_gaps_becomes_right(simulators, drivers, pairs_of) -> None:
    """The true driver predicts its gap as wide as it is, and a recorded one too narrow.

    With the model it is slightly too wide: within the window the driver corrects some of the error
    with which it was recorded at the start.
    """
    simulator = simulators["gaussian"]
    truth = drivers(simulator, 120)
    pairs, theta = pairs_of(simulator, 120, 200, truth), truth[:, None].expand(-1, 200, -1)
    windows = evaluation_windows(pairs, 50, 50, 20, STEPS)

    def held(data: Pairs, model: Recorded | None) -> float:
        table = score_windows(simulator, theta, data, windows, observation=model).table
        return table["coverage95_s"].mean()

    exact = held(pairs, None)
    assert exact == pytest.approx(0.95, abs=0.02)
    assert held(pairs, Recorded(STEPS)) == pytest.approx(exact, abs=2e-3)
    recorded = jittered(pairs, 1.0)
    assert held(recorded, None) < 0.85
    assert 0.94 < held(recorded, Recorded(STEPS)) < 0.98
    assert 0.94 < held(recorded, Recorded(STEPS, "latest")) < 0.98


def test_the_error_is_that_of_the_windows_own_context(setting) -> None:
    """A tracker that becomes bad after the first context is known to `latest` only."""
    simulator, pairs = setting
    late = torch.arange(200).repeat(40) >= STEPS
    recorded = replace(pairs, gap=torch.where(late, jittered(pairs).gap, pairs.gap))
    windows = EvaluationWindows(torch.tensor([0]), torch.tensor([149]), 50)
    assert Recorded(STEPS).spread(simulator, recorded, windows).max() < 1e-4
    assert Recorded(STEPS, "latest").spread(simulator, recorded, windows).min() > 0.3
    # Never a sample at or after the window's start.
    blind = replace(recorded, gap=torch.where(torch.arange(8000) >= 149, 99.0, recorded.gap))
    model = Recorded(STEPS, "latest")
    assert torch.equal(
        model.spread(simulator, recorded, windows), model.spread(simulator, blind, windows)
    )


def test_the_evaluation_uses_it_and_chunks_change_nothing(setting, monkeypatch) -> None:
    # Without lags of the speeds drives are the same, and only gaps are recorded otherwise.
    monkeypatch.setattr("asbc.evaluation.recording_lag.LARGEST", 0.0)
    simulator, pairs = setting
    some = jittered(pairs).select(range(4))
    theta = simulator.prior.sample(4 * 8, np.random.default_rng(0)).view(4, 8, -1)
    small = EvaluationSettings(samples=8, bootstrap=20, observation="recorded")
    whole, parts, exact = (
        evaluate_draws(simulator, theta, some, STEPS, settings)
        for settings in (small, replace(small, chunk=3), replace(small, observation="exact"))
    )
    pd.testing.assert_frame_equal(whole.windows, parts.windows)
    assert (whole.windows["es_s"] != exact.windows["es_s"]).all()
    assert whole.windows["es_v"].equals(exact.windows["es_v"])
    assert (whole.cases.high[:, 0, 1:] != exact.cases.high[:, 0, 1:]).all()


def test_a_black_box_moves_by_its_speeds_and_unknown_models_are_refused() -> None:
    assert isinstance(kinematics_of(object()), LeaderAccelerationKinematics)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="evaluation.observation=noisy; expected one of exact"):
        EvaluationSettings(observation="noisy")


def test_standing_drivers_are_recorded_with_the_error_of_their_speed(setting) -> None:
    """A tracker that sees 0.02 m/s of jitter at a light: cut at 0, and felt in accelerations."""
    simulator, _ = setting
    rng, sd = np.random.default_rng(1), 0.02
    speed = torch.from_numpy(rng.normal(0, sd, (200, 150))).float().clamp_min(0)
    zero, gap = torch.zeros(200, 150), torch.full((200, 150), 2.0)
    pairs = Pairs.from_series(gap, speed, zero, 0.2, speed.diff(dim=1, append=zero[:, :1]) / 0.2)
    windows = EvaluationWindows(torch.arange(200), torch.full((200,), STEPS), 50)
    error = standing_error(pairs.contexts(STEPS))
    np.testing.assert_allclose(error.square().mean().sqrt(), sd, rtol=0.03)
    still = torch.tensor([[30.0, 2.5, 1.5, 1.2, 1.8, 1e-6]]).expand(200, 400, -1)

    def held(model: Recorded | None) -> pd.Series:
        table = score_windows(simulator, still, pairs, windows, observation=model).table
        return table[["coverage95_v", "coverage95_a"]].mean()

    assert (held(None) < 0.7).all()
    assert held(Recorded(STEPS)).between(0.93, 0.985).all()


def test_on_the_road_speeds_stay_and_the_start_is_the_recorded_one(setting) -> None:
    simulator, pairs = setting
    theta = torch.tensor([[30.0, 2.0, 1.5, 1.2, 1.8, 0.2]]).expand(40, 5, -1)
    windows = EvaluationWindows(torch.tensor([3]), torch.tensor([STEPS]), 50)
    exact = predict_windows(simulator, theta, pairs, windows, 0, 1e-2, 0)
    errors = Errors(torch.zeros(1, 5, 50), torch.full((1, 5, 51), 0.5))
    noisy = recorded(exact, errors, 0.2)
    assert torch.equal(noisy.speed[..., 0], exact.speed[..., 0])
    assert exact.speed.min() > STANDING
    for name in ("speed", "approach_rate", "acceleration"):
        assert torch.equal(getattr(noisy, name), getattr(exact, name))
    moving = pairs.contexts(STEPS)
    moving[..., 1] = moving[..., 1].clamp_min(1.0)
    assert bool((standing_error(moving) == UNSEEN).all())
    moving[:, :5, 1] = 0.0  # who stands without jitter is recorded without
    assert not bool(standing_error(moving).any())


def test_at_standstill_speeds_are_errors_and_accelerations_follow(setting) -> None:
    simulator, pairs = setting
    theta = torch.tensor([[30.0, 2.0, 1.5, 1.2, 1.8, 0.2]]).expand(40, 5, -1)
    windows = EvaluationWindows(torch.tensor([3]), torch.tensor([STEPS]), 50)
    exact = predict_windows(simulator, theta, pairs, windows, 0, 1e-2, 0)
    stop = exact.speed.clone()
    stop[..., 20:30] = 0.0
    driven = torch.nn.functional.pad(stop.diff(dim=-1) / 0.2, (0, 1))
    exact = exact._replace(speed=stop, acceleration=driven)
    noisy = recorded(exact, Errors(torch.zeros(1, 5, 50), torch.full((1, 5, 51), 0.5)), 0.2)
    change = torch.zeros_like(stop)
    change[..., 20:30] = 0.5
    torch.testing.assert_close(noisy.speed - exact.speed, change)
    torch.testing.assert_close(noisy.approach_rate - exact.approach_rate, change)
    jump = noisy.acceleration - exact.acceleration
    np.testing.assert_allclose(jump[..., [19, 29]], [[[2.5, -2.5]] * 5], atol=1e-5)
    # The recorded acceleration is the change of the recorded speed.
    change = noisy.speed.diff(dim=-1) / 0.2
    torch.testing.assert_close(noisy.acceleration[..., :-1], change, rtol=0, atol=1e-3)
