"""Rows of pairs tables, batch by batch: a file, a folder or a glob of CSV and Parquet, any size.

A batch has the columns of `asbc.data.table` with ids as text and values as float64, and says where
each row comes from: `file` and `row`. What cannot be read as a number becomes null, with the text
in `note`, so that the checks can name the cell: nothing is judged here but the files as a whole.
"""

import csv
import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from asbc.data.columns import explain, header, require_utf8
from asbc.data.table import ID_COLUMNS, NUMERIC_COLUMNS, OPTIONAL_COLUMNS, TableError
from asbc.errors import InputError

ENDINGS = (".csv", ".parquet", ".pq")
TEXT = (*ID_COLUMNS, "follower_class", "leader_id")
NUMBERS = (*NUMERIC_COLUMNS, "acceleration")
# Rows of a batch; with all columns about 10 MB.
BATCH = 100_000
STRETCH = 500_000  # rows that a worker reads at once, where a file can be divided
CSV_BLOCK = 8 << 20  # bytes


def table_files(path: str) -> list[Path]:
    """The files behind `data.path`: one, those of a folder, or those that a glob matches."""
    given = Path(path)
    if given.is_file():
        if given.suffix.lower() not in ENDINGS:
            raise InputError(
                f"pairs: {path}: unknown ending {given.suffix!r}; expected .csv or .parquet"
            )
        return [given]
    found = given.rglob("*") if given.is_dir() else map(Path, glob.glob(path, recursive=True))
    files = sorted(file for file in found if file.is_file() and file.suffix.lower() in ENDINGS)
    if not files:
        what = "no CSV or Parquet file in it" if given.is_dir() else "no such file"
        raise InputError(
            f"pairs: {path}: {what}; give data.path=FILE.csv, FILE.parquet, a folder or a glob"
        )
    return files


@dataclass(frozen=True)
class RowBatches:
    """All rows of some files that make one table.

    Args:
        path: as the user gave it.
        files: from `table_files`.
    """

    path: str
    files: Sequence[Path]

    @classmethod
    def of(cls, path: str) -> "RowBatches":
        """The files at `path`, whose columns agree."""
        rows = cls(path, table_files(path))
        rows.columns()
        return rows

    @property
    def source(self) -> str:
        """What messages call the table."""
        return f"pairs: {self.path}"

    def columns(self) -> tuple[str, ...]:
        """The known columns; an error if one is missing, or in some files only."""
        known = (*ID_COLUMNS, *NUMERIC_COLUMNS, *OPTIONAL_COLUMNS)
        first: tuple[str, ...] = ()
        for file in self.files:
            found = header(file) if _is_csv(file) else _parquet(file).schema_arrow.names
            own = tuple(name for name in known if name in found)
            missing = [name for name in (*ID_COLUMNS, *NUMERIC_COLUMNS) if name not in own]
            if missing:
                raise TableError(
                    f"pairs: {file}: missing column {', '.join(missing)}; a pairs table needs "
                    f"{', '.join(ID_COLUMNS + NUMERIC_COLUMNS)} (found {', '.join(found)})"
                )
            first = first or own
            if differs := sorted(set(first) ^ set(own)):
                raise TableError(
                    f"pairs: {file}: column {differs[0]} is not in all files, compare "
                    f"{self.files[0]}; add it to all or remove it"
                )
        return first

    def identity(self) -> list[list[Any]]:
        """Name, size and time of each file: whether it is what it was."""
        stats = [file.stat() for file in self.files]
        return [
            [str(file.absolute()), stat.st_size, stat.st_mtime_ns]
            for file, stat in zip(self.files, stats, strict=True)
        ]

    def labels(self, table: pd.DataFrame) -> pd.Index:
        """What messages call the rows of a table of batches: lines of CSV, rows of Parquet."""
        every = all(map(_is_csv, self.files))
        name = "line" if every else "row"
        if len(self.files) == 1:
            return pd.Index(table["row"].to_numpy(), name=name)
        names = pa.array([file.name for file in self.files]).take(pa.array(table["file"]))
        rows = pa.array(table["row"].to_numpy()).cast(pa.string())
        text = pc.binary_join_element_wise(rows, names, " of ")
        return pd.Index(text.to_pandas(), name=name)

    def stretches(self) -> list["Stretch"]:
        """All rows in turn, divided into what workers can read side by side.

        A CSV file is one: lines have to be counted from its beginning.
        """
        columns = self.columns()
        return [
            Stretch(file, number, columns, groups)
            for number, file in enumerate(self.files)
            for groups in ([None] if _is_csv(file) else _row_groups(_parquet(file)))
        ]

    def no_rows(self) -> TableError:
        """What is wrong with a table that is empty."""
        return TableError(f"{self.source}: no rows; a pairs table needs at least one pair")


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of a file; it can be sent to a worker.

    Args:
        file: where.
        number: of the file among those of the table.
        columns: the known ones.
        groups: row groups of a Parquet file, the first and the last + 1, and the first row;
            None: all of the file.
    """

    file: Path
    number: int
    columns: tuple[str, ...]
    groups: tuple[int, int, int] | None = None

    def batches(self, only: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in turn, with all columns or some of them."""
        if not self.file.is_file():
            raise InputError(
                f"pairs: {self.file}: not seen by this worker; give a data.path on storage that "
                "all machines share"
            )
        columns = only or self.columns
        if self.groups is None:
            found = _read_csv(self.file, columns)
        else:
            found = _read_parquet(self.file, columns, *self.groups)
        for batch, labels in found:
            yield _typed(batch, columns, self.number, labels)


def _row_groups(content: pq.ParquetFile) -> Iterator[tuple[int, int, int]]:
    """Runs of row groups with STRETCH rows or one group more, and the first row of each run."""
    first = start = rows = 0
    for group in range(content.num_row_groups):
        rows += content.metadata.row_group(group).num_rows
        if rows - start >= STRETCH or group == content.num_row_groups - 1:
            yield first, group + 1, start
            first, start = group + 1, rows


def _is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


def _parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"pairs: {file}: not a readable Parquet file ({error})") from error


def _read_parquet(
    file: Path, columns: Sequence[str], first: int, last: int, row: int
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    content, groups = _parquet(file), list(range(first, last))
    try:
        for batch in content.iter_batches(BATCH, groups, list(columns), use_threads=False):
            if len(batch):
                yield pa.table(batch), np.arange(row, row + len(batch))
                row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"pairs: {file}: not a readable Parquet file ({error})") from error


def _read_csv(file: Path, columns: Sequence[str]) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """All cells as text; lines that were cut are given at the end of their block."""
    require_utf8(file)
    found = header(file)
    short: list[tuple[int, str]] = []

    def keep(row: Any) -> str:
        if row.actual_columns > row.expected_columns:
            return "error"
        short.append((row.number, row.text))
        return "skip"

    options = {
        # One thread: only then do rows have line numbers.
        "read_options": pa.csv.ReadOptions(
            use_threads=False, block_size=CSV_BLOCK, column_names=found, skip_rows=1
        ),
        "parse_options": pa.csv.ParseOptions(invalid_row_handler=keep),
        "convert_options": pa.csv.ConvertOptions(
            include_columns=list(columns),
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
        ),
    }
    line = 2
    try:
        for batch in pa.csv.open_csv(file, **options):
            cut = np.array([number for number, _ in short], dtype=np.int64)
            # The lines that were read are all but the cut ones.
            lines = np.setdiff1d(np.arange(line, line + len(batch) + len(cut)), cut)
            line += len(lines) + len(cut)
            if len(batch):
                yield pa.table(batch), lines[: len(batch)]
            if short:
                yield _cut_lines([text for _, text in short], found, columns), cut
                short.clear()
    except pa.ArrowInvalid as error:
        raise InputError(f"{file}: {explain(str(error), found)}") from error
    if short:  # a file that holds nothing else
        cut = np.array([number for number, _ in short], dtype=np.int64)
        yield _cut_lines([text for _, text in short], found, columns), cut


def _cut_lines(texts: Sequence[str], found: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Lines with too few cells; what is missing is null."""
    rows = [dict(zip(found, cells, strict=False)) for cells in csv.reader(texts)]
    types = pa.schema([(name, pa.string()) for name in columns])
    return pa.Table.from_pylist([{n: row.get(n) or None for n in columns} for row in rows], types)


def _typed(batch: pa.Table, columns: Sequence[str], file: int, rows: np.ndarray) -> pa.Table:
    made: dict[str, Any] = {}
    notes: dict[int, dict[str, str]] = {}
    for name in columns:
        column = batch[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        if name in TEXT:
            made[name] = _text(column)
        else:
            made[name] = _numbers(column, name, notes)
    made["file"] = pa.array(np.full(len(batch), file, dtype=np.int32))
    made["row"] = pa.array(rows.astype(np.int64))
    text = np.full(len(batch), None, dtype=object)
    for place, cells in notes.items():
        text[place] = json.dumps(cells)
    made["note"] = pa.array(text, pa.string())
    return pa.table(made)


def _text(column: pa.Array) -> pa.DictionaryArray:
    """Ids as text, so that 7, 7.0 and "7" are one id in every file format."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    encoded = column.dictionary_encode()
    names = [
        str(int(v)) if isinstance(v, float) and v % 1 == 0 else str(v)
        for v in encoded.dictionary.to_pylist()
    ]
    # A dictionary of its own: Arrow's keeps the whole batch alive for as long as it lives.
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(pa.int32()), pa.array(names, pa.string())
    )


def _numbers(column: pa.Array, name: str, notes: dict[int, dict[str, str]]) -> pa.Array:
    """float64; what is none is null, and its text is noted."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type == pa.float64():
        return column
    try:
        return column.cast(pa.float64(), safe=False)
    except pa.ArrowException:
        given = column.to_pandas()
        numbers = pd.to_numeric(given, errors="coerce").astype(np.float64)
        bad = numbers.isna() & given.notna()
        for place in np.flatnonzero(bad.to_numpy()).tolist():
            notes.setdefault(place, {})[name] = str(given.iloc[place])
        return pa.array(numbers.to_numpy(), pa.float64(), from_pandas=True)
