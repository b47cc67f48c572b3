"""Drivers calibrated in memory: draws, summaries and flags as tables, and where they go next."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import torch

from asbc.calibration.calibrate import CalibrationSettings, Job, calibrate_chunks
from asbc.calibration.export.netcdf import InferenceDataWriter
from asbc.calibration.export.parts import Part
from asbc.calibration.export.sumo import sumo_types, write_vtypes
from asbc.calibration.export.tables import driver_columns, long_summary
from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import as_source, load_drivers
from asbc.run import Model, Run

if TYPE_CHECKING:
    from arviz import InferenceData
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Fit:
    """A posterior for every driver.

    Attributes:
        model: what calibrated them.
        pairs: the drivers, in the order of all tables.
        parts: their draws and diagnostics, a chunk of drivers each.
        skipped: reason by driver that could not be calibrated.
    """

    model: Model
    pairs: Pairs
    parts: tuple[Part, ...]
    skipped: dict[str, str]

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def draws(self) -> pd.DataFrame:
        """A row per driver and draw: `pair_id`, `draw`, and a column per parameter."""
        return pa.concat_tables([part.draws for part in self.parts]).to_pandas()

    @cached_property
    def _drivers(self) -> pd.DataFrame:
        return pd.concat([part.drivers for part in self.parts], ignore_index=True)

    @property
    def summary(self) -> pd.DataFrame:
        """A row per driver and parameter: mean, sd, 5%, 50% and 95% quantile, with the unit."""
        return long_summary(self._drivers, self.model.simulator.prior).reset_index(drop=True)

    @property
    def flags(self) -> pd.DataFrame:
        """A row per driver: how it got its draws, and every reason to be careful with them."""
        return driver_columns(self._drivers)

    def to_arviz(self) -> InferenceData:
        """Posterior, observations and diagnostics as ArviZ InferenceData."""
        import arviz as az

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "posterior.nc"
            writer = InferenceDataWriter(
                path,
                self.model.simulator.prior,
                list(self.pairs.pair_id),
                len(self.draws) // len(self),
                self.model.context_steps,
                self.model.simulator.dt,
            )
            with writer:
                first = 0
                for part in self.parts:
                    rows = range(first, first + len(part.drivers))
                    writer.add(part, self.pairs.select(rows))
                    first = rows.stop
            return az.from_netcdf(str(path), engine="h5netcdf").load()

    def to_sumo(self, path: str | Path, drivers: int = 300, seed: int = 0, **types: Any) -> Path:
        """Write `drivers` new drivers of the calibrated population as SUMO vehicle types.

        Args:
            path: the additional file.
            drivers: how many; each is one draw of one driver, so correlations are kept.
            seed: which ones.
            types: settings of `asbc.calibration.export.sumo.SumoTypes`, e.g. length=4.5.
        """
        names = self.model.simulator.prior.names
        chosen = self.draws.sample(drivers, replace=True, random_state=seed)[list(names)]
        settings = sumo_types(self.model.simulator, **types)
        write_vtypes(Path(path), torch.from_numpy(chosen.to_numpy()), names, settings)
        return Path(path)

    def plot(self, pair: str | int) -> Figure:
        """One driver: 10 s predictions with 95% intervals after its context, and its posterior.

        Args:
            pair: its id, with or without the recording.
        """
        from asbc.evaluation.cases import study_cases
        from asbc.evaluation.protocol import EvaluationSettings
        from asbc.reporting.figures.case_study import case_study

        place = self.pairs.find(pair)
        chosen = self.pairs.select([place])
        own = self.draws[self.draws["pair_id"] == chosen.pair_id[0]]
        columns = own[list(self.model.simulator.prior.names)].to_numpy(copy=True)
        cases = study_cases(
            self.model.simulator,
            torch.from_numpy(columns)[None],
            chosen,
            self.model.context_steps,
            EvaluationSettings(),
        )
        return case_study({"posterior": cases}, chosen.pair_id[0])


def calibrate(
    data: pd.DataFrame | str | Path | Pairs,
    run: Run | str | Path,
    samples: int = 500,
    seed: int = 0,
    refine: str = "none",
    on_error: str = "stop",
    min_duration: float | None = None,
) -> Fit:
    """A posterior for every driver of a table, from a trained run.

    Args:
        data: a pairs table, a CSV or Parquet file of one, or pairs.
        run: the run, or its folder.
        samples: draws per driver.
        seed: a driver's draws depend on it and on the driver's id only.
        refine: what happens to the network's draws: "none", "psis" or "auto" (conf/refine).
        on_error: what a driver that cannot be read does: "stop", or "skip" and be reported.
        min_duration: shortest recording used (s); None: as long as the model's context.

    Example:
        >>> fit = calibrate("drivers.csv", run="outputs/demo")  # doctest: +SKIP
        >>> fit.summary, fit.to_sumo("drivers.add.xml")  # doctest: +SKIP
    """
    run = run if isinstance(run, Run) else Run.open(run)
    model = run.model()
    settings = CalibrationSettings(samples=samples, seed=seed, on_error=on_error)
    source = as_source(data, model.simulator.dt, model.context_steps, min_duration)
    drivers = load_drivers(source, on_error)
    refinement = build(compose("calibrate", [f"refine={refine}"]).refine)
    novelty = run.novelty(model.context_steps)
    job = Job(model=model, refinement=refinement, settings=settings, novelty=novelty)
    parts = tuple(part for _, part in calibrate_chunks(job, drivers.pairs))
    kept = torch.cat([torch.from_numpy(p.drivers["position"].to_numpy(copy=True)) for p in parts])
    unusable = {name: reason for part in parts for name, reason in part.skipped.items()}
    return Fit(model, drivers.pairs.select(kept), parts, drivers.skipped | unusable)
