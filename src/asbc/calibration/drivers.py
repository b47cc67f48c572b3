"""The drivers of a data source; one that cannot be read is named, and skipped if so wanted."""

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from asbc.data.pairs import PairsFile
from asbc.data.pairset import PairSet
from asbc.data.segments import decimate
from asbc.data.source import DataSource, Loaded
from asbc.data.table import ID_COLUMNS, NUMERIC_COLUMNS, validate_pairs
from asbc.utils.checks import InputError


class Drivers(NamedTuple):
    """What there is to calibrate."""

    pairs: PairSet
    skipped: dict[str, str]  # reason by driver
    drops: dict[str, int]  # what the source left out on purpose, by reason


def load_drivers(source: DataSource, on_error: str) -> Drivers:
    """Read a source; a pairs file with bad drivers is searched for them.

    Args:
        source: the data. Recordings (highD, NGSIM) are read as a whole: their errors always stop.
        on_error: "stop" raises with the first bad driver's name, "skip" leaves them out.
    """
    try:
        return Drivers(source.pairs(), {}, source.drops)
    except InputError as error:
        if not isinstance(source, PairsFile):
            raise
        usable = UsablePairs.of(source)
        try:
            bad = usable.bad
        except (OSError, ValueError):
            raise error from None  # nothing that concerns a single driver
        if not bad or (on_error == "skip" and not usable.any_sound):
            raise
        if on_error == "stop":
            name, reason = next(iter(bad.items()))
            raise InputError(f"driver {name}: {reason}, or set on_error=skip") from error
        return Drivers(usable.pairs(), bad, usable.drops)


@dataclass(frozen=True, kw_only=True)
class UsablePairs(PairsFile):
    """The pairs of a file that are sound, whatever is wrong with others.

    The table is validated in halves until every defect is down to one pair: the work grows with
    the number of bad pairs, not with that of all pairs.
    """

    @classmethod
    def of(cls, source: PairsFile) -> "UsablePairs":
        """The same file with the same settings."""
        return cls(**{f.name: getattr(source, f.name) for f in fields(source)})

    def load(self) -> Loaded:
        """The sound pairs."""
        table, _ = self._divided
        return Loaded(table, {})

    @property
    def bad(self) -> dict[str, str]:
        """What is wrong with each of the other pairs."""
        return self._divided[1]

    @property
    def any_sound(self) -> bool:
        """Whether a single pair can be used."""
        return not self._divided[0].empty

    @cached_property
    def _divided(self) -> tuple[pd.DataFrame, dict[str, str]]:
        table = _read_anything(Path(self.path))
        keys = table[["recording", "pair_id"]].astype(str).agg("/".join, axis=1)
        code, names = pd.factorize(keys)
        order = np.argsort(code, kind="stable")
        table, starts = table.iloc[order], np.searchsorted(code[order], np.arange(len(names) + 1))
        sound: list[pd.DataFrame] = []
        bad: dict[str, str] = {}
        ranges = [(0, len(names))]
        while ranges:
            first, last = ranges.pop()
            part = table.iloc[starts[first] : starts[last]]
            try:
                valid = validate_pairs(part, self.description)
                decimate(valid, self.dt, self.description)
                sound.append(valid)
            except InputError as error:
                middle = (first + last) // 2
                if last - first == 1:
                    bad[str(names[first])] = str(error)
                else:
                    ranges += [(middle, last), (first, middle)]
        if not sound:
            return table.iloc[:0], bad
        joined = pd.concat(sound, ignore_index=True)
        return validate_pairs(joined, self.description), bad


def _read_anything(path: Path) -> pd.DataFrame:
    """The table as text or as it is stored, so that one bad cell does not hide the others."""
    if path.suffix.lower() == ".csv":
        table = pd.read_csv(path, dtype=str)
        table.index = pd.RangeIndex(2, len(table) + 2, name="line")
    else:
        table = pd.read_parquet(path)
    if not {*ID_COLUMNS, *NUMERIC_COLUMNS} <= set(table):
        raise ValueError("columns are missing, which no single driver can be blamed for")
    return table
