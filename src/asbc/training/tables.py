"""CSV tables of a run, rewritten as a whole from rows that are part of the checkpoint.

A resumed run thus continues exactly the table its checkpoint knew, whatever a killed process had
written after that.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

Row = dict[str, float]


def write_table(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows under the union of their columns, in order of first appearance; atomically."""
    path = Path(path)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(partial, path)
