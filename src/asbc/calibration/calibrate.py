"""Calibrating a whole file of drivers: chunk by chunk, continued where a run was interrupted."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.calibration.evidence import Comparison
from asbc.calibration.export.parts import Part, Parts
from asbc.calibration.export.tables import draws_table, merge, summary_columns
from asbc.calibration.flags import any_flag, flag_columns, readable
from asbc.calibration.outcome import Outcome
from asbc.calibration.refinement import AutoRefinement, NoRefinement, Refinement
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.results import data_fingerprint
from asbc.posterior.novelty import Novelty
from asbc.run import Model
from asbc.simulator.laws import IDM
from asbc.utils.files import write_text
from asbc.utils.progress import Stopwatch, progress

ON_ERROR = ("stop", "skip")
# What is stored of a predicted drive.
SERIES = ("gap", "speed", "acceleration")
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
        novelty: whether to flag contexts that are unlike the training's.
    """

    samples: int = 500
    seed: int = 0
    chunk: int = 256
    on_error: str = "stop"
    predictive_draws: int = 0
    novelty: bool = True

    def __post_init__(self) -> None:
        least = {"samples": 2, "chunk": 1, "predictive_draws": 0}
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


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that turns drivers into posteriors.

    Attributes:
        model: the trained posterior and its simulator.
        refinement: what happens to its draws.
        settings: sizes and seed.
        novelty: yardstick of the training simulations, if contexts are to be compared with them.
        comparison: a second run whose evidence is compared, if any.
    """

    model: Model
    refinement: Refinement
    settings: CalibrationSettings
    novelty: Novelty | None = None
    comparison: Comparison | None = None

    def __post_init__(self) -> None:
        law = type(self.model.simulator.law)
        if isinstance(self.refinement, AutoRefinement) and law is not IDM:
            raise InputError(f"refine=auto: NUTS knows the IDM only, not {law.__name__}; use psis")
        if self.model.robust and not isinstance(self.refinement, NoRefinement):
            raise InputError(
                "refine: the run was trained with robust contexts, and weights by the simulator's "
                "likelihood would undo that; use refine=none"
            )
        if self.comparison is None:
            return
        if isinstance(self.refinement, NoRefinement):
            raise InputError("compare_run needs evidences: add refine=psis or refine=auto")
        self.comparison.check(self.model)


def calibrate_chunk(job: Job, pairs: Pairs, positions: np.ndarray) -> Part:
    """Posteriors of `pairs`, which stand at `positions` of the data."""
    watch, settings, prior = Stopwatch(), job.settings, job.model.simulator.prior
    refined = job.refinement(job.model, pairs, settings.samples, settings.seed, watch)
    found: dict[str, np.ndarray] = {"route": refined.route, **refined.columns}
    if job.comparison is not None:
        found |= job.comparison.columns(job.model, pairs, found, settings.seed, watch)
    with watch("flags"):
        embedding = job.model.posterior.encode(job.model.contexts(pairs))
        found |= flag_columns(refined.theta, refined.leak_rate, prior, job.novelty, embedding)
        found["flagged"] = any_flag(found)
        found |= summary_columns(refined.theta, prior)
    drivers = pd.DataFrame({**_names(pairs), "position": positions, **found})
    good = readable(embedding)
    skipped = {} if bool(good.all()) else _skip(pairs, good, settings.on_error)
    drivers, theta = drivers[good.numpy()].reset_index(drop=True), refined.theta[good]
    kept = pairs.select(torch.nonzero(good).flatten())
    with watch("predictive"):
        predictive = _predictive(job, theta[:, : settings.predictive_draws], kept)
    draws = draws_table(list(kept.pair_id), theta, prior)
    return Part(draws, drivers, watch.seconds, skipped, predictive)


def _names(pairs: Pairs) -> dict[str, list[str]]:
    return {
        "pair_id": list(pairs.pair_id),
        "follower": list(pairs.follower),
        "recording": list(pairs.recording),
        "follower_class": list(pairs.follower_class),
    }


def _skip(pairs: Pairs, good: Tensor, on_error: str) -> dict[str, str]:
    """The drivers the network cannot read, and why; an error unless they may be skipped."""
    bad = [pairs.pair_id[i] for i in torch.nonzero(~good).flatten().tolist()]
    reason = "its context overflows in the network; check its gaps and speeds"
    if on_error == "stop":
        raise InputError(f"driver {bad[0]}: {reason}, or set on_error=skip")
    return dict.fromkeys(bad, reason)


def _predictive(job: Job, theta: Tensor, pairs: Pairs) -> dict[str, np.ndarray]:
    """Drives of each driver over its context, from its first state, each (draw, driver, step)."""
    if not theta.shape[1] or not len(pairs):
        return {}
    every = torch.arange(len(pairs))
    windows = EvaluationWindows(every, torch.zeros_like(every), job.model.context_steps - 1)
    seed = job.settings.seed
    rollout = predict_windows(job.model.simulator, theta, pairs, windows, 0, 0.0, seed)
    return {name: getattr(rollout, name).transpose(0, 1).numpy() for name in SERIES}


def calibrate_into(folder: Path, job: Job, pairs: Pairs, skipped: dict[str, str]) -> Outcome:
    """Write a posterior for every pair into `folder`; see `merge` for the files.

    A run that was killed continues when it is started again with the same settings. What it then
    writes is the same, byte for byte, as without the interruption.

    Args:
        folder: where outputs go.
        job: what to do with each driver.
        pairs: the drivers.
        skipped: drivers that were left out before, and why.
    """
    identity = _identity(job, pairs)
    record = folder / RECORD
    parts = Parts(folder / "parts", identity)
    if record.exists():
        outcome = _earlier(record, parts.identity)
        parts.remove()
        return outcome
    parts.open()
    count = len(_chunks(job, pairs))
    for index, part in calibrate_chunks(job, pairs, parts.finished):
        parts.write(index, part)
    drivers, seconds, unusable = merge(
        parts, count, job.model, job.settings.samples, pairs, folder
    )
    outcome = Outcome.of(drivers, seconds, skipped | unusable)
    write_text(folder / "summary.txt", outcome.text() + "\n")
    content = {"identity": parts.identity, "outcome": asdict(outcome)}
    write_text(record, json.dumps(content, indent=2) + "\n")
    parts.remove()
    return outcome


def calibrate_chunks(
    job: Job, pairs: Pairs, finished: Callable[[int], bool] = lambda index: False
) -> Iterator[tuple[int, Part]]:
    """Number and result of each chunk of drivers that is not finished yet."""
    chunks = _chunks(job, pairs)
    todo = [index for index in range(len(chunks)) if not finished(index)]
    for index in progress(todo, f"{job.settings.chunk} drivers each", total=len(todo)):
        yield index, calibrate_chunk(job, pairs.select(chunks[index]), chunks[index])


def _chunks(job: Job, pairs: Pairs) -> list[np.ndarray]:
    if len(pairs) == 0:
        raise InputError("no driver to calibrate")
    return np.array_split(np.arange(len(pairs)), -(-len(pairs) // job.settings.chunk))


def _identity(job: Job, pairs: Pairs) -> dict[str, Any]:
    """Everything the outputs depend on."""
    identity = {
        "data": data_fingerprint(pairs),
        "weights": job.model.fingerprint(),
        "residual": job.model.residual,
        "refinement": repr(job.refinement),
        "settings": asdict(job.settings),
        "novelty": None if job.novelty is None else job.novelty.threshold,
        "compared_with": None,
    }
    if job.comparison is not None:
        identity["compared_with"] = job.comparison.model.fingerprint()
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
