"""Rows brought into the order of their pairs on disk, with bounded memory, whatever their order.

Each bucket holds all rows of a range of keys, (recording, pair_id) unless told: the ranges come
from a sample of the keys, rows go to the range of their key as they are read, and a bucket that
is too large for memory is divided again. What follows each other in the sorted table is then in
one bucket or in neighbours, and a bucket is small enough to be sorted and checked in memory.

Both passes over the rows are made by an engine's workers, a stretch of the rows each. A worker
writes files of some hundred thousand rows, ordered by range, and a bucket is one record batch of
each of them, so its rows are in the order in which they came, whoever read them.
"""

import bisect
import heapq
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa

from asbc.engine import Pool
from asbc.engine.pool import OwnProcess

Key = tuple[str, str]
# Keys from which ranges are made: many more than ranges, so that these are of about one size.
SAMPLE = 20_000
MOST_BUCKETS = 1024
FILE_ROWS = 500_000  # rows that are ordered by range at once; with all columns about 50 MB
EMPTY = "nan"  # the name of an id that is missing, which the checks then refuse
OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class Rows(Protocol):
    """Some rows, wherever they are; they can be sent to a worker."""

    def batches(self, only: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in turn, with all columns or some of them."""
        ...


@dataclass(frozen=True)
class Bucket:
    """Rows in the order in which they came: file, number of the record batch, and its rows."""

    places: tuple[tuple[Path, int, int], ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(rows for *_, rows in self.places)

    def batches(self, only: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """See `Rows`."""
        for path, number, _ in self.places:
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as content:
                table = pa.Table.from_batches([content.get_batch(number)])
                yield table.select(list(only)) if only else table

    def read(self) -> pa.Table:
        """All rows."""
        return pa.concat_tables(self.batches())

    def stretches(self) -> list["Bucket"]:
        """The rows divided into buckets of FILE_ROWS or one batch more."""
        divided: list[Bucket] = [Bucket(())]
        for place in self.places:
            if divided[-1].rows >= FILE_ROWS:
                divided.append(Bucket(()))
            divided[-1] = replace(divided[-1], places=(*divided[-1].places, place))
        return divided


def sorted_buckets(
    stretches: Sequence[Rows], folder: Path, bucket_rows: int, pool: Pool, by: str = "pair_id"
) -> list[Bucket]:
    """The rows of consecutive ranges of keys, in the order of the keys; none if there are no rows.

    Args:
        stretches: all rows, with the columns `recording` and `by`.
        folder: where files go; it must not hold any.
        bucket_rows: rows that a bucket should have; no bucket has more than twice as many, unless
            one key has.
        pool: who reads and writes.
        by: what must stay together, beside the recording.
    """
    folder.mkdir(parents=True)
    names = [f"stretch {i + 1} of {len(stretches)} of the table" for i in range(len(stretches))]
    work = list(zip(names, stretches, strict=True))
    total, sample = _survey(pool, work, by)
    if not total:
        return []
    count = min(MOST_BUCKETS, -(-total // bucket_rows))
    bounds = sorted({sample[i * len(sample) // count] for i in range(1, count)} - {sample[0]})
    jobs = [
        (name, Distribution(rows, folder / f"{i:05d}", bounds, by))
        for i, (name, rows) in enumerate(work)
    ]
    found = dict(pool.map(distribute, jobs, "sorting the table"))
    places: list[list[tuple[Path, int, int]]] = [[] for _ in range(len(bounds) + 1)]
    for name in names:
        for written in found[name]:
            for number, (i, rows) in enumerate(written.sizes):
                places[i].append((written.path, number, rows))
    buckets = [Bucket(tuple(some)) for some in places]
    large = {
        i: Division(bucket, bucket_rows, folder / f"bucket{i:04d}", by)
        for i, bucket in enumerate(buckets)
        if bounds and bucket.rows > 2 * bucket_rows
    }
    again = [(f"range {i + 1} of the table", job) for i, job in large.items()]
    divided = dict(zip(large, pool.gather(divide, again, "sorting it further"), strict=True))
    parts = (divided.get(i, [bucket]) for i, bucket in enumerate(buckets) if bucket.rows)
    return [bucket for part in parts for bucket in part]


class Division(NamedTuple):
    """A bucket that is too large for memory."""

    bucket: Bucket
    bucket_rows: int
    folder: Path
    by: str


def divide(_: object, job: Division) -> list[Bucket]:
    """The bucket as smaller ones, by one worker: the others have buckets of their own."""
    bucket, bucket_rows, folder, by = job
    shutil.rmtree(folder, ignore_errors=True)  # of a worker that died over it
    return sorted_buckets(bucket.stretches(), folder, bucket_rows, OwnProcess(None), by)


class Survey(NamedTuple):
    """Number of rows, and a sample of their distinct keys with their hashes."""

    rows: int
    kept: dict[Key, int]


def _survey(pool: Pool, work: Sequence[tuple[str, Rows]], by: str) -> tuple[int, list[Key]]:
    """Number of rows, and a sorted sample of their distinct keys."""
    jobs = [(name, (rows, by)) for name, rows in work]
    found = [survey for _, survey in pool.map(survey_rows, jobs, "looking at the table")]
    kept = [(value, key) for survey in found for key, value in survey.kept.items()]
    smallest = heapq.nsmallest(SAMPLE, set(kept))
    return sum(survey.rows for survey in found), sorted(key for _, key in smallest)


def survey_rows(_: object, piece: tuple[Rows, str]) -> Survey:
    """What there is to know of some rows.

    The sample has the keys with the smallest hashes: random, but it depends on no order, and
    samples of some rows make that of all of them.
    """
    some, by = piece
    rows = 0
    kept: dict[Key, int] = {}
    largest: list[tuple[int, Key]] = []  # a heap: the kept key with the largest hash comes first
    for batch in some.batches(("recording", by)):
        rows += len(batch)
        for key in _keys(batch, by)[0]:
            if key in kept:
                continue
            value = crc32("/".join(key).encode())
            kept[key] = value
            heapq.heappush(largest, (-value, key))
            if len(largest) > SAMPLE:
                del kept[heapq.heappop(largest)[1]]
    return Survey(rows, kept)


class Distribution(NamedTuple):
    """Rows to be written in the order of the ranges between some bounds."""

    rows: Rows
    path: Path  # to which numbers are added
    bounds: Sequence[Key]
    by: str


class Written(NamedTuple):
    """A file, and the range and number of rows of each of its record batches."""

    path: Path
    sizes: list[tuple[int, int]]


def distribute(_: object, job: Distribution) -> list[Written]:
    """Write files of about FILE_ROWS rows, ordered by range."""
    held: list[pa.Table] = []
    written: list[Written] = []

    def write() -> None:
        path = job.path.with_name(f"{job.path.name}-{len(written):03d}.arrow")
        written.append(Written(path, _write(held, path, job.bounds, job.by)))
        held.clear()

    for batch in job.rows.batches():
        held.append(batch)
        if sum(map(len, held)) >= FILE_ROWS:
            write()
    if held:
        write()
    return written


def _write(
    batches: Iterable[pa.Table], path: Path, bounds: Sequence[Key], by: str
) -> list[tuple[int, int]]:
    """Write rows as one record batch for each range that has some; range and rows of each."""
    table = pa.concat_tables(batches).unify_dictionaries().combine_chunks()
    names, key_of_row = _keys(table, by)
    ranges = np.array([bisect.bisect_right(bounds, name) for name in names], np.uint16)
    place = ranges[key_of_row]
    # Each range by itself: a sorted copy of everything would need its memory again.
    order = np.argsort(place, kind="stable")
    sizes = np.bincount(place, minlength=len(bounds) + 1)
    first = np.cumsum(sizes) - sizes
    used = np.flatnonzero(sizes).tolist()
    with pa.ipc.new_file(str(path), table.schema, options=OPTIONS) as writer:
        for i in used:
            taken = table.take(pa.array(order[first[i] : first[i] + sizes[i]]))
            [batch] = taken.combine_chunks().to_batches()
            writer.write_batch(batch)
    return [(i, int(sizes[i])) for i in used]


def _keys(batch: pa.Table, by: str) -> tuple[list[Key], np.ndarray]:
    """The distinct keys of a batch, and which one each row has."""
    recordings, first = _codes(batch["recording"])
    others, second = _codes(batch[by])
    code, key_of_row = np.unique(first * len(others) + second, return_inverse=True)
    names = [(recordings[c // len(others)], others[c % len(others)]) for c in code.tolist()]
    return names, key_of_row


def _codes(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """Names, and the number of each row's name."""
    encoded = column.unify_dictionaries().combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    names = encoded.dictionary.to_pylist()
    number = encoded.indices.cast(pa.int64()).fill_null(len(names))
    return [*names, EMPTY], number.to_numpy()
