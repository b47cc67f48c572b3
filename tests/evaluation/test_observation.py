"""The error of recorded gaps, against recordings whose error is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, evaluation_windows
from asbc.errors import InputError
from asbc.evaluation.evaluate import evaluate_draws
from asbc.evaluation.observation import RecordedGaps, error_spread, kinematics_of
from asbc.evaluation.predict import predict_windows
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
    assert RecordedGaps(STEPS).spread(simulator, pairs, windows).max() < 1e-4  # float32 gaps


def test_independent_errors_are_recovered_at_every_step(setting) -> None:
    simulator, pairs = setting
    windows = evaluation_windows(pairs, 50, 20, 1, STEPS)
    spread = RecordedGaps(STEPS).spread(simulator, jittered(pairs), windows)
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
    model = RecordedGaps(STEPS)
    exact = predict_windows(simulator, theta, recorded, window, 5, 1e-2, 0)
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

    def held(data: Pairs, model: RecordedGaps | None) -> float:
        table = score_windows(simulator, theta, data, windows, observation=model).table
        return table["coverage95_s"].mean()

    exact = held(pairs, None)
    assert exact == pytest.approx(0.95, abs=0.02)
    assert held(pairs, RecordedGaps(STEPS)) == pytest.approx(exact, abs=2e-3)
    recorded = jittered(pairs, 1.0)
    assert held(recorded, None) < 0.85
    assert 0.94 < held(recorded, RecordedGaps(STEPS)) < 0.98
    assert 0.94 < held(recorded, RecordedGaps(STEPS, "latest")) < 0.98


def test_the_error_is_that_of_the_windows_own_context(setting) -> None:
    """A tracker that becomes bad after the first context is known to `latest` only."""
    simulator, pairs = setting
    late = torch.arange(200).repeat(40) >= STEPS
    recorded = replace(pairs, gap=torch.where(late, jittered(pairs).gap, pairs.gap))
    windows = EvaluationWindows(torch.tensor([0]), torch.tensor([149]), 50)
    assert RecordedGaps(STEPS).spread(simulator, recorded, windows).max() < 1e-4
    assert RecordedGaps(STEPS, "latest").spread(simulator, recorded, windows).min() > 0.3
    # Never a sample at or after the window's start.
    blind = replace(recorded, gap=torch.where(torch.arange(8000) >= 149, 99.0, recorded.gap))
    model = RecordedGaps(STEPS, "latest")
    assert torch.equal(
        model.spread(simulator, recorded, windows), model.spread(simulator, blind, windows)
    )


def test_the_evaluation_uses_it_and_chunks_change_nothing(setting) -> None:
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
