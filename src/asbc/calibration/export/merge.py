"""The outputs of a calibration, made of its chunks: a file of each kind, or parts and an index."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import pyarrow.parquet as pq

from asbc.calibration.export.netcdf import InferenceDataWriter
from asbc.calibration.export.parts import ENCODING, Parts
from asbc.calibration.export.tables import driver_columns, long_summary
from asbc.data.driver_store import DriverStore, Piece
from asbc.engine import Pool
from asbc.errors import InputError
from asbc.utils.files import replacing, write_text

if TYPE_CHECKING:
    from asbc.calibration.calibrate import Job

# Kinds of output and their endings: draws.parquet, or draws/00000.parquet and so on.
KINDS = {"draws": "parquet", "drivers": "csv", "summary": "csv", "posterior": "nc"}
INDEX = "index.csv"
Edges = Sequence[tuple[int, int]]


def merge(
    parts: Parts, edges: Edges, job: "Job", drivers: DriverStore, folder: Path, pool: Pool
) -> None:
    """Write draws, drivers, summary and posterior.nc into `folder`.

    Up to `calibration.drivers_per_file` drivers make one file of each kind. More make folders of
    parts, and `index.csv` says which drivers are in which; `posterior` is then written only if
    `calibration.arviz` asks for it.

    Args:
        parts: the chunks, all of which are there.
        edges: first driver and last + 1 of each chunk.
        job: what made them.
        drivers: the drivers.
        folder: where to.
        pool: workers that keep the job.
    """
    settings = job.settings
    total = edges[-1][1]
    count = -(-total // settings.drivers_per_file)
    groups = [
        list(range(len(edges)))[i * len(edges) // count : (i + 1) * len(edges) // count]
        for i in range(count)
    ]
    groups = [group for group in groups if group]
    if not any(len(parts.drivers(i, ["position"])) for i in range(len(edges))):
        raise InputError("no driver could be calibrated")
    arviz = len(groups) == 1 if settings.arviz is None else settings.arviz
    work: list[tuple[str, PartWork]] = []
    for number, group in enumerate(groups):
        names = {
            kind: folder / (f"{kind}.{end}" if len(groups) == 1 else f"{kind}/{number:05d}.{end}")
            for kind, end in KINDS.items()
        }
        pieces = [drivers.piece(*edges[i]) for i in group] if arviz else []
        chunks = Chunks(parts, group, [edges[i][0] for i in group])
        if arviz:  # the longest first
            work.append((f"ArviZ file of part {number}", (write_netcdf, chunks, names, pieces)))
        work.append((f"draws of part {number}", (write_draws, chunks, names, [])))
        work.append((f"tables of part {number}", (write_tables, chunks, names, [])))
    found = dict(pool.map(_write, work, "writing"))
    if len(groups) == 1:
        return
    rows = [(f"{i:05d}", *found[f"tables of part {i}"]) for i in range(len(groups))]
    text = io.StringIO()
    name = job.model.id_column
    csv.writer(text, lineterminator="\n").writerows(
        [("part", "drivers", f"first_{name}", f"last_{name}"), *rows]
    )
    write_text(folder / INDEX, text.getvalue())


class Chunks(NamedTuple):
    """Finished chunks that make one part: which of them, and the first driver of each."""

    parts: Parts
    group: list[int]
    starts: list[int]

    def drivers(self) -> pd.DataFrame:
        """Their table of drivers."""
        return pd.concat([self.parts.drivers(i) for i in self.group], ignore_index=True)


# Who writes a file, of which chunks, file by kind, and their drivers where ArviZ needs them.
PartWork = tuple[Callable[..., Any], Chunks, dict[str, Path], list[Piece]]


def _write(job: "Job", work: PartWork) -> Any:
    write, *arguments = work
    return write(job, *arguments)


def write_tables(
    job: "Job", chunks: Chunks, names: dict[str, Path], _: list[Piece]
) -> tuple[int, str, str]:
    """Write the tables of drivers and of their parameters; how many, the first and the last."""
    drivers = chunks.drivers()
    with replacing(names["summary"]) as path:
        summary = long_summary(drivers, job.model.simulator.prior)
        summary.to_csv(path, index=False, float_format="%.6g")
    with replacing(names["drivers"]) as path:
        driver_columns(drivers).to_csv(path, index=False, float_format="%.6g")
    ids = drivers[job.model.id_column]
    return len(drivers), (ids.iloc[0] if len(ids) else ""), (ids.iloc[-1] if len(ids) else "")


def write_draws(job: "Job", chunks: Chunks, names: dict[str, Path], _: list[Piece]) -> None:
    """Write the draws, a row group per chunk: readers need not hold more than that."""
    parts, group, _starts = chunks
    schema = parts.draws_schema(group[0])
    with (
        replacing(names["draws"]) as path,
        pq.ParquetWriter(path, schema, **ENCODING) as writer,
    ):
        for index in group:
            draws = parts.draws(index)
            writer.write_table(draws, row_group_size=max(1, draws.num_rows))


def write_netcdf(job: "Job", chunks: Chunks, names: dict[str, Path], pieces: list[Piece]) -> None:
    """Write the file for ArviZ."""
    path, samples = names["posterior"], job.settings.samples
    with InferenceDataWriter(path, job.model, chunks.drivers(), samples) as netcdf:
        for index, start, piece in zip(chunks.group, chunks.starts, pieces, strict=True):
            part = chunks.parts.read(index)
            place = part.drivers["position"].to_numpy(copy=True) - start
            netcdf.add(part, job.model.select(piece.pairs(), place))


def draws_files(place: Path) -> list[Path]:
    """The files of draws of a calibration: of its folder, or the file that is given itself."""
    if not place.is_dir():
        return [place] if place.is_file() else []
    one = place / "draws.parquet"
    return [one] if one.is_file() else sorted((place / "draws").glob("*.parquet"))
