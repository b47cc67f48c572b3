"""Which samples of a driver a window is predicted from.

`first` is the paper's protocol: the first T_E samples of the pair, for all of its windows.
`latest` is the T_E samples right before each window. `all` is everything of this driver before it:
the pair's own past and the driver's earlier pairs. None of them holds a sample at or after a
window's start, except that a window with too little before it (T_E samples; for `all` the
shortest segment) uses the first T_E, as `first` does; windows after the context never have too
little.

Which of a driver's pairs are earlier is said by their times, if these can be of one clock: no two
of them overlap. Otherwise their ids say it, "7-2" before "7-10", and how old they are is unknown.

A long past is cut backwards from its end into segments of T_E samples, so that the newest holds
the latest seconds; a rest that is shorter than the shortest segment is left out.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import gather
from asbc.errors import InputError

FIRST, LATEST, ALL = "first", "latest", "all"
CONTEXTS = (FIRST, LATEST, ALL)
UNKNOWN = float("nan")


def check_context(name: str, section: str = "evaluation") -> None:
    """Raise unless `name` is one of `CONTEXTS`."""
    if name not in CONTEXTS:
        raise InputError(f"{section}.context={name}; expected one of {', '.join(CONTEXTS)}")


def shortest_steps(seconds: float, dt: float) -> int:
    """Samples that a segment of at least so many seconds has.

    Example:
        >>> shortest_steps(3.0, 0.2), shortest_steps(3.1, 0.2)
        (15, 16)
    """
    return max(2, math.ceil(round(seconds / dt, 6)))


def context_start(context: str, start: Tensor, steps: int) -> Tensor:
    """First sample of the single segment that a window at each `start` is predicted from.

    Example:
        >>> context_start("latest", torch.tensor([0, 40, 75, 95]), 75)
        tensor([ 0,  0,  0, 20])
        >>> context_start("first", torch.tensor([0, 40, 75, 95]), 75)
        tensor([0, 0, 0, 0])
    """
    return torch.zeros_like(start) if context == FIRST else (start - steps).clamp(min=0)


def context_states(pairs: Pairs, pair: Tensor, start: Tensor, steps: int) -> Tensor:
    """Gap, speed and approach rate of `steps` samples from each start, (context, steps, 3)."""
    gap, speed, leader = (
        gather(column, pairs.offsets, pair, start, steps)
        for column in (pairs.gap, pairs.speed, pairs.leader_speed)
    )
    return torch.stack([gap, speed, speed - leader], dim=-1)


def cut(end: int, steps: int, shortest: int) -> list[tuple[int, int]]:
    """Start and length of the segments of samples 0 .. end - 1, the newest first.

    Example:
        >>> cut(170, 75, 15)
        [(95, 75), (20, 75), (0, 20)]
        >>> cut(160, 75, 15), cut(14, 75, 15)
        ([(85, 75), (10, 75)], [])
    """
    pieces = [(stop - steps, steps) for stop in range(end, steps - 1, -steps)]
    rest = end - steps * len(pieces)
    return [*pieces, (0, rest)] if rest >= shortest else pieces


def drives(pairs: Pairs) -> list[tuple[list[int], bool]]:
    """Each driver's pairs in the order driven, and whether their times are of one clock."""
    of_driver: dict[str, list[int]] = defaultdict(list)
    for index, follower in enumerate(pairs.follower):
        of_driver[follower].append(index)
    begin = None if pairs.begin is None else pairs.begin.tolist()
    return [_in_order(pairs, own, begin) for own in of_driver.values()]


def _in_order(pairs: Pairs, own: list[int], begin: list[float] | None) -> tuple[list[int], bool]:
    if begin is not None:
        order = sorted(own, key=lambda i: begin[i])
        ends = [begin[i] + (int(pairs.lengths[i]) - 1) * pairs.dt for i in order]
        apart = [begin[i] - end for i, end in zip(order[1:], ends, strict=False)]
        if min(apart, default=pairs.dt) >= pairs.dt / 2:
            return order, True
    return sorted(own, key=lambda i: _natural(pairs.pair_id[i])), False


def _natural(name: str) -> list[str | int]:
    """A key by which numbers in names are in their own order."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))]


def earlier_pairs(pairs: Pairs) -> list[list[int]]:
    """The same driver's pairs before each pair, the latest first."""
    found: list[list[int]] = [[] for _ in pairs.pair_id]
    for order, _ in drives(pairs):
        for place, index in enumerate(order):
            found[index] = order[:place][::-1]
    return found


class Places(NamedTuple):
    """Where the segments of histories lie in the flat columns of pairs."""

    first: Tensor  # (B, J) int64, row with which a segment begins
    lengths: Tensor  # (B, J) int64, its samples; 0: no segment in this slot
    age: Tensor  # (B, J) see `asbc.data.segments`

    def gather(self, column: Tensor, steps: int) -> Tensor:
        """A flat column's values (B, J, steps); 0 beyond a segment's length."""
        step = torch.arange(steps)
        inside = step < self.lengths[..., None]
        return column[torch.where(inside, self.first[..., None] + step, 0)].where(inside, 0)

    def segments(self, pairs: Pairs, steps: int) -> Segments:
        """The segments themselves, padded to `steps`."""
        columns = (pairs.gap, pairs.speed, pairs.leader_speed)
        gap, speed, leader = (self.gather(column, steps) for column in columns)
        return Segments(torch.stack([gap, speed, speed - leader], dim=-1), self.lengths, self.age)


def single_segments(pairs: Pairs, pair: Tensor, start: Tensor, steps: int) -> Segments:
    """`steps` samples from each start, or as many as the pair has left; one segment each."""
    lengths = (pairs.lengths[pair] - start).clamp(max=steps)[:, None]
    first = (pairs.offsets[pair] + start)[:, None]
    return Places(first, lengths, torch.zeros(first.shape)).segments(pairs, steps)


def first_segments(pairs: Pairs, steps: int) -> Segments:
    """The first `steps` samples of each pair, or all of a shorter one; a segment per pair."""
    every = torch.arange(len(pairs))
    return single_segments(pairs, every, torch.zeros_like(every), steps)


def histories(
    pairs: Pairs,
    pair: Tensor | Sequence[int],
    end: Tensor | Sequence[int],
    steps: int,
    shortest: int,
    max_segments: int,
) -> Segments:
    """Everything of each driver before sample `end` of a pair, and from its earlier pairs.

    Arguments as for `history_places`.
    """
    return history_places(pairs, pair, end, steps, shortest, max_segments).segments(pairs, steps)


def driver_places(pairs: Pairs, steps: int, shortest: int, max_segments: int) -> Places:
    """Everything of each driver, in the order in which drivers first appear in the pairs."""
    newest = [order[-1] for order, _ in drives(pairs)]
    ends = pairs.lengths[newest]
    return history_places(pairs, newest, ends, steps, shortest, max_segments)


def history_places(
    pairs: Pairs,
    pair: Tensor | Sequence[int],
    end: Tensor | Sequence[int],
    steps: int,
    shortest: int,
    max_segments: int,
) -> Places:
    """Where everything of each driver before sample `end` of a pair is, earlier pairs included.

    Ages are from the latest sample of the history; those of other pairs than this one's are
    unknown without a common clock. Of more than `max_segments` the newest are taken. Where there
    is no segment of `shortest` samples, the pair's first `steps` are used.

    Args:
        pairs: observed pairs.
        pair: position of each window's pair.
        end: first sample that must not be read.
        steps: samples of the longest segment.
        shortest: samples of the shortest.
        max_segments: segments at most.
    """
    before, begin = earlier_pairs(pairs), _begins(pairs)
    lengths, offsets = pairs.lengths.tolist(), pairs.offsets.tolist()
    rows = []  # of each window: first flat row, length and age of its segments
    for own, stop in zip(list(map(int, pair)), list(map(int, end)), strict=True):
        if not 0 <= stop <= lengths[own]:
            raise InputError(f"pair {pairs.pair_id[own]}: no sample {stop}; it has {lengths[own]}")
        found: list[tuple[int, int, int]] = []  # pair, start and length
        for drive in (own, *before[own]):
            last = stop if drive == own else lengths[drive]
            found += [(drive, *piece) for piece in cut(last, steps, shortest)]
            if len(found) >= max_segments:
                break
        found = found[:max_segments] or [(own, 0, min(steps, lengths[own]))]
        newest, start, length = found[0]
        if length < shortest:
            raise InputError(
                f"pair {pairs.pair_id[own]} has {lengths[own]} samples, but a segment needs "
                f"{shortest} ({shortest * pairs.dt:g} s); raise data.min_duration to leave it out"
            )
        row = []
        for drive, first, samples in found:
            between = begin[newest] - begin[drive] if drive != newest else 0.0
            age = between + (start + length - first - samples) * pairs.dt
            row.append((offsets[drive] + first, samples, age))
        rows.append(row)
    return _places(rows)


def _begins(pairs: Pairs) -> list[float]:
    """Time of each pair's first sample; NaN where it is on no clock."""
    begin = [UNKNOWN] * len(pairs)
    if pairs.begin is not None:
        times = pairs.begin.tolist()
        for order, one_clock in drives(pairs):
            for i in order if one_clock else ():
                begin[i] = times[i]
    return begin


def _places(rows: list[list[tuple[int, int, float]]]) -> Places:
    slots = max(map(len, rows), default=1)
    lengths = torch.zeros(len(rows), slots, dtype=torch.int64)
    first, age = torch.zeros_like(lengths), torch.zeros(len(rows), slots)
    for i, row in enumerate(rows):
        for j, (at, length, seconds) in enumerate(row):
            first[i, j], lengths[i, j], age[i, j] = at, length, seconds
    return Places(first, lengths, age)
