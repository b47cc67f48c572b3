"""Which samples of a driver a window is predicted from.

`first` is the paper's protocol: the first T_E samples of the pair, for all of its windows.
`latest` is the T_E samples right before each window. `all` is everything of this driver before it:
the pair's own past and the driver's earlier pairs, in the order of the data. None of them holds a
sample at or after a window's start, except that a window with too little before it (T_E samples;
for `all` the shortest segment) uses the first T_E, as `first` does; windows after the context
never have too little.

A long past is cut backwards from its end into segments of T_E samples, so that the newest holds
the latest seconds; a rest that is shorter than the shortest segment is left out.
"""

import math
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


def earlier_pairs(pairs: Pairs) -> list[list[int]]:
    """The same driver's pairs before each pair, in the order of the data, the latest first."""
    seen: dict[str, list[int]] = defaultdict(list)
    found = []
    for index, follower in enumerate(pairs.follower):
        found.append(seen[follower][::-1])
        seen[follower].append(index)
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
    newest = list({name: i for i, name in enumerate(pairs.follower)}.values())
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

    Ages are from the latest sample of the history; those of earlier pairs are unknown, unless
    there is nothing newer. Of more than `max_segments` the newest are taken. Where there is no
    segment of `shortest` samples, the pair's first `steps` are used.

    Args:
        pairs: observed pairs; a driver's are in the order driven.
        pair: position of each window's pair.
        end: first sample that must not be read.
        steps: samples of the longest segment.
        shortest: samples of the shortest.
        max_segments: segments at most.
    """
    before = earlier_pairs(pairs)
    lengths, offsets = pairs.lengths.tolist(), pairs.offsets.tolist()
    rows = []  # of each window: first flat row, length and age of its segments
    for own, stop in zip(list(map(int, pair)), list(map(int, end)), strict=True):
        if not 0 <= stop <= lengths[own]:
            raise InputError(f"pair {pairs.pair_id[own]}: no sample {stop}; it has {lengths[own]}")
        found = []
        for place, drive in enumerate((own, *before[own])):
            last = stop if place == 0 else lengths[drive]
            for start, length in cut(last, steps, shortest):
                age = (last - start - length) * pairs.dt
                found.append((drive, offsets[drive] + start, length, age))
            if len(found) >= max_segments:
                break
        if not found:
            found = [(own, offsets[own], min(steps, lengths[own]), 0.0)]
        newest = found[0][0]
        rows.append([(at, n, age if drive == newest else UNKNOWN) for drive, at, n, age in found])
    return _places([row[:max_segments] for row in rows])


def _places(rows: list[list[tuple[int, int, float]]]) -> Places:
    slots = max(map(len, rows), default=1)
    lengths = torch.zeros(len(rows), slots, dtype=torch.int64)
    first, age = torch.zeros_like(lengths), torch.zeros(len(rows), slots)
    for i, row in enumerate(rows):
        for j, (at, length, seconds) in enumerate(row):
            first[i, j], lengths[i, j], age[i, j] = at, length, seconds
    return Places(first, lengths, age)
