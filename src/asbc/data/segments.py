"""From recorded to usable pairs: common time step, minimum duration, drops counted by reason."""

import numpy as np
import pandas as pd

from asbc.data.table import TIME_TOLERANCE, time_steps
from asbc.utils.checks import InputError


def decimate(table: pd.DataFrame, dt: float, source: str) -> pd.DataFrame:
    """Every k-th row of each pair, counted from its first, where k is `dt` over its time step."""
    starts, steps = time_steps(table)
    steps = np.where(np.isfinite(steps), steps, dt)  # a one-row pair is too short to keep anyway
    misfits = np.flatnonzero(~_divides(steps, dt))
    if len(misfits):
        row = table.iloc[starts[misfits[0]]]
        where = f"{source}: recording {row['recording']}, pair {row['pair_id']}"
        raise _misfit(dt, float(steps[misfits[0]]), where)
    factors = np.round(dt / steps).astype(np.int64)
    lengths = np.diff(np.append(starts, len(table)))
    position = np.arange(len(table)) - np.repeat(starts, lengths)
    return table[position % np.repeat(factors, lengths) == 0].reset_index(drop=True)


def whole_factor(dt: float, step: float, where: str) -> int:
    """How many recorded steps make one `dt`; an error when that is not a whole number.

    Example:
        >>> whole_factor(0.2, 0.04, "recording 01")
        5
    """
    if not _divides(np.float64(step), dt):
        raise _misfit(dt, step, where)
    return round(dt / step)


def drop_short(
    table: pd.DataFrame, dt: float, min_duration: float
) -> tuple[pd.DataFrame, dict[str, int]]:
    """The pairs that last at least `min_duration` seconds, and how many were dropped.

    A pair of n samples lasts n * dt: each sample stands for one step.
    """
    starts, _ = time_steps(table)
    lengths = np.diff(np.append(starts, len(table)))
    short = lengths < min_samples(dt, min_duration)
    kept = table[np.repeat(~short, lengths)].reset_index(drop=True)
    return kept, count_drops({short_reason(min_duration): int(short.sum())})


def min_samples(dt: float, min_duration: float) -> int:
    """Samples a pair needs to last `min_duration` seconds.

    Example:
        >>> min_samples(0.2, 40.0)
        200
    """
    return max(2, int(np.ceil(min_duration / dt - 1e-6)))


def short_reason(min_duration: float) -> str:
    """The label under which too short segments are counted."""
    return f"segments shorter than {min_duration:g} s"


def count_drops(*counts: dict[str, int]) -> dict[str, int]:
    """Sum of counts by reason, without zeros."""
    total: dict[str, int] = {}
    for part in counts:
        for reason, number in part.items():
            total[reason] = total.get(reason, 0) + number
    return {reason: number for reason, number in total.items() if number}


def _divides(step: np.ndarray | np.float64, dt: float) -> np.ndarray:
    factor = np.round(dt / step)
    return (factor >= 1) & (np.abs(factor * step - dt) <= TIME_TOLERANCE * step)


def _misfit(dt: float, step: float, where: str) -> InputError:
    return InputError(
        f"{where}: the recorded time step is {step:g} s, which does not divide "
        f"data.dt={dt:g} s; set data.dt to a whole multiple of {step:g}"
    )
