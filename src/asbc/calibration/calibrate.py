"""Calibrating a whole file of drivers: chunk by chunk, continued where a run was interrupted."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.calibration.evidence import Comparison
from asbc.calibration.export.merge import merge
from asbc.calibration.export.parts import Part, Parts
from asbc.calibration.export.tables import draws_table, summary_columns
from asbc.calibration.flags import any_flag, flag_columns, readable
from asbc.calibration.held_out import HeldOutComparison
from asbc.calibration.outcome import Outcome
from asbc.calibration.predicted_drives import predicted_drives
from asbc.calibration.refinement import AutoRefinement, NoRefinement, Refinement
from asbc.data.driver_store import DriverStore, GivenDrivers, Piece, given_drivers
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import Drivers
from asbc.engine import Engine, LocalEngine, Pool
from asbc.errors import InputError
from asbc.evaluation.observation import EXACT, check_observation
from asbc.posterior.novelty import Novelty
from asbc.simulator.laws import IDM
from asbc.trained_model import Model
from asbc.utils.files import write_text
from asbc.utils.progress import Stopwatch, progress

ON_ERROR = ("stop", "skip")
# Says that a calibration is finished, with what, and what came of it.
RECORD = "calibration.json"


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """Sizes and seed of a calibration.

    Args:
        samples: posterior draws written per driver.
        seed: all randomness; a driver's draws depend on it and on the driver's id only.
        chunk: drivers calibrated and written at once: bounds memory and what a kill can lose.
        on_error: what a driver that cannot be calibrated does: `stop` the run with its name, or
            `skip` and be reported at the end.
        predictive_draws: drives behind the recorded leader that are simulated per driver and
            stored as posterior predictive; 0 stores none.
        observation: their gaps as simulated (`exact`), or with the error of each driver's own
            recording (`recorded`, see `asbc.evaluation.observation`).
        novelty: whether to flag contexts that are unlike the training's.
        drivers_per_file: outputs of more drivers are written in parts of about so many.
        arviz: whether to write `posterior.nc`; None: where there is one part only.
        context: what a posterior is conditioned on: the `first` T_E samples of each pair, or
            `all` that a driver has; None: `all` where the run reads several segments.
    """

    samples: int = 500
    seed: int = 0
    chunk: int = 256
    on_error: str = "stop"
    predictive_draws: int = 0
    observation: str = EXACT
    novelty: bool = True
    drivers_per_file: int = 20_000
    arviz: bool | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        least = {"samples": 2, "chunk": 1, "predictive_draws": 0, "drivers_per_file": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value < smallest:
                raise InputError(f"calibration.{name}={value}; expected at least {smallest}")
        if self.predictive_draws > self.samples:
            raise InputError(
                f"calibration.predictive_draws={self.predictive_draws} is more than "
                f"calibration.samples={self.samples}"
            )
        if self.on_error not in ON_ERROR:
            raise InputError(f"on_error={self.on_error}; expected stop or skip")
        check_observation(self.observation, "calibration")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that turns drivers into posteriors.

    Attributes:
        model: the trained posterior and its simulator.
        refinement: what happens to its draws.
        settings: sizes and seed.
        novelty: yardstick of the training simulations, if contexts are to be compared with them.
        comparison: of other runs' evidence or predictions with this one's, if any.
    """

    model: Model
    refinement: Refinement
    settings: CalibrationSettings
    novelty: Novelty | None = None
    comparison: Comparison | HeldOutComparison | None = None

    def __post_init__(self) -> None:
        law = type(self.model.simulator.law)
        if isinstance(self.refinement, AutoRefinement) and law is not IDM:
            raise InputError(f"refine=auto: NUTS knows the IDM only, not {law.__name__}; use psis")
        if self.model.predictive and not isinstance(self.refinement, NoRefinement):
            raise InputError(
                "refine: the run was trained to predict recorded drivers, so its draws are no "
                "posterior that the simulator's likelihood could correct; use refine=none"
            )
        if self.model.robust and not isinstance(self.refinement, NoRefinement):
            raise InputError(
                "refine: the run was trained with robust contexts, and weights by the simulator's "
                "likelihood would undo that; use refine=none"
            )
        if self.comparison is None:
            return
        if self.comparison.needs_weights and isinstance(self.refinement, NoRefinement):
            raise InputError(
                "compare_run needs evidences: add refine=psis or refine=auto, or compare "
                "predictions with compare_run=[OTHER_RUN]"
            )
        self.comparison.check(self.model)


def calibrate_chunk(job: Job, pairs: Pairs, positions: np.ndarray) -> Part:
    """Posteriors of `pairs`, or of their drivers, who stand at `positions` of the data."""
    watch, settings, prior = Stopwatch(), job.settings, job.model.simulator.prior
    refined = job.refinement(job.model, pairs, settings.samples, settings.seed, watch)
    found: dict[str, np.ndarray] = {"route": refined.route, **refined.columns}
    if job.model.predictive:
        found["posterior"] = np.full(len(refined.theta), "predictive", dtype=object)
    if job.comparison is not None:
        found |= job.comparison.columns(job.model, pairs, found, settings.seed, watch)
    with watch("flags"):
        embedding = job.model.posterior.encode(job.model.contexts(pairs))
        found |= flag_columns(refined.theta, refined.leak_rate, prior, job.novelty, embedding)
        found["flagged"] = any_flag(found)
        found |= summary_columns(refined.theta, prior)
    drivers = pd.DataFrame({**_names(job.model, pairs), "position": positions, **found})
    good = readable(embedding)
    names = job.model.names(pairs)
    skipped = {} if bool(good.all()) else _skip(names, good, settings.on_error)
    drivers, theta = drivers[good.numpy()].reset_index(drop=True), refined.theta[good]
    kept = job.model.select(pairs, torch.nonzero(good).flatten())
    with watch("predictive"):
        drawn = theta[:, : settings.predictive_draws]
        predictive = predicted_drives(job.model, drawn, kept, settings.seed, settings.observation)
    draws = draws_table(list(job.model.names(kept)), theta, prior, job.model.id_column)
    return Part(draws, drivers, watch.seconds, skipped, predictive)


def _names(model: Model, pairs: Pairs) -> dict[str, Any]:
    """Who has a posterior; of a driver with several pairs, how much of them it is from."""
    shared = {"recording": pairs.recording, "follower_class": pairs.follower_class}
    if not model.by_driver:
        return {
            "pair_id": list(pairs.pair_id),
            "follower": list(pairs.follower),
            **{name: list(values) for name, values in shared.items()},
        }
    names = model.names(pairs)
    first = {name: i for i, name in reversed(list(enumerate(pairs.follower)))}
    rows = {name: row for row, name in enumerate(names)}
    owner = np.array([rows[name] for name in pairs.follower])
    places = model.places(pairs)
    used = places.lengths.sum(1).numpy()
    recorded = np.bincount(owner, pairs.lengths.numpy(), len(names))
    return {
        "follower": list(names),
        **{name: [values[first[n]] for n in names] for name, values in shared.items()},
        "pairs": np.bincount(owner, minlength=len(names)),
        "segments": (places.lengths > 0).sum(1).numpy(),
        "seconds": used * pairs.dt,
        "used_share": used / recorded,
    }


def _skip(names: Sequence[str], good: Tensor, on_error: str) -> dict[str, str]:
    """The drivers the network cannot read, and why; an error unless they may be skipped."""
    bad = [names[i] for i in torch.nonzero(~good).flatten().tolist()]
    reason = "its context overflows in the network; check its gaps and speeds"
    if on_error == "stop":
        raise InputError(f"driver {bad[0]}: {reason}, or set on_error=skip")
    return dict.fromkeys(bad, reason)


def calibrate_into(
    folder: Path,
    job: Job,
    drivers: Pairs | DriverStore,
    skipped: Mapping[str, str] | None = None,
    pool: Pool | None = None,
) -> Outcome:
    """Write a posterior for every driver into `folder`; see `asbc.calibration.export.merge`.

    A run that was killed continues when it is started again with the same settings. What it then
    writes is the same, byte for byte, as without the interruption, and with any number of workers.

    Args:
        folder: where outputs go; workers on other machines must see it.
        job: what to do with each driver.
        drivers: the drivers.
        skipped: drivers that were left out before, and why, beside those that `drivers` knows.
        pool: who calibrates, from `workers_of`; None: this process.
    """
    if isinstance(drivers, Pairs):
        drivers = drivers_in_memory(job, drivers)
    left_out = drivers.skipped | dict(skipped or {})
    record = folder / RECORD
    parts = Parts(folder / "parts", _identity(job, drivers))
    if record.exists():
        outcome = _earlier(record, parts.identity)
        parts.remove()
        return outcome
    parts.open()
    edges = chunk_edges(len(drivers), job.settings.chunk)
    todo = [i for i in range(len(edges)) if not parts.finished(i)]
    work = (_work(parts, drivers, i, *edges[i]) for i in todo)
    workers = pool or workers_of(LocalEngine(workers=1), job)
    for _ in workers.map(calibrate_work, work, f"{job.settings.chunk} drivers each", len(todo)):
        pass
    merge(parts, edges, job, drivers, folder, workers)
    outcome = Outcome.of(*parts.verdicts(range(len(edges))), left_out)
    write_text(folder / "summary.txt", outcome.text() + "\n")
    content = {"identity": parts.identity, "outcome": asdict(outcome)}
    write_text(record, json.dumps(content, indent=2) + "\n")
    parts.remove()
    return outcome


def workers_of(engine: Engine, job: Job, most: int | None = None) -> Pool:
    """An engine's workers, each with the job.

    Args:
        engine: where.
        job: what they are to do with drivers.
        most: see `Engine.pool`.
    """
    return engine.pool(partial(_keep, job), most)


def _keep(job: Job) -> Job:
    """What a worker keeps: the job as it was sent."""
    return job


# Where a chunk goes, its number, its drivers, and the position of the first of them.
Work = tuple[Parts, int, Piece, int]


def _work(
    parts: Parts, drivers: DriverStore, index: int, start: int, stop: int
) -> tuple[str, Work]:
    name = f"drivers {start + 1} to {stop}"
    return name, (parts, index, drivers.piece(start, stop), start)


def calibrate_work(job: Job, work: Work) -> None:
    """Calibrate a chunk and store it."""
    parts, index, piece, start = work
    pairs = piece.pairs()
    positions = np.arange(start, start + len(job.model.names(pairs)))
    parts.write(index, calibrate_chunk(job, pairs, positions))


def calibrate_chunks(job: Job, drivers: Pairs | DriverStore) -> Iterator[Part]:
    """The result of each chunk of drivers, in memory."""
    if isinstance(drivers, Pairs):
        drivers = drivers_in_memory(job, drivers)
    edges = chunk_edges(len(drivers), job.settings.chunk)
    for start, stop in progress(edges, f"{job.settings.chunk} drivers each", total=len(edges)):
        yield calibrate_chunk(job, drivers.piece(start, stop).pairs(), np.arange(start, stop))


def drivers_in_memory(job: Job, pairs: Pairs) -> GivenDrivers:
    """The drivers whom the job has a posterior for: pairs, or followers with all of theirs."""
    return given_drivers(Drivers(pairs, {}, {}), job.settings.on_error, job.model.shortest)


def chunk_edges(count: int, chunk: int) -> list[tuple[int, int]]:
    """First driver, and last + 1, of chunks of about one size and at most `chunk`.

    Example:
        >>> chunk_edges(11, 4)
        [(0, 4), (4, 8), (8, 11)]
    """
    if count == 0:
        raise InputError("no driver to calibrate")
    chunks = -(-count // chunk)
    sizes = [count // chunks + (i < count % chunks) for i in range(chunks)]
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _identity(job: Job, drivers: DriverStore) -> dict[str, Any]:
    """Everything the outputs depend on."""
    identity = {
        "data": drivers.fingerprint,
        "weights": job.model.fingerprint(),
        "residual": job.model.residual,
        "refinement": repr(job.refinement),
        "settings": asdict(job.settings) | {"context": job.model.context},
        "novelty": None if job.novelty is None else job.novelty.threshold,
        "compared_with": None,
    }
    if job.comparison is not None:
        identity["compared_with"] = job.comparison.fingerprint()
    return identity


def _earlier(record: Path, identity: dict[str, Any]) -> Outcome:
    """The outcome of a finished run with this identity; an error if it has another one."""
    content = json.loads(record.read_text())
    if content["identity"] != identity:
        raise InputError(
            f"{record.parent} holds a finished calibration with other data, weights or settings; "
            "give another output= or delete that folder"
        )
    return Outcome(**content["outcome"])
