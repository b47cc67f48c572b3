"""The pairs table: one schema behind every loader, validated once on entry.

One row per time step, SI units, one leader per pair, a constant time step per pair. Columns:
`recording, pair_id, follower_id, time (s), gap (net, m), speed, leader_speed (m/s)` and optionally
`acceleration (m/s^2)`, `follower_class`, `leader_id`. Ids are text and unique within a recording.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from asbc.data.pairs import pair_starts
from asbc.data.plausibility import faults, usual_steps
from asbc.errors import InputError

ID_COLUMNS = ("recording", "pair_id", "follower_id")
NUMERIC_COLUMNS = ("time", "gap", "speed", "leader_speed")
OPTIONAL_COLUMNS = ("acceleration", "follower_class", "leader_id")
# A time stamp may be off by this fraction of the time step (rounding when it was written).
TIME_TOLERANCE = 0.01


class TableError(InputError):
    """A defect of a table as a whole, for which no single pair can be blamed."""


class Defect(NamedTuple):
    """A message, and the row position of the pair that it concerns; None: the whole table."""

    row: int | None
    message: str


def validate_pairs(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """The table with text ids, float64 values, sorted by recording, pair and time.

    The index labels rows in messages; name it "line" when it counts lines of a file.

    Raises:
        InputError: naming source, column, pair, row and remedy of the first defect found.
    """
    clean = check_format(table, source)
    for defect in motion_defects(clean, source):
        raise (TableError if defect.row is None else InputError)(defect.message)
    return clean.reset_index(drop=True)


def check_format(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """What `validate_pairs` returns but for the index, which is kept; any motion will do."""
    missing = [name for name in ID_COLUMNS + NUMERIC_COLUMNS if name not in table]
    if missing:
        raise TableError(
            f"{source}: missing column {', '.join(missing)}; a pairs table needs "
            f"{', '.join(ID_COLUMNS + NUMERIC_COLUMNS)} (found {', '.join(map(str, table))})"
        )
    if table.empty:
        raise TableError(f"{source}: no rows; a pairs table needs at least one pair")
    clean = pd.DataFrame(index=table.index)
    for name in ID_COLUMNS:
        clean[name] = _as_text(table[name], source)
    numeric = [*NUMERIC_COLUMNS, *(["acceleration"] if "acceleration" in table else [])]
    for name in numeric:
        clean[name] = _as_numbers(table[name], source)
    clean["follower_class"] = "unknown"
    if "follower_class" in table:
        classes = table["follower_class"].astype(object).fillna("unknown")
        clean["follower_class"] = _as_text(classes, source)
    if "leader_id" in table:
        clean["leader_id"] = _as_text(table["leader_id"], source)
    clean = clean.sort_values(["recording", "pair_id", "time"], kind="stable")
    _check_values(clean, source)
    _check_pairs(clean, source)
    return clean.drop(columns="leader_id", errors="ignore")


def motion_defects(
    table: pd.DataFrame, source: str, usual: Mapping[str, float] | None = None
) -> Iterator[Defect]:
    """Motion that no road vehicle makes, or a unit that is not SI, in a sorted table.

    `usual` is None for a whole table, and `usual_motion` of it for a part.
    """
    for fault in faults(table, *time_steps(table), usual):
        where = "" if fault.row is None else f" at {describe_row(table, fault.row)}"
        message = f"{source}: {fault.what}{where}, {fault.why}; {fault.remedy}"
        yield Defect(fault.row, message)


def usual_motion(table: pd.DataFrame) -> dict[str, float]:
    """What `motion_defects` must know of a whole sorted table to judge a part of it."""
    return usual_steps(table, *time_steps(table))


def time_steps(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Start row and mean time step of each pair; the step of a one-row pair is NaN."""
    starts = pair_starts(table)
    last = np.append(starts[1:], len(table)) - 1
    time = table["time"].to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        return starts, (time[last] - time[starts]) / (last - starts)


def describe_row(table: pd.DataFrame, position: int) -> str:
    """The pair and the original row label of a row, for messages."""
    row = table.iloc[position]
    label = f"{table.index.name or 'row'} {table.index[position]}"
    return f"{label} (recording {row['recording']}, pair {row['pair_id']}, time {row['time']:g})"


def require_numbers(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """The table itself, once every cell is known to be a finite number."""
    for name in table:
        _as_numbers(table[name], source)
    return table


def _check_values(table: pd.DataFrame, source: str) -> None:
    for name, invalid, remedy in (
        ("gap", table["gap"] <= 0, "positive: net distance, leader's rear to follower's front"),
        ("speed", table["speed"] < 0, ">= 0: flip the sign for traffic that drives to -x"),
        ("leader_speed", table["leader_speed"] < 0, ">= 0: flip the sign for traffic to -x"),
    ):
        if invalid.any():
            at = int(np.argmax(invalid.to_numpy()))
            raise InputError(
                f"{source}: {name} is {table[name].iloc[at]:g} at {describe_row(table, at)}, "
                f"expected {remedy}; mend or remove the pair"
            )


def _check_pairs(table: pd.DataFrame, source: str) -> None:
    for name in ("follower_id", "leader_id"):
        if name in table:
            _check_constant(table, name, source)
    starts, steps = time_steps(table)
    step = np.repeat(steps, np.diff(np.append(starts, len(table))))
    inside = np.ones(len(table), dtype=bool)
    inside[starts] = False
    change = np.diff(table["time"].to_numpy(), prepend=np.nan)
    repeated = inside & ~(change > TIME_TOLERANCE * step)  # equal up to rounding
    if repeated.any():
        where = describe_row(table, int(np.argmax(repeated)))
        raise InputError(
            f"{source}: duplicate (pair, time) at {where}; "
            "each pair_id holds one leader and one follower, each time once"
        )
    uneven = inside & ~(np.abs(change - step) <= TIME_TOLERANCE * step)
    if uneven.any():
        # The odd step is the one farthest from the pair's usual step, not the first to differ
        # from a mean which that step has shifted.
        first_pair = int(np.searchsorted(starts, int(np.argmax(uneven)), side="right")) - 1
        rows = slice(starts[first_pair] + 1, np.append(starts, len(table))[first_pair + 1])
        usual = float(np.median(change[rows]))
        at = int(starts[first_pair] + 1 + np.argmax(np.abs(change[rows] - usual)))
        raise InputError(
            f"{source}: non-constant time step, {change[at]:g} s before {describe_row(table, at)} "
            f"but {usual:g} s elsewhere; resample the pair or give the parts different pair_ids"
        )


def _check_constant(table: pd.DataFrame, name: str, source: str) -> None:
    starts = pair_starts(table)
    first = np.repeat(table[name].to_numpy()[starts], np.diff(np.append(starts, len(table))))
    differs = table[name].to_numpy() != first
    if differs.any():
        at = int(np.argmax(differs))
        raise InputError(
            f"{source}: {name} changes from {first[at]} to {table[name].iloc[at]} at "
            f"{describe_row(table, at)}; give each leader-follower segment its own pair_id"
        )


def _as_text(column: pd.Series, source: str) -> pd.Series:
    """Ids as text, so that 7, 7.0 and "7" are one id in every file format."""
    if column.isna().any():
        at = int(np.argmax(column.isna().to_numpy()))
        raise InputError(
            f"{source}: {column.name} is empty at {_label(column, at)}; every row needs one "
            "(a truncated file?)"
        )
    if pd.api.types.is_float_dtype(column) and (column % 1 == 0).all():
        column = column.astype(np.int64)
    return column.astype(str)


def _as_numbers(column: pd.Series, source: str) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    bad = ~np.isfinite(numbers.to_numpy())
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"{source}: {column.name} is {column.iloc[at]} at {_label(column, at)}, expected a "
            "finite number; fill or remove it (a truncated file?)"
        )
    return numbers


def _label(column: pd.Series, position: int) -> str:
    return f"{column.index.name or 'row'} {column.index[position]}"
