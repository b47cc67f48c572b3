"""Histories of drivers: nothing of the future, the latest seconds, earlier drives, ages."""

import math
from dataclasses import replace

import pytest
import torch

from asbc.data.history import cut, drives, earlier_pairs, first_segments, histories
from asbc.data.pairs import Pairs
from asbc.errors import InputError

STEPS, SHORTEST = 20, 5


@pytest.fixture
def pairs() -> Pairs:
    """Four pairs, of which the first, third and fourth are one driver's; rows are numbered."""
    lengths = torch.tensor([33, 50, 12, 64])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    gap = torch.arange(int(offsets[-1])).float()
    names = tuple(f"r/{i}" for i in range(4))
    kind = ("car",) * 4
    same = (gap, 2 * gap, gap, gap)
    return Pairs(names, ("r/a", "r/b", "r/a", "r/a"), ("r",) * 4, kind, 0.2, offsets, *same)


def test_a_drive_is_cut_from_its_end():
    for end in range(0, 200):
        pieces = cut(end, STEPS, SHORTEST)
        covered = [t for start, length in pieces for t in range(start, start + length)]
        assert len(set(covered)) == len(covered)  # no sample twice
        left_out = set(range(end)) - set(covered)
        assert len(left_out) < SHORTEST and left_out == set(range(len(left_out)))
        assert all(SHORTEST <= length <= STEPS for _, length in pieces)
        if end >= STEPS:
            assert pieces[0] == (end - STEPS, STEPS)


def test_a_history_holds_the_past_and_earlier_drives(pairs):
    assert earlier_pairs(pairs) == [[], [], [0], [2, 0]]
    found = histories(pairs, [3, 1], [47, 20], STEPS, SHORTEST, max_segments=8)
    assert found.lengths[0].tolist() == [20, 20, 7, 12, 20, 13]
    assert found.lengths[1].tolist() == [20, 0, 0, 0, 0, 0]
    first = int(pairs.offsets[3])
    gaps = [found.states[0, j, :n, 0].tolist() for j, n in enumerate(found.lengths[0])]
    assert gaps[0] == list(range(first + 27, first + 47))
    assert gaps[2] == list(range(first, first + 7))
    assert gaps[3] == list(range(83, 95)) and gaps[4] == list(range(13, 33))
    age = found.age[0].tolist()
    assert age[:3] == pytest.approx([0.0, 4.0, 8.0]) and all(map(math.isnan, age[3:]))
    # What is not there is zero, and the speed's difference is the third state.
    assert found.states[0, 2, 7:].abs().sum() == 0
    assert torch.equal(found.states[0, 0, :, 2], found.states[0, 0, :, 0])


def test_nothing_of_the_future_is_read(pairs):
    end = 47
    poisoned = {}
    for name in ("gap", "speed", "leader_speed", "acceleration"):
        column = getattr(pairs, name).clone()
        column[int(pairs.offsets[3]) + end :] = math.nan
        poisoned[name] = column
    for context in (pairs, replace(pairs, **poisoned)):
        found = histories(context, [3], [end], STEPS, SHORTEST, 8)
        assert bool(torch.isfinite(found.states).all())
    # A driver's later drives are its future, too.
    assert histories(pairs, [0], [33], STEPS, SHORTEST, 8).lengths.tolist() == [[20, 13]]


def test_the_newest_segments_are_kept(pairs):
    found = histories(pairs, [3], [64], STEPS, SHORTEST, max_segments=2)
    assert found.lengths.tolist() == [[20, 20]]
    assert found.states[0, 0, -1, 0] == pairs.gap[-1]


def test_a_window_at_the_start_uses_earlier_drives_or_the_first_samples(pairs):
    found = histories(pairs, [3, 1], [3, 3], STEPS, SHORTEST, 8)
    assert found.lengths.tolist() == [[12, 20, 13], [20, 0, 0]]
    assert found.age[0, 0] == 0 and bool(found.age[0, 1:].isnan().all())
    with pytest.raises(InputError, match="pair r/1: no sample 51; it has 50"):
        histories(pairs, [1], [51], STEPS, SHORTEST, 8)


def test_times_of_one_clock_say_the_order_and_the_ages(pairs):
    # The driver's pairs 0, 2, 3 begin at 60, 0 and 30 s: 6.6, 2.4 and 12.8 s long.
    timed = replace(pairs, begin=torch.tensor([60.0, 5.0, 0.0, 30.0]).double())
    assert drives(timed)[0] == ([2, 3, 0], True)
    assert earlier_pairs(timed) == [[3, 2], [], [], [2]]
    found = histories(timed, [0], [25], STEPS, SHORTEST, 8)
    assert found.lengths.tolist() == [[20, 5, 20, 20, 20, 12]]
    # From the last sample known, at 60 + 24 * 0.2 s.
    last = [60 + 24 * 0.2, 60 + 4 * 0.2, *(30 + i * 0.2 for i in (63, 43, 23)), 11 * 0.2]
    expected = torch.tensor([[last[0] - t for t in last]])
    torch.testing.assert_close(found.age, expected, rtol=0, atol=1e-5)


def test_without_a_common_clock_ids_say_the_order(pairs):
    # All begin at 0: no clock is common to them, and 10 comes after 9.
    named = replace(pairs, begin=torch.zeros(4).double(), pair_id=("r/10", "r/1", "r/9", "r/8"))
    assert drives(named)[0] == ([3, 2, 0], False)
    found = histories(named, [0], [33], STEPS, SHORTEST, 8)
    assert bool(found.age[0, 2:].isnan().all()) and bool(found.age[0, :2].isfinite().all())


def test_first_segments_are_contexts_of_pairs_that_may_be_shorter(pairs):
    found = first_segments(pairs, STEPS)
    assert found.lengths.tolist() == [[20], [20], [12], [20]] and bool((found.age == 0).all())
    long = pairs.select([0, 1, 3])
    assert torch.equal(found.states[[0, 1, 3], 0], long.contexts(STEPS))
    assert torch.equal(found.states[2, 0, :12], pairs.select([2]).contexts(12)[0])


def test_a_driver_with_too_little_is_named(pairs):
    short = pairs.select([2])
    with pytest.raises(InputError, match=r"pair r/2 has 12 samples, but a segment needs 15 \(3 s"):
        histories(short, [0], [12], STEPS, 15, 8)
