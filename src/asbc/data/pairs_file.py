"""Pairs that a user has as a table: `data=pairs data.path=FILE`, a DataFrame, or pairs in memory.

Also what calibration reads: the drivers of a source, in which one that cannot be read is named,
and skipped if so wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from asbc.data.columns import header, read_csv_columns
from asbc.data.pairs import Pairs
from asbc.data.sound_pairs import sound_pairs
from asbc.data.source import SPLIT_NAMES, DataSource, Loaded, Splits
from asbc.data.summary import summarise
from asbc.data.table import (
    ID_COLUMNS,
    NUMERIC_COLUMNS,
    OPTIONAL_COLUMNS,
    TableError,
    validate_pairs,
)
from asbc.errors import InputError


def read_pairs(data: pd.DataFrame | str | Path, dt: float = 0.2, min_duration: float = 0) -> Pairs:
    """Leader-follower pairs from a table, or from a CSV or Parquet file of one.

    Args:
        data: one row per time step; columns and units are those of `asbc.data.table`.
        dt: time step of the result (s); other data are thinned, or interpolated.
        min_duration: shortest pair kept (s).

    Example:
        >>> table = pd.DataFrame({
        ...     "recording": "r", "pair_id": 7, "follower_id": 7, "time": [0.0, 0.2, 0.4],
        ...     "gap": [20.0, 20.0, 20.0], "speed": 10.0, "leader_speed": 10.0})
        >>> read_pairs(table).pair_id
        ('r/7',)
    """
    return as_source(data, dt, context_steps=2, min_duration=min_duration).pairs()


def as_source(
    data: pd.DataFrame | str | Path | Pairs,
    dt: float,
    context_steps: int,
    min_duration: float | None = None,
) -> DataSource:
    """A table, the file of one, or pairs, as a data source.

    Args:
        data: what there is.
        dt: time step (s); other data are thinned, or interpolated.
        context_steps: samples that every pair must have.
        min_duration: shortest pair used (s); None: as long as the context.
    """
    shortest = context_steps * dt if min_duration is None else min_duration
    settings: dict[str, Any] = {"dt": dt, "context_steps": context_steps, "min_duration": shortest}
    if isinstance(data, Pairs):
        return GivenPairs(given=data, **settings)
    if isinstance(data, pd.DataFrame):
        return PairsFrame(frame=data, **settings)
    return PairsFile(path=str(data), **settings)


@dataclass(frozen=True, kw_only=True)
class PairsFile(DataSource):
    """Pairs from a file with the columns of `asbc.data.table`, or from several data sets.

    Args:
        path: the file, or a list of them. Each of several is split by itself, so its test drivers
            are the same as when it is used alone.
    """

    path: str | Sequence[str]
    names_short: ClassVar[bool] = True

    @property
    def several(self) -> tuple["PairsFile", ...]:
        """Each of several files as a source of its own; () for one file."""
        if isinstance(self.path, str):
            return ()
        if not self.path:
            raise InputError("data.path=[]: no file; give data.path=FILE or data.path=[A,B]")
        parts = (replace(self, path=path) for path in self.path)
        return tuple(part.for_segments(self.shortest) for part in parts)

    @property
    def description(self) -> str:
        return f"pairs: {self.path if isinstance(self.path, str) else ' and '.join(self.path)}"

    def load(self) -> Loaded:
        if not self.several:
            return Loaded(read_table(str(self.path)), {})
        tables = [source.load().table for source in self.several]
        names = [set(zip(t["recording"], t["pair_id"], strict=True)) for t in tables]
        for i, (path, own) in enumerate(zip(self.path, names, strict=True)):
            twice = sorted(own.intersection(*[set().union(*names[:i])]))
            if twice:
                raise InputError(
                    f"pairs: {path}: pair {'/'.join(map(str, twice[0]))} is in another file too; "
                    "give the recordings of one of them other names"
                )
        return Loaded(pd.concat(tables, ignore_index=True), {})

    def splits(self) -> Splits:
        """Pairs split by follower; several files each by itself, then joined."""
        if not self.several:
            return super().splits()
        pairs = self.pairs()
        each = [source.splits() for source in self.several]
        parts = {
            name: pairs.select(
                [pairs.find(i) for part in each for i in getattr(part, name).pair_id]
            )
            for name in SPLIT_NAMES
        }
        summary = summarise(self.description, pairs, parts, self.drops)
        return Splits(**parts, summary=summary)


@dataclass(frozen=True, kw_only=True)
class PairsFrame(DataSource):
    """Pairs from a table in memory with the columns of `asbc.data.table`."""

    frame: pd.DataFrame

    @property
    def description(self) -> str:
        return "a table in memory"

    def load(self) -> Loaded:
        return Loaded(validate_pairs(self.frame, self.description), {})


@dataclass(frozen=True, kw_only=True)
class GivenPairs(DataSource):
    """Pairs that were read before."""

    given: Pairs

    @property
    def description(self) -> str:
        return "pairs in memory"

    def load(self) -> Loaded:
        raise InputError("pairs in memory have no table")

    @property
    def drops(self) -> dict[str, int]:
        """Nothing was left out."""
        return {}

    def pairs(self) -> Pairs:
        """The pairs themselves."""
        if abs(self.given.dt - self.dt) > 1e-9:
            raise InputError(
                f"the pairs have a time step of {self.given.dt:g} s, expected {self.dt:g} s"
            )
        return self.given


def read_table(path: str | Path) -> pd.DataFrame:
    """Read and validate a pairs table; the ending says whether it is CSV or Parquet."""
    path = Path(path)
    source = f"pairs: {path}"
    if not path.is_file():
        raise InputError(f"{source}: no such file; give data.path=FILE.csv or FILE.parquet")
    if path.suffix.lower() in (".parquet", ".pq"):
        table = _read_parquet(path, source)
    elif path.suffix.lower() == ".csv":
        table = _read_csv(path)
    else:
        raise InputError(f"{source}: unknown ending {path.suffix!r}; expected .csv or .parquet")
    return validate_pairs(table, source)


class Drivers(NamedTuple):
    """What there is to calibrate."""

    pairs: Pairs
    skipped: dict[str, str]  # reason by driver
    drops: dict[str, int]  # what the source left out on purpose, by reason


def load_drivers(source: DataSource, on_error: str) -> Drivers:
    """Read a source; a table with bad drivers, in a file or in memory, is searched for them.

    Args:
        source: the data. Recordings (highD, NGSIM) are read as a whole: their errors always stop.
        on_error: "stop" raises with the first bad driver's name, "skip" leaves them out.
    """
    try:
        return Drivers(source.pairs(), {}, source.drops)
    except InputError as error:
        if not isinstance(source, PairsFile | PairsFrame) or isinstance(error, TableError):
            raise
        if isinstance(source, PairsFile) and source.several:
            raise
        usable = UsablePairs.of(source)
        try:
            bad = usable.bad
        except TableError:
            raise
        except (OSError, ValueError):
            raise error from None  # nothing that concerns a single driver
        if not bad or (on_error == "skip" and not usable.any_sound):
            raise
        if on_error == "stop":
            name, reason = next(iter(bad.items()))
            raise InputError(f"driver {name}: {reason}, or set on_error=skip") from error
        return Drivers(usable.pairs(), bad, usable.drops)


@dataclass(frozen=True, kw_only=True)
class UsablePairs(DataSource):
    """The pairs of a table that are sound, whatever is wrong with others."""

    source: PairsFile | PairsFrame

    @classmethod
    def of(cls, source: PairsFile | PairsFrame) -> "UsablePairs":
        """The same table with the same settings."""
        shared = {f.name: getattr(source, f.name) for f in fields(DataSource)}
        return cls(source=source, **shared)

    @property
    def description(self) -> str:
        return self.source.description

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
        return sound_pairs(_anything(self.source), self.description, self.dt)


def _read_csv(path: Path) -> pd.DataFrame:
    # Ids stay text: "007" is not 7, and a column of numbers may hold one id with a letter.
    types = {name: pa.string() for name in (*ID_COLUMNS, "follower_class", "leader_id")}
    types |= {name: pa.float64() for name in (*NUMERIC_COLUMNS, "acceleration")}
    found = header(path)
    wanted = [name for name in types if name in found or name not in OPTIONAL_COLUMNS]
    return read_csv_columns(path, {name: types[name] for name in wanted})


def _read_parquet(path: Path, source: str) -> pd.DataFrame:
    try:
        found = pq.read_schema(path).names
        known = (*ID_COLUMNS, *NUMERIC_COLUMNS, *OPTIONAL_COLUMNS)
        return pd.read_parquet(path, columns=[name for name in known if name in found])
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{source}: not a readable Parquet file ({error})") from error


def _anything(source: PairsFile | PairsFrame) -> pd.DataFrame:
    """The table as text or as it is stored, so that one bad cell does not hide the others."""
    if isinstance(source, PairsFrame):
        table = source.frame
    elif str(source.path).lower().endswith(".csv"):
        table = pd.read_csv(str(source.path), dtype=str)
        table.index = pd.RangeIndex(2, len(table) + 2, name="line")
    else:
        table = pd.read_parquet(str(source.path))
    if table.empty or not {*ID_COLUMNS, *NUMERIC_COLUMNS} <= set(table):
        raise ValueError("rows or columns are missing: no single driver can be blamed for that")
    return table
