"""CSV tables of a run, rewritten as a whole from rows that are part of the checkpoint.

A resumed run thus continues exactly the table its checkpoint knew, whatever a killed process had
written after that.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from asbc.training.folder import write_text

Row = dict[str, float]


def write_table(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows under the union of their columns, in order of first appearance; atomically."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(Path(path), text.getvalue())
