"""Drivers to calibrate, in memory or on disk: any number of them, piece by piece, in one order.

On disk they are what is left of tables of any size: sorted into buckets (`sorted_buckets`), each
checked and thinned as `asbc.data.table` and `asbc.data.source` do for tables in memory, by any
number of workers, and kept as one row per pair. Memory is bounded by a setting and not by the
tables.
"""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from asbc.data.grouped_pairs import driver_edges, group_by_driver, name_hashes, repeated
from asbc.data.packed_pairs import digests, fingerprint, pack, unpack
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import Drivers, PairsFile, load_drivers
from asbc.data.row_batches import RowBatches
from asbc.data.sorted_buckets import Bucket, sorted_buckets
from asbc.data.sound_pairs import readable_pairs, sound_pairs
from asbc.data.source import DataSource, Loaded, count_drops
from asbc.data.table import TableError, motion_defects, usual_motion
from asbc.engine import Pool
from asbc.errors import InputError
from asbc.utils.files import replacing, write_text

# Rows by which a table is judged as a whole: enough for medians, see asbc.data.plausibility.
JUDGED_ROWS = 500_000
# Bytes that checking takes per row, at the most.
BYTES_PER_ROW = 3000
INDEX = "index.json"
SMALL = 5_000_000  # bytes of a table


class Piece(ABC):
    """Some consecutive drivers, wherever they are; it can be sent to a worker."""

    @abstractmethod
    def pairs(self) -> Pairs:
        """The drivers themselves."""


class DriverStore(ABC):
    """Drivers in a fixed order: a pair each, or a follower each with all of its pairs.

    Attributes:
        skipped: reason by driver that cannot be used.
        drops: what was left out on purpose: reason -> count.
        fingerprint: a hash of what was observed; equal for equal drivers, wherever they lie.
    """

    skipped: dict[str, str]
    drops: dict[str, int]
    fingerprint: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def piece(self, start: int, stop: int) -> Piece:
        """The drivers from `start` to before `stop`."""

    def remove(self) -> None:  # noqa: B027
        """Delete what was stored, when nobody needs it any more."""


@dataclass(frozen=True)
class GivenPiece(Piece):
    """Drivers that are sent as they are."""

    given: Pairs

    def pairs(self) -> Pairs:
        """See `Piece`."""
        return self.given


class GivenDrivers(DriverStore):
    """Drivers in memory.

    Args:
        pairs: their pairs; where a driver may have several, sorted by `group_by_driver`.
        skipped, drops: see `DriverStore`.
        by_driver: whether a driver is a follower with all of its pairs, and not a pair.
    """

    def __init__(
        self,
        pairs: Pairs,
        skipped: Mapping[str, str] = {},
        drops: Mapping[str, int] = {},
        by_driver: bool = False,
    ) -> None:
        self._pairs = pairs
        self.skipped, self.drops = dict(skipped), dict(drops)
        self._by_driver = by_driver
        self._edges = driver_edges(pairs.follower) if by_driver else np.arange(len(pairs) + 1)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def piece(self, start: int, stop: int) -> Piece:
        """See `DriverStore`."""
        return GivenPiece(self._pairs.select(range(self._edges[start], self._edges[stop])))

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """See `DriverStore`."""
        return fingerprint([digests(self._pairs, self._by_driver)], self._pairs.dt)


class Prepared(NamedTuple):
    """What came of one bucket."""

    file: str
    drivers: int
    digests: bytes
    bad: dict[str, str]
    drops: dict[str, int]
    names: bytes = b""  # a hash of 8 bytes for the id of each pair, where drivers have several


@dataclass(frozen=True)
class StoredPiece(Piece):
    """Drivers in some files of a store."""

    parts: tuple[tuple[Path, int, int], ...]  # file, first driver, last driver + 1
    dt: float
    by_driver: bool = False

    def pairs(self) -> Pairs:
        """See `Piece`."""
        _require_seen(path for path, *_ in self.parts)
        tables = []
        for path, first, last in self.parts:
            table = pq.read_table(path)
            if self.by_driver:
                edges = driver_edges(table["follower"].to_pylist())
                first, last = int(edges[first]), int(edges[last])
            tables.append(table.slice(first, last - first))
        return unpack(pa.concat_tables(tables), self.dt)


class StoredDrivers(DriverStore):
    """Drivers of a folder that `store_drivers` filled."""

    def __init__(self, folder: Path, index: Mapping[str, Any]) -> None:
        self.folder = folder
        self.dt: float = index["dt"]
        self.skipped, self.drops = dict(index["skipped"]), dict(index["drops"])
        self.fingerprint = index["fingerprint"]
        self._by_driver = index.get("shortest") is not None
        self._files = [folder / name for name, _ in index["files"]]
        self._ends = np.cumsum([count for _, count in index["files"]])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def piece(self, start: int, stop: int) -> Piece:
        """See `DriverStore`."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        parts = []
        for i in range(first, last + 1):
            begin = int(self._ends[i - 1]) if i else 0
            end = min(stop, int(self._ends[i])) - begin
            parts.append((self._files[i], max(0, start - begin), end))
        return StoredPiece(tuple(parts), self.dt, self._by_driver)

    @property
    def complete(self) -> bool:
        """Whether all drivers are there, and not only what is known of them."""
        return all(file.is_file() for file in self._files)

    def remove(self) -> None:
        """Delete the drivers; what is known of them stays, for a command that is given again."""
        for file in self._files:
            file.unlink(missing_ok=True)


def pieces_of(source: DataSource) -> int | None:
    """Workers that a source gives work to at the most; None: any number.

    A worker starts in some seconds, in which another one reads and calibrates what SMALL says.
    """
    if not isinstance(source, PairsFile) or source.several:
        return None
    size = sum(file.stat().st_size for file in RowBatches.of(str(source.path)).files)
    return max(1, size // SMALL)


def open_drivers(
    source: DataSource,
    folder: Path,
    on_error: str,
    memory: float,
    pool: Pool,
    known: bool,
    shortest: int | None = None,
) -> DriverStore:
    """The drivers of any source: tables through `folder`, recordings (highD, NGSIM) in memory.

    Args: see `store_drivers`.
    """
    if not memory > 0:
        raise InputError(f"memory={memory}; expected GB above 0")
    if isinstance(source, PairsFile) and not source.several:
        return store_drivers(source, folder, on_error, memory, pool, known, shortest)
    return given_drivers(load_drivers(source, on_error), on_error, shortest)


def given_drivers(found: Drivers, on_error: str, shortest: int | None = None) -> GivenDrivers:
    """Drivers that were read into memory; `on_error` and `shortest` as for `store_drivers`."""
    if shortest is None:
        return GivenDrivers(found.pairs, found.skipped, found.drops)
    pairs, short = group_by_driver(found.pairs, shortest)
    _refuse(short, on_error)
    if not len(pairs):
        raise InputError(f"no driver to calibrate; {next(iter(short.values()))}")
    return GivenDrivers(pairs, found.skipped | short, found.drops, by_driver=True)


def _refuse(bad: Mapping[str, str], on_error: str) -> None:
    """Raise with the first bad driver's name, unless such drivers may be left out."""
    if bad and on_error == "stop":
        name, reason = next(iter(bad.items()))
        raise InputError(f"driver {name}: {reason}, or set on_error=skip")


def store_drivers(
    source: PairsFile,
    folder: Path,
    on_error: str,
    memory: float,
    pool: Pool,
    known: bool = False,
    shortest: int | None = None,
) -> StoredDrivers:
    """The usable drivers of tables of any size, kept in `folder`.

    A folder that was filled from the same files with the same settings is used as it is; what an
    interrupted process left in it is made anew.

    Args:
        source: the tables, and what is asked of a pair.
        folder: where they go: about 16 bytes per row, and five times that for a while.
        on_error: "stop" raises with the first bad driver's name, "skip" leaves them out.
        memory: GB that this process and each worker may take.
        pool: who sorts and checks; workers on other machines must see the files and the folder.
        known: whether it is enough to know the drivers of a folder from which they were removed.
        shortest: samples that a segment has at least, where a driver is a follower with all of
            its pairs; None: a driver is a pair.
    """
    rows = RowBatches.of(str(source.path))
    asked = _asked(source) | ({} if shortest is None else {"shortest": shortest})
    wanted = {"files": rows.identity(), "on_error": on_error, "settings": asked}
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_text())
        store = StoredDrivers(folder, index)
        if index["wanted"] == wanted and (known or store.complete):
            return store
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    most = max(1000, int(memory * 1e9 / 4 / BYTES_PER_ROW))
    by = "pair_id" if shortest is None else "follower_id"
    buckets = sorted_buckets(rows.stretches(), folder / "unchecked", most, pool, by)
    if not buckets:
        raise rows.no_rows()
    check = Check(rows, source, on_error, folder, shortest)
    [usual] = pool.gather(judge, [("the table as a whole", (check, _judged(buckets)))])
    check = replace(check, usual=usual)
    work = [
        (f"drivers {i + 1} of {len(buckets)}", (check, i, bucket))
        for i, bucket in enumerate(buckets)
    ]
    found = dict(pool.map(prepare, work, "checking the table"))
    prepared: list[Prepared] = [found[key] for key, _ in work]
    shutil.rmtree(folder / "unchecked")
    if shortest is not None:
        _require_one_follower(prepared, folder, source)
    index = _index(prepared, source) | {"wanted": wanted, "shortest": shortest}
    write_text(folder / INDEX, json.dumps(index))
    return StoredDrivers(folder, index)


def _asked(source: PairsFile) -> dict[str, float | None]:
    return {n: getattr(source, n) for n in ("dt", "min_duration", "context_steps", "shortest")}


def _judged(buckets: Sequence[Bucket]) -> list[Bucket]:
    """All buckets of a table of JUDGED_ROWS; of a larger one some from all over it."""
    rows = sum(bucket.rows for bucket in buckets)
    count = max(1, len(buckets) * JUDGED_ROWS // max(rows, JUDGED_ROWS))
    places = np.linspace(0, len(buckets) - 1, count).round().astype(int)
    return [buckets[i] for i in np.unique(places)]


@dataclass(frozen=True)
class Check:
    """How buckets are checked, and where they go."""

    rows: RowBatches
    source: PairsFile
    on_error: str
    folder: Path
    shortest: int | None = None
    usual: Mapping[str, float] | None = None

    def read(self, bucket: Bucket) -> pd.DataFrame:
        """The rows of a bucket, labelled as messages call them."""
        _require_seen(path for path, *_ in bucket.places)
        table = bucket.read().to_pandas()
        table.index = self.rows.labels(table)
        for place in np.flatnonzero(table["note"].notna().to_numpy()).tolist():
            for name, text in json.loads(table["note"].iloc[place]).items():
                if table[name].dtype != object:
                    table[name] = table[name].astype(object)
                table.iloc[place, table.columns.get_loc(name)] = text
        return table.drop(columns=["file", "row", "note"])


def judge(_: object, piece: tuple[Check, Sequence[Bucket]]) -> dict[str, float]:
    """What is usual in a table, by some buckets of it; an error if it is wrong as a whole."""
    check, buckets = piece
    table = pd.concat([check.read(bucket) for bucket in buckets])
    readable, _bad = readable_pairs(table, check.rows.source, check.source.dt)
    if readable.empty:
        return dict.fromkeys(("speed", "leader_speed", "gap"), 0.0)
    for row, message in motion_defects(readable, check.rows.source):
        if row is None:
            raise TableError(message)
    return usual_motion(readable)


def prepare(_: object, piece: tuple[Check, int, Bucket]) -> Prepared:
    """Check a bucket, which has a number, and store its usable pairs."""
    check, number, bucket = piece
    source = check.source
    sound, bad = sound_pairs(check.read(bucket), check.rows.source, source.dt, check.usual)
    _refuse(bad, check.on_error)
    table, drops = source.thinned(Loaded(sound, {})) if len(sound) else Loaded(sound, {})
    file = f"{number:06d}.parquet"
    if table.empty:
        return Prepared(file, 0, b"", bad, drops)
    pairs = source.packed(table)
    count, names = len(pairs), b""
    if check.shortest is not None:
        pairs, short = group_by_driver(pairs, check.shortest)
        _refuse(short, check.on_error)
        bad = bad | short
        if not len(pairs):
            return Prepared(file, 0, b"", bad, drops)
        count = len(driver_edges(pairs.follower)) - 1
        names = name_hashes(pairs.pair_id)
    with replacing(check.folder / file) as path:
        pq.write_table(pack(pairs), path, compression="lz4")
    seen = digests(pairs, check.shortest is not None)
    return Prepared(file, count, seen, bad, drops, names)


def _require_one_follower(prepared: Sequence[Prepared], folder: Path, source: PairsFile) -> None:
    """Raise if rows of one pair are in two buckets, so of two followers."""
    twice = repeated(part.names for part in prepared)
    for part in prepared if twice else ():
        if part.drivers:
            ids = pq.read_table(folder / part.file, columns=["pair_id"])["pair_id"].to_pylist()
            if name := next((name for name in ids if name_hashes([name]) in twice), None):
                raise InputError(
                    f"{source.description}: pair {name} has rows of two followers; give each "
                    "leader-follower segment its own pair_id"
                )


def _require_seen(paths: Iterable[Path]) -> None:
    """Raise on a machine that does not see what another one has written."""
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise InputError(
            f"{missing}: not seen by this worker; give an output= on storage that all machines "
            "share"
        )


def _index(prepared: Sequence[Prepared], source: PairsFile) -> dict[str, Any]:
    """The content of INDEX; an error if there is no driver."""
    skipped = {name: why for part in prepared for name, why in part.bad.items()}
    drops = count_drops(*(part.drops for part in prepared))
    files = [(part.file, part.drivers) for part in prepared if part.drivers]
    if not files and skipped:
        raise InputError(next(iter(skipped.values())))
    if not files:
        raise source.nothing(drops)
    return {
        "dt": source.dt,
        "fingerprint": fingerprint((part.digests for part in prepared), source.dt),
        "files": files,
        "skipped": skipped,
        "drops": drops,
    }
