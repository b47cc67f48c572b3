"""Pairs at one time step: every k-th sample where that fits, else interpolated; both are said."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator

from asbc.data.table import TIME_TOLERANCE, time_steps
from asbc.errors import InputError

# Samples farther apart (s) say too little of what happened between them.
COARSEST = 0.5
SERIES = ("gap", "speed", "leader_speed", "acceleration")


def resample(table: pd.DataFrame, dt: float, source: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """A sorted table at the time step `dt`, and what was done to how many pairs.

    Where the recorded step divides `dt`, every k-th row is kept, counted from the pair's first.
    Else gap and speeds are interpolated by monotone cubics (PCHIP), which never leave the range
    of the samples on either side: no speed falls below 0 and no gap closes between two samples.

    Example:
        >>> table = pd.DataFrame({
        ...     "recording": "r", "pair_id": "7", "time": [0.0, 0.5, 1.0],
        ...     "gap": [10.0, 11.0, 12.0], "speed": 8.0, "leader_speed": 10.0})
        >>> resampled, done = resample(table, 0.2, "mine")
        >>> resampled["gap"].round(2).tolist(), done
        ([10.0, 10.4, 10.8, 11.2, 11.6, 12.0], {'pairs of 0.5 s interpolated to 0.2 s': 1})
    """
    starts, steps = check_steps(table, dt, source)
    fits = divides(steps, dt)
    lengths = np.diff(np.append(starts, len(table)))
    factors = np.where(fits, np.round(dt / steps), 1).astype(np.int64)
    position = np.arange(len(table)) - np.repeat(starts, lengths)
    kept = table[(position % np.repeat(factors, lengths) == 0) & np.repeat(fits, lengths)]
    done: dict[str, int] = {}
    for step, fit in zip(steps, fits, strict=True):
        if not fit or round(dt / step) > 1:
            how = "thinned" if fit else "interpolated"
            text = f"pairs of {step:.3g} s {how} to {dt:g} s"
            done[text] = done.get(text, 0) + 1
    if fits.all():
        return kept.reset_index(drop=True), done
    made = pd.concat([kept, *_interpolated(table, starts, lengths, ~fits, dt)], ignore_index=True)
    order = made.sort_values(["recording", "pair_id", "time"], kind="stable")
    return order.reset_index(drop=True), done


def check_steps(table: pd.DataFrame, dt: float, source: str) -> tuple[np.ndarray, np.ndarray]:
    """First row and time step of each pair; an error if one is too coarse to be used."""
    starts, steps = time_steps(table)
    steps = np.where(np.isfinite(steps), steps, dt)  # a one-row pair is too short to keep anyway
    coarse = (steps > COARSEST * (1 + TIME_TOLERANCE)) & ~divides(steps, dt)
    if coarse.any():
        row = table.iloc[starts[np.argmax(coarse)]]
        where = f"{source}: recording {row['recording']}, pair {row['pair_id']}"
        step = float(steps[np.argmax(coarse)])
        raise InputError(
            f"{where}: the recorded time step is {step:g} s, too coarse for data.dt={dt:g} s; "
            f"expected at most {COARSEST:g} s"
        )
    return starts, steps


def divides(step: np.ndarray | np.float64, dt: float) -> np.ndarray:
    """Whether `dt` is a whole multiple of each step, up to the rounding of time stamps."""
    factor = np.round(dt / step)
    return (factor >= 1) & (np.abs(factor * step - dt) <= TIME_TOLERANCE * step)


def _interpolated(
    table: pd.DataFrame, starts: np.ndarray, lengths: np.ndarray, wanted: np.ndarray, dt: float
) -> Iterator[pd.DataFrame]:
    """Each wanted pair at the time step `dt`, from its first sample on."""
    columns = [name for name in SERIES if name in table]
    for start, length in zip(starts[wanted], lengths[wanted], strict=True):
        pair = table.iloc[start : start + length]
        recorded = pair["time"].to_numpy()
        count = int((recorded[-1] - recorded[0]) / dt + 1e-6) + 1
        time = recorded[0] + np.arange(count) * dt
        values = PchipInterpolator(recorded, pair[columns].to_numpy())(time.clip(max=recorded[-1]))
        labels = pair.iloc[[0]].drop(columns=[*columns, "time"])
        made = labels.loc[labels.index.repeat(count)].assign(time=time)
        yield made.assign(**dict(zip(columns, values.T, strict=True)))[list(table)]
