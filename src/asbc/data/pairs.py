"""A pairs table from a CSV or Parquet file: `data=pairs data.path=FILE`."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from asbc.data.source import DataSource, Loaded
from asbc.data.table import (
    ID_COLUMNS,
    NUMERIC_COLUMNS,
    OPTIONAL_COLUMNS,
    validate_pairs,
)
from asbc.data.text import header, read_csv_columns
from asbc.utils.checks import InputError

__all__ = ["PairsFile", "read_pairs", "validate_pairs"]


@dataclass(frozen=True, kw_only=True)
class PairsFile(DataSource):
    """Pairs from one file with the columns of `asbc.data.table`."""

    path: str

    @property
    def description(self) -> str:
        return f"pairs: {self.path}"

    def load(self) -> Loaded:
        return Loaded(read_pairs(self.path), {})


def read_pairs(path: str | Path) -> pd.DataFrame:
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
