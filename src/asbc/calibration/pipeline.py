"""Calibrating a whole file of drivers: chunk by chunk, continued where a run was interrupted."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from asbc.calibration.chunk import Job, calibrate_chunk
from asbc.calibration.closing import Outcome
from asbc.calibration.merge import merge
from asbc.calibration.parts import Parts, replace_text
from asbc.data.pairset import PairSet
from asbc.evaluation.results import data_fingerprint
from asbc.utils.checks import InputError
from asbc.utils.progress import progress

RECORD = "calibration.json"


def calibrate(job: Job, pairs: PairSet, folder: Path, skipped: dict[str, str]) -> Outcome:
    """Write a posterior for every pair into `folder`; see `merge` for the files.

    A run that was killed continues when it is started again with the same settings. What it then
    writes is the same, byte for byte, as without the interruption.

    Args:
        job: what to do with each driver.
        pairs: the drivers.
        folder: where outputs go.
        skipped: drivers that were left out before, and why.
    """
    if len(pairs) == 0:
        raise InputError("no driver to calibrate")
    identity = _identity(job, pairs)
    record = folder / RECORD
    parts = Parts(folder / "parts", identity)
    if record.exists():
        outcome = _earlier(record, parts.identity)
        parts.remove()
        return outcome
    parts.open()
    chunks = np.array_split(np.arange(len(pairs)), -(-len(pairs) // job.settings.chunk))
    todo = [index for index in range(len(chunks)) if not parts.finished(index)]
    for index in progress(todo, f"{job.settings.chunk} drivers each", total=len(todo)):
        part = calibrate_chunk(job, pairs.select(chunks[index]), chunks[index])
        parts.write(index, part)
    drivers, seconds, unusable = merge(parts, len(chunks), job, pairs, folder)
    outcome = Outcome.of(drivers, seconds, skipped | unusable)
    replace_text(folder / "summary.txt", outcome.text() + "\n")
    content = {"identity": parts.identity, "outcome": asdict(outcome)}
    replace_text(record, json.dumps(content, indent=2) + "\n")
    parts.remove()
    return outcome


def _identity(job: Job, pairs: PairSet) -> dict[str, Any]:
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
