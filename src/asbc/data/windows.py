"""Windows over pairs: leader windows to simulate behind, evaluation windows to score on."""

from typing import NamedTuple

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.errors import InputError


class LeaderWindows(NamedTuple):
    """Leader speed profiles with the state in which the follower behind them starts."""

    leader_speed: Tensor  # (windows, steps)
    gap: Tensor  # (windows,)
    speed: Tensor  # (windows,)
    pair: Tensor  # (windows,) int64, position in the Pairs the window was cut from
    start: Tensor  # (windows,) int64, first sample within that pair

    def take(self, index: Tensor) -> "LeaderWindows":
        """The windows at `index`, in that order."""
        return LeaderWindows(*(field[index] for field in self))


class EvaluationWindows(NamedTuple):
    """Start positions; window i needs samples `start .. start + horizon` of its pair."""

    pair: Tensor  # (windows,) int64
    start: Tensor  # (windows,) int64
    horizon: int


def leader_windows(pairs: Pairs, steps: int, stride: int) -> LeaderWindows:
    """All windows of `steps` samples, every `stride` samples along each pair."""
    pair, start = _starts(pairs, steps, stride)
    rows = pairs.offsets[pair] + start
    leader_speed = gather(pairs.leader_speed, pairs.offsets, pair, start, steps)
    return LeaderWindows(leader_speed, pairs.gap[rows], pairs.speed[rows], pair, start)


def evaluation_windows(
    pairs: Pairs,
    horizon: int = 50,
    stride: int = 20,
    max_windows: int = 20,
    first_start: int = 0,
) -> EvaluationWindows:
    """At most `max_windows` windows per pair; window k starts at `first_start + k * stride`.

    With `first_start` at the context's length nothing is scored that the encoder has seen.
    """
    pair, start = _starts(pairs, horizon + 1, stride, first_start, max_windows)
    return EvaluationWindows(pair, start, horizon)


def gather(flat: Tensor, offsets: Tensor, pair: Tensor, start: Tensor, steps: int) -> Tensor:
    """Slices `start .. start + steps - 1` of the given pairs out of a flat column.

    Returns:
        (windows, steps). A slice that leaves its pair is an error, never a neighbour's data.
    """
    outside = (start < 0) | (start + steps > offsets[pair + 1] - offsets[pair])
    if bool(outside.any()):
        first = int(torch.nonzero(outside)[0])
        raise InputError(
            f"window {first} (pair {int(pair[first])}, start {int(start[first])}, {steps} steps) "
            "does not fit inside its pair"
        )
    return flat[(offsets[pair] + start)[:, None] + torch.arange(steps)]


def _starts(
    pairs: Pairs, steps: int, stride: int, first_start: int = 0, cap: int | None = None
) -> tuple[Tensor, Tensor]:
    """Pair and start of every window that fits, pairs in order, starts ascending."""
    if steps < 1 or stride < 1 or first_start < 0 or (cap is not None and cap < 1):
        raise InputError(
            f"windows need steps, stride and cap >= 1 and first_start >= 0, got steps={steps}, "
            f"stride={stride}, first_start={first_start}, cap={cap}"
        )
    room = pairs.lengths - steps - first_start
    counts = torch.where(room >= 0, room.div(stride, rounding_mode="floor") + 1, 0)
    if cap is not None:
        counts = counts.clamp(max=cap)
    pair = torch.repeat_interleave(torch.arange(len(pairs)), counts)
    order = torch.arange(len(pair)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return pair, first_start + stride * order
