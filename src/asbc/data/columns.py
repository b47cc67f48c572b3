"""Columns out of delimited text; every failure names the file, the line and a remedy."""

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from asbc.data.table import require_numbers
from asbc.errors import InputError

_CHUNK = 1 << 24

# What the reader's own message says -> what to do about it.
_REMEDIES = (
    ("Expected", "the line is cut or has extra separators; copy the file again or mend the line"),
    ("conversion error", "write a plain number there"),
)


def header(path: Path) -> list[str]:
    """Column names in the first line."""
    line = _first_line(path)
    return [name.strip().strip('"') for name in line.rstrip("\r\n").split(",")]


def read_csv_columns(path: Path, columns: Mapping[str, pa.DataType]) -> pd.DataFrame:
    """The given columns of a comma-separated file, and nothing else, in memory.

    Returns:
        A table whose index counts the lines of the file (the header is line 1).
    """
    require_utf8(path)
    found = header(path)
    missing = [name for name in columns if name not in found]
    if missing:
        raise InputError(f"{path}: missing column {', '.join(missing)}; found {', '.join(found)}")
    try:
        table = pa.csv.read_csv(
            path,
            # One thread: only then do messages carry line numbers.
            read_options=pa.csv.ReadOptions(use_threads=False, column_names=found, skip_rows=1),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(columns), column_types=dict(columns), strings_can_be_null=True
            ),
        ).to_pandas()
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: {explain(str(error), found)}") from error
    if table.empty:
        raise InputError(
            f"{path}: no data rows below the header; the file is empty or cut, write it again"
        )
    table.index = pd.RangeIndex(2, len(table) + 2, name="line")
    return table


def read_spaced_columns(path: Path, names: Sequence[str], wanted: Sequence[str]) -> pd.DataFrame:
    """Numeric columns `wanted` of a headerless file of `names`, separated by blanks.

    Returns:
        A float64 table whose index counts the lines of the file (the first is line 1).
    """
    require_utf8(path)
    found = len(_first_line(path).split())
    if found != len(names):
        raise InputError(
            f"{path}: {found} columns in line 1, expected {len(names)} separated by blanks "
            f"({', '.join(names)}) or a comma-separated file with a header"
        )

    def read(dtype: type) -> pd.DataFrame:
        # All columns: only then does the reader notice lines with too many.
        return pd.read_csv(path, sep=r"\s+", header=None, names=list(names), dtype=dtype)

    try:
        table = read(np.float64)
    except pd.errors.ParserError as error:
        raise InputError(f"{path}: {explain(str(error), names)}") from error
    except ValueError:
        table = read(str)  # for a message that names the cell
    table.index = pd.RangeIndex(1, len(table) + 1, name="line")
    return require_numbers(table, str(path))[list(wanted)]


def _first_line(path: Path) -> str:
    # Bytes that are not text show as themselves here; the readers refuse them by line.
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline()
    if not line.strip():
        raise InputError(f"{path}: empty file or blank first line; expected data")
    return line


def require_utf8(path: Path) -> None:
    """Check every byte: the readers skip columns, and so would miss what is in them."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = 1
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if not chunk.isascii() or decoder.getstate()[0]:
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError as error:
                    line = lines + chunk[: error.start].count(b"\n")
                    raise InputError(
                        f"{path}: line {line} is not UTF-8 text ({error.reason}); convert the "
                        "file to UTF-8 or copy it again"
                    ) from error
            lines += chunk.count(b"\n")


def explain(message: str, names: Sequence[str]) -> str:
    """The reader's message with columns by name and lines as lines, and a remedy."""
    remedy = next((text for sign, text in _REMEDIES if sign in message), "mend the file")
    message = re.sub(r"In CSV column #(\d+)", lambda m: f"column {names[int(m[1])]}", message)
    return f"{message.replace('Row #', 'line ')}; {remedy}"
