"""Training windows never show what they ask for, and are cut where they say."""

import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.posterior.segment_pool import SegmentPool
from asbc.predictive.recorded_windows import RecordedWindows
from asbc.utils.random import stream

CONTEXT, HORIZON, PREFIX = 20, 12, 5


@pytest.fixture(scope="module")
def counted() -> Pairs:
    """Pairs whose gap at sample t of pair i is 1000 i + t, one of them too short."""
    lengths = (60, 40, 30)
    time = torch.cat([torch.arange(n) for n in lengths])
    gap = torch.cat([1000.0 * i + torch.arange(n) for i, n in enumerate(lengths)])
    names = tuple(f"r/{i}" for i in range(3))
    return Pairs(
        pair_id=names,
        follower=names,
        recording=("r",) * 3,
        follower_class=("car",) * 3,
        dt=0.2,
        offsets=torch.tensor([0, 60, 100, 130]),
        gap=gap,
        speed=time.float(),
        leader_speed=2 * time.float(),
        acceleration=3 * time.float(),
    )


@pytest.fixture(scope="module")
def recorded(counted) -> RecordedWindows:
    return RecordedWindows(counted, CONTEXT, HORIZON, PREFIX, "training")


def first_gaps(examples):
    """Of each example: first gap of its context, and gap at its window's start."""
    return examples.states[:, 0, 0], examples.pairs.gap.view(len(examples), -1)[:, PREFIX]


@pytest.mark.parametrize("context", ["random", "first", "latest"])
def test_contexts_end_before_their_windows(context, recorded):
    examples = recorded.draw(500, context, 1.0, stream(0, "x"))
    begin, start = first_gaps(examples)
    pair = (start // 1000).long()
    assert pair.unique().tolist() == [0, 1]  # the third has no room
    assert torch.equal(pair, (begin // 1000).long())
    begin, start = begin % 1000, start % 1000
    assert bool((begin + CONTEXT <= start).all())
    last = torch.tensor([60, 40])[pair] - HORIZON - 1
    assert bool((start <= last).all()) and bool((start[pair == 0] == 47).any())
    if context == "first":
        assert bool((begin == 0).all())
    if context == "latest":
        assert bool((begin == start - CONTEXT).all())
    if context == "random":
        assert len((start - begin)[pair == 0].unique()) > 10


def test_windows_hold_the_samples_that_follow(recorded):
    examples = recorded.draw(8, "random", 1.0, stream(1, "x"))
    gaps = examples.pairs.gap.view(8, -1)
    assert gaps.shape[1] == PREFIX + HORIZON + 1
    assert bool((gaps.diff(dim=1) == 1).all())
    assert examples.windows.start.tolist() == [PREFIX] * 8
    assert examples.states.shape == (8, CONTEXT, 3)


def test_scaling_multiplies_lengths_and_leaves_times(recorded):
    plain = recorded.draw(50, "random", 1.0, stream(2, "x"))
    scaled = recorded.draw(50, "random", 1.2, stream(2, "x"))
    factor = scaled.states[:, 5, 1] / plain.states[:, 5, 1]
    for name in ("gap", "speed", "leader_speed", "acceleration"):
        before, after = (getattr(e.pairs, name).view(50, -1) for e in (plain, scaled))
        torch.testing.assert_close(after, before * factor[:, None])
    torch.testing.assert_close(scaled.states, plain.states * factor[:, None, None])
    assert float(factor.max()) <= 1.2 and float(factor.min()) >= 1 / 1.2
    assert float(factor.std()) > 0.05


def test_the_grid_is_that_of_an_evaluation_after_the_context(recorded):
    begin, start = first_gaps(recorded.grid("latest", stride=10, max_windows=20))
    assert start.tolist() == [20, 30, 40, 1020]
    assert begin.tolist() == [0, 10, 20, 1000]


@pytest.fixture(scope="module")
def with_history(counted) -> RecordedWindows:
    pool = SegmentPool(4, max_segments=3, shortest=1.0, context_steps=CONTEXT)
    return RecordedWindows(counted, CONTEXT, HORIZON, PREFIX, "training", pool)


def test_all_that_came_before_a_window(with_history):
    segments = with_history.grid("all", stride=10, max_windows=20).states
    # Windows at 20, 30, 40 of the first pair and 20 of the second; a rest of a second counts.
    assert segments.lengths.tolist() == [[20, 0], [20, 10], [20, 20], [20, 0]]
    assert segments.states[:, 0, 0, 0].tolist() == [0, 10, 20, 1000]
    assert segments.states[1:3, 1, 0, 0].tolist() == [0, 0]
    assert segments.age[2].tolist() == pytest.approx([0.0, 4.0])


def test_random_histories_end_before_their_windows(with_history):
    examples = with_history.draw(400, "random", 1.0, stream(0, "x"))
    segments, start = examples.states, examples.pairs.gap.view(400, -1)[:, PREFIX]
    newest = segments.states[:, 0, CONTEXT - 1, 0]
    assert bool((newest < start).all())
    assert bool((segments.lengths[:, 0] == CONTEXT).all())
    several = segments.present[:, 1:].any(1).float().mean()
    assert 0.2 < float(several) < 0.5  # half of those that have more than one
    scaled = with_history.draw(400, "random", 1.2, stream(0, "x"))
    factor = scaled.pairs.gap.view(400, -1)[:, PREFIX] / start
    torch.testing.assert_close(scaled.states.states, segments.states * factor[:, None, None, None])


def test_all_needs_a_posterior_of_several_segments(recorded):
    with pytest.raises(InputError, match="history=segments"):
        recorded.draw(4, "all", 1.0, stream(0, "x"))


def test_a_part_of_the_windows_spans_all(recorded):
    grid = recorded.grid("latest", stride=10, max_windows=20)
    begin, start = first_gaps(grid.thinned(2))
    assert start.tolist() == [20, 1020] and begin.tolist() == [0, 1000]
    assert len(grid.thinned(100)) == len(grid)


def test_pairs_without_room_are_refused(counted):
    with pytest.raises(InputError, match="no validation pair has 20 samples of context"):
        RecordedWindows(counted.select([2]), CONTEXT, HORIZON, PREFIX, "validation")
