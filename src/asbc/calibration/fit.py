"""Drivers calibrated in memory: draws, summaries and flags as tables, and where they go next."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from asbc.calibration.calibrate import CalibrationSettings, Job, calibrate_chunks
from asbc.calibration.export.netcdf import InferenceDataWriter
from asbc.calibration.export.parts import Part
from asbc.calibration.export.sumo import sumo_types, write_vtypes
from asbc.calibration.export.tables import driver_columns, long_summary
from asbc.calibration.refinement import Refinement
from asbc.config import CONF, build, compose
from asbc.data.driver_store import given_drivers
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import as_source, load_drivers
from asbc.data.source import MIN_STEPS
from asbc.errors import InputError
from asbc.run import Run
from asbc.trained_model import Model
from asbc.utils.random import stream

if TYPE_CHECKING:
    from arviz import InferenceData
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Fit:
    """A posterior for every driver, as `calibrate` returns it.

    Attributes:
        model: what calibrated them.
        pairs: the drivers' pairs, in the order of all tables; where a run reads everything known
            of a driver, a driver may have several.
        part: their draws and diagnostics.
        skipped: reason by driver that could not be calibrated.

    Example:
        >>> from asbc import train
        >>> fit = train(table, folder, small, experiment="smoke").calibrate(table, samples=20)
        >>> len(fit), fit.draws.shape, list(fit.draws)[:4]
        (12, (240, 8), ['pair_id', 'draw', 'v0', 's0'])
    """

    model: Model
    pairs: Pairs
    part: Part
    skipped: dict[str, str]

    def __len__(self) -> int:
        return len(self.part.drivers)

    def __repr__(self) -> str:
        flagged, draws = int(self.flags["flagged"].sum()), self.theta.shape[1]
        return (
            f"Fit({len(self)} drivers with {draws} draws each, {flagged} flagged, "
            f"{len(self.skipped)} skipped)"
        )

    @cached_property
    def draws(self) -> pd.DataFrame:
        """A row per driver and draw: who (`pair_id`, or `follower` where a row is a driver with
        all of its pairs), `draw`, and a column per parameter."""
        return self.part.draws.to_pandas()

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row per driver and parameter: mean, sd, 5%, 50% and 95% quantile, with the unit."""
        table = long_summary(self.part.drivers, self.model.simulator.prior)
        return table.reset_index(drop=True)

    @cached_property
    def flags(self) -> pd.DataFrame:
        """A row per driver: how it got its draws, and every reason to be careful with them."""
        return driver_columns(self.part.drivers)

    @cached_property
    def theta(self) -> Tensor:
        """The draws as a tensor (driver, draw, parameter)."""
        values = self.draws[list(self.model.simulator.parameter_names)].to_numpy(copy=True)
        return torch.from_numpy(values).unflatten(0, (len(self), -1))

    def to_arviz(self) -> InferenceData:
        """Posterior, observations and diagnostics, in the groups of a calibration's posterior.nc.

        `posterior` has the dimensions chain (one), draw and driver.
        """
        import arviz as az

        # Through a file: one piece of code says what is in which group.
        with tempfile.TemporaryDirectory() as folder:
            path, draws = Path(folder) / "posterior.nc", self.theta.shape[1]
            with InferenceDataWriter(path, self.model, self.part.drivers, draws) as writer:
                writer.add(self.part, self.pairs)
            return az.from_netcdf(str(path), engine="h5netcdf").load()

    def to_sumo(self, path: str | Path, drivers: int = 300, seed: int = 0, **types: Any) -> Path:
        """Write new drivers of the calibrated population as SUMO vehicle types; returns `path`.

        Args:
            path: the additional file.
            drivers: how many; each is one draw of one driver, so correlations are kept.
            seed: which ones.
            types: settings of `asbc.calibration.export.sumo.SumoTypes`, e.g. length=4.5.
        """
        pooled = self.theta.flatten(0, 1)
        chosen = torch.from_numpy(stream(seed, "sumo").integers(len(pooled), size=drivers))
        simulator = self.model.simulator
        settings = sumo_types(simulator, **types)
        write_vtypes(Path(path), pooled[chosen], simulator.parameter_names, settings)
        return Path(path)

    def plot(self, pair: str | int) -> Figure:
        """One driver: predictions with 95% intervals after its context, and its posterior.

        Where the posterior is that of a driver with all of its pairs, it has seen these windows.

        Args:
            pair: id of one of its pairs, with or without the recording.
        """
        from asbc.evaluation.cases import study_cases
        from asbc.evaluation.protocol import EvaluationSettings
        from asbc.reporting.figures.case_study import case_study

        place = self.pairs.find(pair)
        chosen = self.pairs.select([place])
        settings = EvaluationSettings()
        if int(chosen.lengths) <= settings.horizon:
            raise InputError(
                f"pair {chosen.pair_id[0]}: recorded for {int(chosen.lengths) * chosen.dt:g} s; "
                f"a plot needs more than the {settings.horizon * chosen.dt:g} s it predicts"
            )
        owner = (chosen.follower if self.model.by_driver else chosen.pair_id)[0]
        row = self.model.names(self.pairs).index(owner)
        cases = study_cases(
            self.model.simulator,
            self.theta[row : row + 1],
            chosen,
            self.model.context_steps,
            settings,
        )
        return case_study({"posterior": cases}, chosen.pair_id[0])


def calibrate(
    data: pd.DataFrame | str | Path | Pairs,
    run: Run | str | Path,
    samples: int = 500,
    seed: int = 0,
    refine: str | Refinement = "none",
    on_error: str = "stop",
    min_duration: float | None = None,
    context: str | None = None,
) -> Fit:
    """A posterior for every driver of a table, from a trained run.

    Args:
        data: a pairs table, a CSV or Parquet file of one, or pairs.
        run: the run, or its folder.
        samples: draws per driver.
        seed: a driver's draws depend on it and on the driver's id only.
        refine: what happens to the network's draws: "none", "psis" or "auto" (conf/refine), or
            one of the classes of `asbc.calibration.refinement` with settings of your own.
        on_error: what a driver that cannot be read does: "stop", or "skip" and be reported.
        min_duration: shortest recording used (s); None: as long as the model's context, or as
            the shortest segment.
        context: "first": a posterior for each pair, from its first T_E samples; "all": one for
            each driver (`follower_id`), from all of its pairs; None: "all" where the run reads
            several segments (`history=segments`).

    Example:
        >>> from asbc import train
        >>> run = train(table, folder, small, experiment="smoke")
        >>> fit = calibrate(table, run, samples=20)
        >>> fit.summary.loc[0, ["pair_id", "parameter", "unit"]].tolist()
        ['r/0', 'v0', 'm/s']
        >>> fit.to_sumo("drivers.add.xml").name
        'drivers.add.xml'
    """
    run = run if isinstance(run, Run) else Run.open(run)
    model = run.model(context=context)
    job = Job(
        model=model,
        refinement=_refinement(refine) if isinstance(refine, str) else refine,
        settings=CalibrationSettings(samples=samples, seed=seed, on_error=on_error),
        novelty=run.novelty(model.context_steps, model.context),
    )
    steps = MIN_STEPS if model.by_driver else model.context_steps
    source = as_source(data, model.simulator.dt, steps, min_duration)
    drivers = given_drivers(load_drivers(source, on_error), on_error, model.shortest)
    part = Part.joined(list(calibrate_chunks(job, drivers)))
    if part.drivers.empty:
        raise InputError("no driver could be calibrated")
    place = part.drivers["position"].to_numpy(copy=True)
    kept = model.select(drivers.piece(0, len(drivers)).pairs(), place)
    return Fit(model, kept, part, drivers.skipped | part.skipped)


def _refinement(name: str) -> Refinement:
    """The refinement that a file of conf/refine describes."""
    known = sorted(path.stem for path in (CONF / "refine").glob("*.yaml"))
    if name not in known:
        raise InputError(f"refine={name}; expected one of {', '.join(known)}")
    return build(compose(f"refine/{name}").refine)
