"""From parts to the files a user opens, streamed part by part."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from asbc.calibration.chunk import Job
from asbc.calibration.inference_data import InferenceDataWriter
from asbc.calibration.parts import ENCODING, Parts, replacing
from asbc.calibration.tables import driver_columns, long_summary
from asbc.data.pairset import PairSet
from asbc.utils.checks import InputError
from asbc.utils.progress import progress

DRAWS, DRIVERS, SUMMARY, NETCDF = "draws.parquet", "drivers.csv", "summary.csv", "posterior.nc"


def merge(
    parts: Parts, count: int, job: Job, pairs: PairSet, folder: Path
) -> tuple[pd.DataFrame, dict[str, float], dict[str, str]]:
    """Write `draws.parquet`, `drivers.csv`, `summary.csv` and `posterior.nc` into `folder`.

    Returns:
        The table of drivers, seconds by stage, and the reason for each skipped driver.
    """
    prior, model = job.model.simulator.prior, job.model
    drivers = pd.concat([parts.drivers(i) for i in range(count)], ignore_index=True)
    if drivers.empty:
        raise InputError("no driver could be calibrated")
    with replacing(folder / SUMMARY) as path:
        long_summary(drivers, prior).to_csv(path, index=False, float_format="%.6g")
    with replacing(folder / DRIVERS) as path:
        driver_columns(drivers).to_csv(path, index=False, float_format="%.6g")
    netcdf = InferenceDataWriter(
        folder / NETCDF,
        prior,
        list(drivers["pair_id"]),
        job.settings.samples,
        model.context_steps,
        model.simulator.dt,
    )
    schema = parts.read(0).draws.schema
    with (
        replacing(folder / DRAWS) as path,
        netcdf,
        pq.ParquetWriter(path, schema, **ENCODING) as writer,
    ):
        for index in progress(range(count), "writing", total=count):
            part = parts.read(index)
            # One row group per part: readers need not hold more than that.
            writer.write_table(part.draws, row_group_size=max(1, part.draws.num_rows))
            netcdf.add(part, pairs.select(part.drivers["position"].to_numpy(copy=True)))
    return drivers, *_totals(parts, count)


def _totals(parts: Parts, count: int) -> tuple[dict[str, float], dict[str, str]]:
    seconds: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for index in range(count):
        record = parts.record(index)
        skipped |= record["skipped"]
        for stage, value in record["seconds"].items():
            seconds[stage] = seconds.get(stage, 0.0) + value
    return seconds, skipped
