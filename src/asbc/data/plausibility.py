"""Whether pairs move as road vehicles do, when read in metres and seconds.

Two independent witnesses of the same motion are compared: the gap's change, and the integral of
leader speed minus speed. Where both move, their ratio (the slope) is 1 in consistent units and
1 / 3.6 where speeds are in km/h. Steady following has no such motion and says nothing. Every rule
works on medians, so that a stray row cannot pass for a wrong unit, nor hide one.

Each limit leaves room for real recordings: of 1500 pairs of NGSIM and Lyft, the slope of single
pairs is 0.64 to 1.12, the hardest speed step 8 m/s^2, and the gap within 1 m of the speeds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

MAX_TIME_STEP = 5.0  # s: drivers react within one or two, so longer steps hide the following
MAX_SPEED = 80.0  # m/s: 288 km/h, faster than all but a few road cars
MAX_GAP = 2000.0  # m: no sensor sees this far, and nobody follows a vehicle so far ahead
MAX_ACCELERATION = 15.0  # m/s^2: an emergency stop on a dry road has 10
SPEED_JITTER = 3.0  # m/s per step on top: positions differentiated without smoothing
GAP_JITTER = 10.0  # m per step: a box that flickers by a car's length, less than a new leader
JITTER_FACTOR = 8.0  # times the table's usual step: a noisy table has no strays within 5 sigma
MANY_ROWS, MANY_SHARE = 10, 0.1  # more rows than both are no strays but another unit

WINDOW = 3.0  # s: long against jitter, short against the swings of car following
MOVED = 2.0  # m per window that both witnesses must see: most noise does not reach it twice
MIN_WINDOWS = 8  # they overlap by half, so about 14 s of relative motion
MAX_SLOPE = 2.0  # and its inverse: mph, the closest unit, gives 1 / 2.24
CLEAR = 0.5  # misfit of the slope, as a share of the gap's change: unrelated noise has 1
AGREED = 0.9  # share of windows whose two signs the slope relates: unrelated noise has a half
MAX_MISMATCH = 6.0  # m per window: relative speeds wrong by 2 m/s half of the time


@dataclass(frozen=True)
class Fault:
    """What is wrong with the pair of one row, or with the whole table where `row` is None."""

    row: int | None
    what: str
    why: str
    remedy: str


class Unit(NamedTuple):
    """A unit that was probably meant: the slope that it gives, and how to convert."""

    slope: float
    what: str
    remedy: str


_SPEEDS = "speed and leader_speed look like"
UNITS = (
    Unit(1 / 3.6, f"{_SPEEDS} km/h", "divide both by 3.6"),
    Unit(1 / 2.23694, f"{_SPEEDS} mph", "divide both by 2.237"),
    # Too close to km/h, which is far more common, to be named alone.
    Unit(1 / 3.28084, f"{_SPEEDS} km/h or ft/s", "divide both by 3.6 or 3.281"),
    Unit(1 / 100, f"{_SPEEDS} cm/s", "divide both by 100"),
    Unit(3.28084, "gap looks like feet", "divide it by 3.281"),
    Unit(100.0, "gap looks like cm", "divide it by 100"),
    Unit(1000.0, "gap looks like mm", "divide it by 1000"),
)
TIME_UNITS = (("ms", 1e3), ("microseconds", 1e6), ("ns", 1e9))
_SAME_UNIT = 1.4  # a slope this many times off is not that unit's
_SAMPLE = 1_000_000  # rows are enough for a median
_SI = "give time in s (not in frames), gap in m and both speeds in m/s"
_MEND = "mend the row or remove its pair"
_NEW_LEADER = "mend the row, or give each leader its own pair_id"
_BRAKES = f"more than a road vehicle can brake or accelerate ({MAX_ACCELERATION:g} m/s^2)"


def faults(
    table: pd.DataFrame,
    starts: np.ndarray,
    steps: np.ndarray,
    usual: Mapping[str, float] | None = None,
) -> Iterator[Fault]:
    """What no road vehicle does, worst kind first, each kind once per pair.

    Args:
        table: float64 columns, sorted by pair and time.
        starts: (pairs,) first row of each pair.
        steps: (pairs,) time step; NaN for a pair of one row.
        usual: `usual_steps` of the table that this one is a part of, which has been judged as a
            whole: pairs are then judged one by one. None: this is the whole table.
    """
    motion, whole = _Motion.of(table, starts, steps), usual is None
    yield from _long_steps(motion, whole)
    yield from _contradictions(motion, whole)
    yield from _out_of_range(motion, whole)
    yield from _jumps(motion, _usual(motion) if usual is None else usual)


def usual_steps(table: pd.DataFrame, starts: np.ndarray, steps: np.ndarray) -> dict[str, float]:
    """How far speeds and gaps usually are from their neighbour's, by column; see `faults`."""
    return _usual(_Motion.of(table, starts, steps))


@dataclass(frozen=True)
class _Motion:
    """The columns as arrays (rows,), and where pairs begin."""

    gap: np.ndarray
    speed: np.ndarray
    leader_speed: np.ndarray
    acceleration: np.ndarray | None
    starts: np.ndarray  # (pairs,)
    lengths: np.ndarray  # (pairs,)
    steps: np.ndarray  # (pairs,) s; 1 for a pair of one row, which has none
    step: np.ndarray  # (rows,) the pair's
    moved: np.ndarray  # (rows,) m, sum of leader speed minus speed up to here

    @classmethod
    def of(cls, table: pd.DataFrame, starts: np.ndarray, steps: np.ndarray) -> "_Motion":
        """The motion in a table; see `faults`."""
        speed, leader_speed = table["speed"].to_numpy(), table["leader_speed"].to_numpy()
        lengths = np.diff(np.append(starts, len(table)))
        steps = np.where(lengths > 1, steps, 1.0)
        step = np.repeat(steps, lengths)
        # Clipped: after a speed of 1e300 no sum would tell a metre any more.
        opening = np.clip(leader_speed - speed, -1e6, 1e6)
        moved = np.zeros(len(table))
        moved[1:] = np.cumsum((opening[1:] + opening[:-1]) / 2 * step[1:])
        return cls(
            gap=table["gap"].to_numpy(),
            speed=speed,
            leader_speed=leader_speed,
            acceleration=table["acceleration"].to_numpy() if "acceleration" in table else None,
            starts=starts,
            lengths=lengths,
            steps=steps,
            step=step,
            moved=moved,
        )

    def change(self, values: np.ndarray) -> np.ndarray:
        """From each row's predecessor within its pair; 0 at a pair's first row."""
        change = np.zeros(len(values))
        np.subtract(values[1:], values[:-1], out=change[1:])
        change[self.starts] = 0.0
        return change

    def first_per_pair(self, bad: np.ndarray) -> list[int]:
        """The first row of each pair that has a bad one."""
        rows = np.flatnonzero(bad)
        pair = np.searchsorted(self.starts, rows, side="right")
        return rows[np.unique(pair, return_index=True)[1]].tolist()


def _long_steps(motion: _Motion, whole: bool) -> Iterator[Fault]:
    long = motion.steps > MAX_TIME_STEP
    whole = whole and 2 * long.sum() > len(long)
    for pair in np.flatnonzero(long):
        step = motion.steps[pair]
        unit = next((u for u in TIME_UNITS if step / u[1] <= MAX_TIME_STEP), None)
        yield Fault(
            row=None if whole else int(motion.starts[pair]),
            what=f"the time step is {step:g} s",
            why="too long for car following" + (f": time looks like {unit[0]}" if unit else ""),
            remedy=f"divide time by {unit[1]:g}" if unit else "give time in s",
        )
        if whole:
            return


class _Windows(NamedTuple):
    """What both witnesses say of each window."""

    pair: np.ndarray
    gap: np.ndarray  # m, the gap's change
    speeds: np.ndarray  # m, the integral of leader speed minus speed


def _windows(motion: _Motion) -> _Windows:
    """Windows of WINDOW seconds that overlap by half; shorter ones in shorter pairs."""
    longest = np.maximum(motion.lengths - 1, 1)
    size = np.round(WINDOW / np.maximum(motion.steps, 1e-9)).clip(1, longest).astype(np.int64)
    stride = np.maximum(size // 2, 1)
    count = np.maximum((motion.lengths - 1 - size) // stride + 1, 0)
    pair = np.repeat(np.arange(len(count)), count)
    order = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    first = motion.starts[pair] + order * stride[pair]
    last = first + size[pair]
    return _Windows(
        pair, motion.gap[last] - motion.gap[first], motion.moved[last] - motion.moved[first]
    )


class _Verdict(NamedTuple):
    """How the witnesses agree, per group of windows."""

    slope: np.ndarray  # the gap's change over that of the speeds
    wrong: np.ndarray  # bool: the slope is clear, and not 1
    mismatch: np.ndarray  # m, between the two
    apart: np.ndarray  # bool: the mismatch is large


def _judge(windows: _Windows, group: np.ndarray, groups: int) -> _Verdict:
    """The verdict on each group; one with too little motion is neither wrong nor apart."""
    size = np.abs(windows.gap), np.abs(windows.speeds)
    both = np.minimum(*size) >= MOVED
    either = np.maximum(*size) >= MOVED
    slope = _medians(group[both], windows.gap[both] / windows.speeds[both], groups)
    misfit = np.abs(windows.gap - slope[group] * windows.speeds)[both]
    spread = _medians(group[both], misfit, groups) / _medians(group[both], size[0][both], groups)
    mismatch = _medians(group[either], np.abs(windows.gap - windows.speeds)[either], groups)
    count = np.bincount(group[both], minlength=groups)
    signed = (np.sign(windows.gap) == np.sign(slope[group] * windows.speeds))[both]
    agreed = np.bincount(group[both], signed, minlength=groups) >= AGREED * count
    clear = (count >= MIN_WINDOWS) & agreed & (spread <= CLEAR)
    seen = np.bincount(group[either], minlength=groups) >= MIN_WINDOWS
    wrong = clear & ~_near_one(slope)
    return _Verdict(slope, wrong, mismatch, seen & (mismatch > MAX_MISMATCH))


def _medians(group: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    """The (upper) median of each group; NaN for an empty one."""
    ordered = values[np.lexsort((values, group))]
    count = np.bincount(group, minlength=groups)
    medians = np.full(groups, np.nan)
    middle = np.cumsum(count) - count + count // 2
    medians[count > 0] = ordered[middle[count > 0]]
    return medians


def _contradictions(motion: _Motion, whole: bool) -> Iterator[Fault]:
    """Gaps that do not change as the speeds say: of the table jointly, else of single pairs."""
    windows = _windows(motion)
    table = _judge(windows, np.zeros_like(windows.pair), 1)
    if whole and (table.wrong[0] or table.apart[0]):
        yield _contradiction(motion, table, 0, None)
        return
    pairs = _judge(windows, windows.pair, len(motion.starts))
    for pair in np.flatnonzero(pairs.wrong | pairs.apart).tolist():
        yield _contradiction(motion, pairs, pair, int(motion.starts[pair]))


def _contradiction(motion: _Motion, verdict: _Verdict, group: int, row: int | None) -> Fault:
    rows = slice(None) if row is None else slice(row, row + motion.lengths[group])
    speed, leader = (float(np.median(v[rows])) for v in (motion.speed, motion.leader_speed))
    slope = float(verdict.slope[group])
    why = f"as the gap changes by {slope:.3g} times leader_speed - speed"
    if not verdict.wrong[group] and min(speed, leader) > 1 and not _near_one(speed / leader):
        what = f"speed is {speed / leader:.2g} times leader_speed"
        why, remedy = "so that they look like two units", "give both in m/s"
    elif _near_one(-slope):
        what, remedy = "speed and leader_speed look exchanged", "swap the two columns"
    elif unit := _probable_unit(slope):
        what, remedy = unit.what, unit.remedy
    else:
        what, remedy = "gap, time and speeds do not fit together", _SI
        if not verdict.wrong[group]:
            why = f"as gap and speeds differ by {verdict.mismatch[group]:.2g} m in {WINDOW:g} s"
            remedy += ", and the speed of the vehicle that the gap is to"
    return Fault(row, what, why, remedy)


def _near_one(slope: np.ndarray | float) -> np.ndarray | bool:
    """Whether a ratio can be that of equal units."""
    return (slope >= 1 / MAX_SLOPE) & (slope <= MAX_SLOPE)


def _probable_unit(slope: float) -> Unit | None:
    """The unit that gives about this slope."""
    if _near_one(slope) or not slope > 0:  # NaN: no motion
        return None
    unit = min(UNITS, key=lambda u: abs(np.log(slope / u.slope)))
    return unit if 1 / _SAME_UNIT < slope / unit.slope < _SAME_UNIT else None


def _out_of_range(motion: _Motion, whole: bool) -> Iterator[Fault]:
    """Values that no road vehicle has: strays by row, many of them as another unit."""
    drives = f"more than a road vehicle drives ({MAX_SPEED:g} m/s)"
    follows = f"farther than anybody follows ({MAX_GAP:g} m)"
    hardest = MAX_ACCELERATION + SPEED_JITTER / motion.step
    for name, limit, why, unit in (
        ("speed", MAX_SPEED, drives, "speeds look like km/h: divide both by 3.6"),
        ("leader_speed", MAX_SPEED, drives, "speeds look like km/h: divide both by 3.6"),
        ("gap", MAX_GAP, follows, "gaps look like cm or mm: give them in m"),
        ("acceleration", hardest, _BRAKES, "give it in m/s^2"),
    ):
        values = getattr(motion, name)
        if values is None:
            continue
        bad = np.abs(values) > limit
        count = np.count_nonzero(bad)
        if whole and count > max(MANY_ROWS, MANY_SHARE * len(bad)):
            what = f"{name} is out of range in {count / len(bad):.0%} of all rows"
            yield Fault(None, what, why, unit)
            continue
        for row in motion.first_per_pair(bad):
            remedy = _MEND
            if why is drives and values[row] < 3.6 * MAX_SPEED:
                remedy += ", or divide both speeds by 3.6 if they are in km/h"
            yield Fault(row, f"{name} is {values[row]:g}", why, remedy)


def _step_sizes(motion: _Motion, name: str) -> np.ndarray:
    """The change of a column from row to row, beyond what the speeds explain of a gap's."""
    change = motion.change(getattr(motion, name))
    if name == "gap":
        change -= motion.change(motion.moved)
    return change


def _usual(motion: _Motion) -> dict[str, float]:
    sizes = {n: np.abs(_step_sizes(motion, n)) for n in ("speed", "leader_speed", "gap")}
    return {
        name: float(np.median(size[:: 1 + len(size) // _SAMPLE])) if len(size) else 0.0
        for name, size in sizes.items()
    }


def _jumps(motion: _Motion, usual: Mapping[str, float]) -> Iterator[Fault]:
    """Steps between neighbouring rows that neither motion nor jitter explains."""
    brakes = MAX_ACCELERATION * motion.step
    for name, unit, motor, jitter, why, remedy in (
        ("speed", "m/s", brakes, SPEED_JITTER, _BRAKES, _MEND),
        ("leader_speed", "m/s", brakes, SPEED_JITTER, _BRAKES, _MEND),
        ("gap", "m", 0.0, GAP_JITTER, "which the speeds do not explain", _NEW_LEADER),
    ):
        change = _step_sizes(motion, name)
        bad = np.abs(change) > motor + max(jitter, JITTER_FACTOR * usual[name])
        for row in motion.first_per_pair(bad):
            what = f"{name} jumps by {change[row]:.3g} {unit} within {motion.step[row]:.3g} s"
            yield Fault(_stray(motion, bad, row), what, why, remedy)


def _stray(motion: _Motion, bad: np.ndarray, row: int) -> int:
    """Which end of a step is astray: a pair's first row has no step of its own to show it."""
    pair = int(np.searchsorted(motion.starts, row, side="right")) - 1
    start, stop = motion.starts[pair], motion.starts[pair] + motion.lengths[pair]
    alone = row == start + 1 and row + 1 < stop and not bad[row + 1]
    return int(start) if alone else row
