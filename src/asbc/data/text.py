"""Columns out of delimited text; every failure names the file, the line and a remedy."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv

from asbc.utils.checks import InputError

# What the reader's own message says -> what to do about it.
_REMEDIES = (
    ("invalid UTF8", "the file is not UTF-8 text; convert it"),
    ("Expected", "the line is cut or has extra separators; copy the file again or mend the line"),
    ("conversion error", "write a plain number there"),
)


def header(path: Path) -> list[str]:
    """Column names in the first line."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            line = file.readline()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8") from error
    if not line.strip():
        raise InputError(f"{path}: empty file; expected a header line and data")
    return [name.strip().strip('"') for name in line.rstrip("\r\n").split(",")]


def read_csv_columns(path: Path, columns: Mapping[str, pa.DataType]) -> pd.DataFrame:
    """The given columns of a comma-separated file, and nothing else, in memory.

    Returns:
        A table whose index counts the lines of the file (the header is line 1).
    """
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
        raise InputError(f"{path}: {_explain(str(error))}") from error
    if table.empty:
        raise InputError(f"{path}: no data rows below the header; the file is empty or cut")
    table.index = pd.RangeIndex(2, len(table) + 2, name="line")
    return table


def _explain(message: str) -> str:
    remedy = next((text for sign, text in _REMEDIES if sign in message), "mend the file")
    return f"{message}; {remedy}"
