"""The calibration as ArviZ InferenceData, written driver by driver: memory stays bounded.

`arviz.from_netcdf` reads the file. Groups: `posterior` (chain, draw, driver), `sample_stats`
(diagnostics of each driver), `observed_data` and `constant_data` (driver, time), and
`posterior_predictive` where it was asked for. Of drivers with several segments the last three have
the dimensions driver, segment and time, the newest segment first and NaN beyond each; `samples`
and `age` (s) of `constant_data` say how long and how old they are.
"""

import errno
import os
import shutil
from pathlib import Path
from types import TracebackType

import h5netcdf
import h5py
import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike

from asbc.calibration.export.parts import Part
from asbc.data.pairs import Pairs
from asbc.data.windows import gather
from asbc.trained_model import PREDICTIVE_NOTE, Model
from asbc.utils.files import replacing

OBSERVED = {"gap": "m", "speed": "m/s", "acceleration": "m/s^2"}
# What of the recordings is kept in which group.
COLUMNS = {"observed_data": OBSERVED, "constant_data": {"leader_speed": "m/s"}}
OVERHEAD = 300_000  # bytes of a file without drivers, and some to spare
# Numbers of each driver that belong to the posterior's quality.
STATISTICS = ("leak_rate", "novelty", "k_hat", "effective_draws", "log_evidence")


class InferenceDataWriter:
    """Appends parts to a NetCDF file whose size is known in advance; use as a context manager.

    Args:
        path: the file; it appears when the block ends without an error.
        model: parameters with their units, and the observed stretch.
        drivers: table of all drivers, in the order of the parts.
        samples: draws per driver.
        predictive: stored drives per driver.
    """

    def __init__(
        self,
        path: Path,
        model: Model,
        drivers: pd.DataFrame,
        samples: int,
        predictive: int = 0,
    ) -> None:
        self.prior, self.model = model.simulator.prior, model
        self.drivers = drivers[model.id_column].to_numpy(dtype=object)
        self.slots = int(drivers["segments"].max()) if model.by_driver else 1
        self.time = np.arange(model.context_steps) * model.simulator.dt
        self.samples = samples
        self.objective = model.objective
        self.written = 0
        self._path = path
        self._replacing = replacing(path)
        columns = len(OBSERVED) + 1 + predictive * len(OBSERVED)  # of float32 per step
        steps = self.slots * (len(self.time) + 4)
        values = samples * self.prior.dim + steps * columns + 2 * len(STATISTICS)
        self._size = int(len(self.drivers) * (4 * values + 100) * 1.1) + OVERHEAD

    def __enter__(self) -> "InferenceDataWriter":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # HDF5 may take the whole process down with it when a disk is full.
        if shutil.disk_usage(self._path.parent).free < self._size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._file = h5netcdf.File(self._replacing.__enter__(), "w")
        self._file.attrs["creation_library"] = "asbc"
        if self.objective != "simulated":
            self._file.attrs["posterior_kind"] = self.objective
            self._file.attrs["posterior_note"] = PREDICTIVE_NOTE
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except BaseException as failure:  # what was still to be written found no room
            self._replacing.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._replacing.__exit__(kind, error, trace)

    def add(self, part: Part, pairs: Pairs) -> None:
        """Append a part; `pairs` are its drivers."""
        count = len(part.drivers)
        rows = slice(self.written, self.written + count)
        for name, unit in zip(self.prior.names, self.prior.units, strict=True):
            draws = part.draws[name].to_numpy().reshape(count, self.samples)
            self._put("posterior", name, unit, ("chain", "draw", "driver"), rows, draws.T[None])
        for name in STATISTICS:
            if name in part.drivers:
                values = part.drivers[name].to_numpy(np.float64)
                self._put("sample_stats", name, "", ("driver",), rows, values)
        add = self._add_segments if self.model.by_driver else self._add_observations
        add(pairs, rows)
        segment = ("segment",) if self.model.by_driver else ()
        for name, values in part.predictive.items():
            dimensions = ("chain", "draw", "driver", *segment, "time")
            values = self._padded(values, axis=2) if segment else values
            self._put("posterior_predictive", name, OBSERVED[name], dimensions, rows, values[None])
        self.written = rows.stop

    def _add_segments(self, pairs: Pairs, rows: slice) -> None:
        places, steps = self.model.places(pairs), len(self.time)
        inside = torch.arange(steps) < places.lengths[..., None]
        for group, names in COLUMNS.items():
            for name, unit in names.items():
                column = places.gather(getattr(pairs, name), steps).where(inside, torch.nan)
                values = self._padded(column.numpy(), axis=1)
                self._put(group, name, unit, ("driver", "segment", "time"), rows, values)
        for name, unit, own in (("samples", "", places.lengths), ("age", "s", places.age)):
            values = self._padded(own.numpy(), axis=1, by=0)
            self._put("constant_data", name, unit, ("driver", "segment"), rows, values)

    def _padded(self, values: np.ndarray, axis: int, by: float = np.nan) -> np.ndarray:
        """With as many segments as any driver of the file has."""
        more = [(0, 0)] * values.ndim
        more[axis] = (0, self.slots - values.shape[axis])
        return np.pad(values, more, constant_values=by)

    def _add_observations(self, pairs: Pairs, rows: slice) -> None:
        first = np.zeros(len(pairs), dtype=np.int64)
        every = pairs.offsets.new_tensor(np.arange(len(pairs)))
        start = pairs.offsets.new_tensor(first)
        dimensions = ("driver", "time")
        for group, names in COLUMNS.items():
            for name, unit in names.items():
                flat = getattr(pairs, name)
                values = gather(flat, pairs.offsets, every, start, len(self.time)).numpy()
                self._put(group, name, unit, dimensions, rows, values)

    def _put(
        self,
        group: str,
        name: str,
        unit: str,
        dimensions: tuple[str, ...],
        rows: slice,
        values: np.ndarray,
    ) -> None:
        if group not in self._file.groups:
            self._file.create_group(group)
        into = self._file[group]
        sizes = {**dict(zip(dimensions, values.shape, strict=True)), "driver": len(self.drivers)}
        for dimension in dimensions:
            if dimension not in into.dimensions:
                self._add_dimension(into, dimension, sizes[dimension])
        if name not in into.variables:
            shape = tuple(sizes[d] for d in dimensions)
            # Chunks as they are written: one part's drivers at a time.
            chunks = tuple(min(size, s) for size, s in zip(values.shape, shape, strict=True))
            made = into.create_variable(name, dimensions, values.dtype, chunks=chunks)
            if unit:
                made.attrs["units"] = unit
        place = tuple(rows if d == "driver" else slice(None) for d in dimensions)
        into.variables[name][place] = values

    def _add_dimension(self, group: h5netcdf.Group, name: str, size: int) -> None:
        coordinate: dict[str, ArrayLike] = {"driver": self.drivers, "time": self.time}
        values = np.asarray(coordinate.get(name, np.arange(size)))
        group.dimensions[name] = size
        dtype = h5py.string_dtype() if name == "driver" else values.dtype
        group.create_variable(name, (name,), dtype, data=values)
