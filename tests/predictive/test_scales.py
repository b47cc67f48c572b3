"""What the scores of gap, speed and acceleration are counted in."""

import math

import pytest
import torch

from asbc.predictive.recorded_windows import RecordedWindows


def test_scores_are_counted_in_those_of_drivers_who_keep_their_speed(
    simulators, typical, pairs_of, small
):
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, typical["gaussian"].expand(5, -1), 80)
    recorded = RecordedWindows(pairs, 20, small.horizon, small.residual_prefix_steps, "training")
    grid = recorded.grid("first", 10, 3)
    starts = [20 + 10 * k for k in range(3) if 20 + 10 * k + small.horizon < 80]
    sums, count = [0.0, 0.0, 0.0], 0
    for pair in range(len(pairs)):
        first, last = pairs.offsets[pair : pair + 2].tolist()
        gap, speed, leader, acceleration = (
            column[first:last].tolist()
            for column in (pairs.gap, pairs.speed, pairs.leader_speed, pairs.acceleration)
        )
        for start in starts:
            kept, place, squares = speed[start], gap[start], [0.0, 0.0, 0.0]
            for t in range(start + 1, start + small.horizon + 1):
                place += (leader[t - 1] - kept) * pairs.dt  # the paper's update
                misses = (gap[t] - place, speed[t] - kept, acceleration[t])
                squares = [s + miss**2 for s, miss in zip(squares, misses, strict=True)]
            sums = [a + math.sqrt(s) for a, s in zip(sums, squares, strict=True)]
            count += 1
    assert count == len(grid)
    begin = torch.tensor([2.0, 1.0, 0.5])
    found = small.scales(simulator, [grid], begin)
    expected = torch.tensor([value / count for value in sums])
    torch.testing.assert_close(found / found[0], expected / expected[0], rtol=1e-4, atol=0)
    assert float((begin / found).mean()) == pytest.approx(1)


def test_recordings_in_which_nobody_moves_have_scales(simulators, typical, pairs_of, small):
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, typical["gaussian"].expand(2, -1), 80)
    for column in (pairs.speed, pairs.leader_speed, pairs.acceleration):
        column.zero_()
    pairs.gap.fill_(3.0)
    recorded = RecordedWindows(pairs, 20, small.horizon, small.residual_prefix_steps, "training")
    found = small.scales(simulator, [recorded.grid("first", 10, 3)], torch.ones(3))
    torch.testing.assert_close(found, torch.ones(3))
