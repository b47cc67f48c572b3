"""The outputs of a calibration, made of its chunks: a file of each kind, or parts and an index."""

import csv
import io
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

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
    if not any(len(parts.drivers(i, ["pair_id"])) for i in range(len(edges))):
        raise InputError("no driver could be calibrated")
    arviz = len(groups) == 1 if settings.arviz is None else settings.arviz
    work = []
    for number, group in enumerate(groups):
        names = {
            kind: folder / (f"{kind}.{end}" if len(groups) == 1 else f"{kind}/{number:05d}.{end}")
            for kind, end in KINDS.items()
            if arviz or kind != "posterior"
        }
        pieces = [drivers.piece(*edges[i]) if arviz else None for i in group]
        starts = [edges[i][0] for i in group]
        work.append((f"part {number}", (parts, group, pieces, starts, names)))
    if len(groups) == 1:
        write_part(job, work[0][1])
        return
    found = dict(pool.map(write_part, work, "writing"))
    rows = [(f"{i:05d}", *found[key]) for i, (key, _) in enumerate(work)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [("part", "drivers", "first_pair_id", "last_pair_id"), *rows]
    )
    write_text(folder / INDEX, text.getvalue())


# Chunks, which of them, their drivers (for ArviZ), the first one's position, file by kind.
PartWork = tuple[Parts, list[int], list[Piece | None], list[int], dict[str, Path]]


def write_part(job: "Job", work: PartWork) -> tuple[int, str, str]:
    """Write the files of some chunks; how many drivers, the first and the last."""
    parts, group, pieces, starts, names = work
    prior = job.model.simulator.prior
    drivers = pd.concat([parts.drivers(i) for i in group], ignore_index=True)
    with replacing(names["summary"]) as path:
        long_summary(drivers, prior).to_csv(path, index=False, float_format="%.6g")
    with replacing(names["drivers"]) as path:
        driver_columns(drivers).to_csv(path, index=False, float_format="%.6g")
    with ExitStack() as stack:
        path = stack.enter_context(replacing(names["draws"]))
        netcdf = None
        if "posterior" in names:
            samples = job.settings.samples
            netcdf = InferenceDataWriter(
                names["posterior"], job.model, drivers["pair_id"], samples
            )
            stack.enter_context(netcdf)
        schema = parts.draws_schema(group[0])
        writer = stack.enter_context(pq.ParquetWriter(path, schema, **ENCODING))
        for index, piece, start in zip(group, pieces, starts, strict=True):
            part = parts.read(index)
            # One row group per chunk: readers need not hold more than that.
            writer.write_table(part.draws, row_group_size=max(1, part.draws.num_rows))
            if netcdf is not None and piece is not None:
                place = part.drivers["position"].to_numpy(copy=True) - start
                netcdf.add(part, piece.pairs().select(place))
    ids = drivers["pair_id"]
    return len(drivers), (ids.iloc[0] if len(ids) else ""), (ids.iloc[-1] if len(ids) else "")


def draws_files(place: Path) -> list[Path]:
    """The files of draws of a calibration: of its folder, or the file that is given itself."""
    if not place.is_dir():
        return [place] if place.is_file() else []
    one = place / "draws.parquet"
    return [one] if one.is_file() else sorted((place / "draws").glob("*.parquet"))
