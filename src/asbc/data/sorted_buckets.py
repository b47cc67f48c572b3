"""Rows brought into the order of their pairs on disk, with bounded memory, whatever their order.

Each bucket holds all rows of a range of keys, (recording, pair_id) unless told: the ranges come
from a sample of the keys, rows go to the file of their range as they are read, and a bucket that
is too large for memory is divided again. What follows each other in the sorted table is then in
one bucket or in neighbours, and a bucket is small enough to be sorted and checked in memory.
"""

import bisect
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

Key = tuple[str, str]
# Keys from which ranges are made: many more than ranges, so that these are of about one size.
SAMPLE = 20_000
MOST_BUCKETS = 256  # files that are open at the same time
EMPTY = "nan"  # the name of an id that is missing, which the checks then refuse
OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclass(frozen=True)
class Bucket:
    """A file of rows, in the order in which they came."""

    path: Path
    rows: int

    def batches(self) -> Iterator[pa.Table]:
        """The rows as they were written."""
        with pa.OSFile(str(self.path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def read(self) -> pa.Table:
        """All rows."""
        return pa.concat_tables(self.batches())


def sorted_buckets(
    keys: Callable[[], Iterable[pa.Table]],
    rows: Callable[[], Iterable[pa.Table]],
    folder: Path,
    bucket_rows: int,
    by: str = "pair_id",
) -> list[Bucket]:
    """Files below `folder` with the rows of consecutive ranges of keys, in the order of the keys.

    Args:
        keys: begins to read the columns `recording` and `by` of all rows.
        rows: begins to read all rows with all columns.
        folder: where files go; it must not hold any.
        bucket_rows: rows that a bucket should have; no bucket has more than twice as many, unless
            one key has.
        by: what must stay together, beside the recording.
    """
    folder.mkdir(parents=True)
    total, sample = _survey(keys(), by)
    count = min(MOST_BUCKETS, -(-total // bucket_rows))
    bounds = sorted({sample[i * len(sample) // count] for i in range(1, count)} - {sample[0]})
    buckets = []
    for bucket in _distribute(rows(), folder, bounds, by):
        if bucket.rows > 2 * bucket_rows and bounds:
            again = bucket.batches
            buckets += sorted_buckets(again, again, folder / bucket.path.stem, bucket_rows, by)
            bucket.path.unlink()
        else:
            buckets.append(bucket)
    return buckets


def _survey(batches: Iterable[pa.Table], by: str) -> tuple[int, list[Key]]:
    """Number of rows, and a sorted sample of their distinct keys."""
    rows = 0
    kept: dict[Key, int] = {}
    largest: list[tuple[int, Key]] = []  # a heap: the kept key with the largest hash comes first
    for batch in batches:
        rows += len(batch)
        for key in _keys(batch, by)[0]:
            if key in kept:
                continue
            # Those with the smallest hashes: a random sample that depends on no order.
            value = crc32("/".join(key).encode())
            kept[key] = value
            heapq.heappush(largest, (-value, key))
            if len(largest) > SAMPLE:
                del kept[heapq.heappop(largest)[1]]
    return rows, sorted(kept)


def _distribute(
    batches: Iterable[pa.Table], folder: Path, bounds: Sequence[Key], by: str
) -> list[Bucket]:
    """Write every row to the file of its range; files without rows are left out."""
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    rows = np.zeros(len(bounds) + 1, dtype=np.int64)
    paths = [folder / f"{i:03d}.arrows" for i in range(len(rows))]
    with ExitStack() as stack:
        for batch in batches:
            names, key_of_row = _keys(batch, by)
            ranges = np.array([bisect.bisect_right(bounds, name) for name in names], np.uint16)
            place = ranges[key_of_row]
            order = np.argsort(place, kind="stable")
            batch = batch.take(pa.array(order)).combine_chunks()
            size = np.bincount(place, minlength=len(rows))
            first = np.cumsum(size) - size
            for i in np.flatnonzero(size).tolist():
                if i not in writers:
                    made = pa.ipc.new_stream(str(paths[i]), batch.schema, options=OPTIONS)
                    writers[i] = stack.enter_context(made)
                writers[i].write_table(batch.slice(first[i], size[i]))
            rows += size
    return [Bucket(paths[i], int(rows[i])) for i in range(len(rows)) if rows[i]]


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
