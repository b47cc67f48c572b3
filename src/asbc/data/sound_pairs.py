"""Which pairs of a table can be used, and what is wrong with each of the others."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from asbc.data.pairs import pair_starts
from asbc.data.resampling import check_steps
from asbc.data.table import TableError, check_format, motion_defects
from asbc.errors import InputError


def sound_pairs(
    table: pd.DataFrame, source: str, dt: float, usual: Mapping[str, float] | None = None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The sound pairs, sorted as `validate_pairs` does, and what is wrong with each other pair.

    The format is checked in halves until every defect is down to one pair: the work grows with
    the number of bad pairs, not with that of all pairs. Motion is then checked at once, as a
    wrong unit shows in all pairs together.

    Args:
        table: any table that has the columns and some rows; its index labels rows in messages.
        source: what messages call it.
        dt: the time step that pairs are brought to.
        usual: None for a whole table; for a part of one see `asbc.data.table.motion_defects`.

    Raises:
        TableError: if something is wrong with the table as a whole.
    """
    readable, bad = readable_pairs(table, source, dt)
    if readable.empty:
        return readable, bad
    starts = pair_starts(readable)
    first = readable.iloc[starts]
    names = (first["recording"] + "/" + first["pair_id"]).tolist()
    sound = np.ones(len(names), dtype=bool)
    for row, message in motion_defects(readable, source, usual):
        if row is None:
            raise TableError(message)
        pair = int(np.searchsorted(starts, row, side="right")) - 1
        sound[pair] = False
        bad.setdefault(names[pair], message)
    if sound.all():
        return readable.reset_index(drop=True), bad
    rows = np.repeat(sound, np.diff(np.append(starts, len(readable))))
    return readable[rows].reset_index(drop=True), bad


def readable_pairs(
    table: pd.DataFrame, source: str, dt: float
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The pairs whose format is right, and what is wrong with that of the others.

    Arguments as for `sound_pairs`.
    """
    try:
        return _checked(table, source, dt), {}
    except InputError:
        pass  # some pair is to blame, or several
    keys = table["recording"].astype(str) + "/" + table["pair_id"].astype(str)
    code, names = pd.factorize(keys.fillna("nan"))
    order = np.argsort(code, kind="stable")
    table, starts = table.iloc[order], np.searchsorted(code[order], np.arange(len(names) + 1))
    right: list[pd.DataFrame] = []
    bad: dict[str, str] = {}
    ranges = [(0, len(names))]
    while ranges:
        first, last = ranges.pop()
        part = table.iloc[starts[first] : starts[last]]
        try:
            right.append(_checked(part, source, dt))
        except InputError as error:
            middle = (first + last) // 2
            if last - first == 1:
                bad[str(names[first])] = str(error)
            else:
                ranges += [(middle, last), (first, middle)]
    if not right:
        return table.iloc[:0], bad
    return check_format(pd.concat(right), source), bad


def _checked(table: pd.DataFrame, source: str, dt: float) -> pd.DataFrame:
    checked = check_format(table, source)
    check_steps(checked, dt, source)
    return checked
