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

from collections import defaultdict
from collections.abc import Sequence

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


def histories(
    pairs: Pairs,
    pair: Tensor | Sequence[int],
    end: Tensor | Sequence[int],
    steps: int,
    shortest: int,
    max_segments: int,
) -> Segments:
    """Everything of each driver before sample `end` of a pair, and from its earlier pairs.

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
    return _segments(pairs, [row[:max_segments] for row in rows], steps)


def _segments(pairs: Pairs, rows: list[list[tuple[int, int, float]]], steps: int) -> Segments:
    slots = max(map(len, rows), default=1)
    lengths = torch.zeros(len(rows), slots, dtype=torch.int64)
    at, age = torch.zeros_like(lengths), torch.zeros(len(rows), slots)
    for i, row in enumerate(rows):
        for j, (first, length, seconds) in enumerate(row):
            at[i, j], lengths[i, j], age[i, j] = first, length, seconds
    step = torch.arange(steps)
    inside = step < lengths[..., None]
    places = torch.where(inside, at[..., None] + step, 0)
    speed = pairs.speed[places]
    states = torch.stack([pairs.gap[places], speed, speed - pairs.leader_speed[places]], dim=-1)
    return Segments(states.masked_fill(~inside[..., None], 0.0), lengths, age)
