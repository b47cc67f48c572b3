"""Lags of recorded speeds, against recordings that were made with known ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import evaluation_windows
from asbc.evaluation.observation import Recorded
from asbc.evaluation.protocol import score_windows
from asbc.evaluation.recording_lag import SPREAD, expected_lags, lagged, recording_lags
from asbc.simulator.kinematics import (
    NO_LAG,
    LaggedKinematics,
    LeaderAccelerationKinematics,
    PaperKinematics,
)
from asbc.utils.random import stream

DT, STEPS = 0.2, 75
RULE = LeaderAccelerationKinematics()
LAGS = (0.1, 0.5)


def late(pairs: Pairs, lags: tuple[float, float]) -> Pairs:
    """The pairs with gaps of vehicles whose speeds were recorded late: by brute force, in time.

    A speed that is reported `lag` late to first order hides lag times its change of the way.
    """
    gap = pairs.gap.clone()
    for first, end in zip(pairs.offsets[:-1].tolist(), pairs.offsets[1:].tolist(), strict=True):
        for t in range(first, end):
            hidden = lags[0] * (pairs.leader_speed[t] - pairs.leader_speed[first])
            hidden -= lags[1] * (pairs.speed[t] - pairs.speed[first])
            gap[t] += hidden
    return replace(pairs, gap=gap)


@pytest.fixture(scope="module")
def setting(simulators, drivers, pairs_of):
    simulator = simulators["gaussian"]
    theta = drivers(simulator, 40)
    return simulator, theta, pairs_of(simulator, 40, 200, theta)


def states_of(pairs: Pairs, count: int) -> torch.Tensor:
    columns = [x.view(count, -1) for x in (pairs.gap, pairs.speed, pairs.leader_speed)]
    gap, speed, leader = (column[:, :STEPS] for column in columns)
    return torch.stack([gap, speed, speed - leader], dim=-1)


def test_a_recording_without_lags_has_none(setting) -> None:
    simulator, _, pairs = setting
    found = recording_lags(states_of(pairs, 40), simulator.kinematics, DT)
    assert found.abs().max() < 1e-3


def test_lags_are_recovered_together_and_in_contexts_that_show_them(setting) -> None:
    simulator, _, pairs = setting
    recorded = late(pairs, LAGS)
    rule = simulator.kinematics
    assert expected_lags(recorded, rule, STEPS) == pytest.approx(LAGS, abs=0.01)
    states = states_of(recorded, 40)
    found = recording_lags(states, rule, DT)
    varied = states[..., 1].std(1) > 1.0
    assert int(varied.sum()) > 10
    assert found[varied, 1].mean() == pytest.approx(LAGS[1], abs=0.03)


def test_it_is_ridge_regression_over_all_segments() -> None:
    """Against the normal equations of numpy, on centred columns of each segment."""
    rng = np.random.default_rng(0)
    states = torch.from_numpy(rng.normal(0, 1, (1, 2, 30, 3)).cumsum(2))
    segments = Segments(states, torch.tensor([[30, 18]]), torch.zeros(1, 2))
    expected = (0.05, 0.2)
    rows, target = [], []
    for segment, length in zip(states[0].numpy(), (30, 18), strict=True):
        gap, speed, approach = segment[:length].T
        leader = speed - approach
        moved = np.diff(gap) - DT * (approach[:-1] + approach[1:]) / -2
        error = np.concatenate([[0.0], np.cumsum(moved)])
        columns = np.stack([leader, -speed], axis=1)
        rows.append(columns - columns.mean(0))
        target.append(error - error.mean())
    rows.append(np.eye(2))  # SPREAD and ERROR are the same, so the prior is a row of its own
    target.append(np.array(expected))
    solution = np.linalg.lstsq(np.concatenate(rows), np.concatenate(target), rcond=None)[0]
    found = recording_lags(segments, RULE, DT, expected)[0]
    np.testing.assert_allclose(found, solution.clip(-1, 1), atol=1e-9)


def test_where_nobody_changes_speed_lags_are_those_expected() -> None:
    still = torch.zeros(3, STEPS, 3)
    still[..., 0] = 5 + 0.1 * torch.randn(3, STEPS, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        recording_lags(still, RULE, DT, LAGS), torch.tensor([LAGS] * 3, dtype=torch.float64)
    )
    assert recording_lags(still, RULE, DT).abs().max() < SPREAD / 100


def test_what_pads_a_segment_does_not_matter() -> None:
    states = torch.randn(2, STEPS, 3, generator=torch.Generator().manual_seed(1)).cumsum(1)
    padded = torch.cat([states, torch.full((2, 25, 3), torch.nan)], dim=1)[:, None]
    segments = Segments(padded, torch.full((2, 1), STEPS), torch.zeros(2, 1))
    torch.testing.assert_close(
        recording_lags(segments, RULE, DT), recording_lags(states, RULE, DT)
    )


def test_drives_of_late_recordings_are_predicted_as_recorded(setting) -> None:
    """True drivers predict late recordings as well as others, and badly without their lags."""
    simulator, theta, pairs = setting
    draws = theta[:, None].expand(-1, 50, -1)
    leader = pairs.leader_speed.view(40, -1)
    start = pairs.gap.view(40, -1)[:, 0], pairs.speed.view(40, -1)[:, 0]

    def recording(lags: tuple[float, float]) -> Pairs:
        """Of drivers who react to the gaps that are recorded."""
        each = (torch.full((40,), lag) for lag in lags)
        rule = LaggedKinematics(simulator.kinematics, *each)
        drives = simulator.rollout(theta, leader, *start, stream(5), kinematics=rule)
        found = Pairs.from_series(drives.gap, drives.speed, leader, DT, drives.acceleration)
        return found.select(torch.nonzero(~drives.collided).flatten().tolist())

    def error(data: Pairs, model: Recorded | None, lags=NO_LAG) -> float:
        own = simulator.taught(None, lags)
        windows = evaluation_windows(data, 50, 50, 20, STEPS)
        some = draws[: len(data)]
        return score_windows(own, some, data, windows, observation=model).table["rmse_s"].mean()

    exact, recorded = recording(NO_LAG), recording(LAGS)
    assert len(exact) == len(recorded) == 40
    least = error(exact, None)
    assert error(exact, Recorded(STEPS)) == pytest.approx(least, rel=0.01)
    assert error(recorded, None) > 1.2 * least
    assert error(recorded, Recorded(STEPS), LAGS) == pytest.approx(least, rel=0.05)


def test_the_rule_adds_the_hidden_way_row_by_row() -> None:
    leader = torch.tensor([[8.0, 6.0], [9.0, 6.0], [9.5, 5.0]])  # (time, row)
    states = torch.randn(2, STEPS, 3, generator=torch.Generator().manual_seed(2)).cumsum(1)
    rule = lagged(states, PaperKinematics(), DT, LAGS, torch.float32)
    found = recording_lags(states, PaperKinematics(), DT, LAGS).float()
    plain = PaperKinematics().leader_distance(leader, DT)
    torch.testing.assert_close(
        rule.leader_distance(leader, DT), plain + found[:, 0] * leader.diff(dim=0)
    )
    speeds = leader[:2]
    own = PaperKinematics().follower_distance(*speeds, DT)
    hidden = found[:, 1] * (speeds[1] - speeds[0])
    torch.testing.assert_close(rule.follower_distance(*speeds, DT), own + hidden)
    again = rule.of(torch.tensor([1, 1, 0]))
    assert again.follower_lag.tolist() == found[[1, 1, 0], 1].tolist()
