"""Runs the steps of a study side by side, and never twice."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from asbc.study.plan import Run, Step
from asbc.training.folder import locked, write_text
from asbc.utils.checks import InputError

log = logging.getLogger(__name__)

# Runs a step with its output going to a file; returns the exit code.
Execute = Callable[[Step, Path], int]


@dataclass(frozen=True)
class Failure:
    """A step that did not succeed, and where it says why."""

    folder: Path
    step: Step
    log: Path


def is_done(run: Run, step: Step) -> bool:
    """Whether the step has succeeded before."""
    return _mark(run, step, "done").is_file()


def run_study(runs: Sequence[Run], jobs: int, execute: Execute) -> list[Failure]:
    """Run what is left, `jobs` runs at a time; a failed run does not stop the others.

    Two studies of one folder share the work: a run that another process has begun is left to it.

    Args:
        runs: from `plan_study`.
        jobs: runs at a time.
        execute: how to run one step.

    Returns:
        The steps that failed.

    Raises:
        InputError: if a folder holds a run that was made with other arguments.
    """
    for run in runs:
        for step in run.steps:
            _require_same_arguments(run, step)
    left = [run for run in runs if not all(is_done(run, step) for step in run.steps)]
    log.info("%d runs: %d done, %d to do", len(runs), len(runs) - len(left), len(left))
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda run: _fill(run, execute), left)
        return [failure for failure in results if failure is not None]


def _fill(run: Run, execute: Execute) -> Failure | None:
    run.folder.mkdir(parents=True, exist_ok=True)
    with locked(run.folder / ".study.lock") as mine:
        if mine:
            return _take_steps(run, execute)
    log.info("%s: left to another study that is at it", run.folder)
    return None


def _take_steps(run: Run, execute: Execute) -> Failure | None:
    for step in run.steps:
        if is_done(run, step):
            continue
        write_text(_mark(run, step, "arguments"), json.dumps(step.arguments))
        output, start = run.folder / f"{step.name}.out", time.perf_counter()
        code = execute(step, output)
        seconds = time.perf_counter() - start
        log.info(
            "%s %s: %s, %.0f s", run.folder, step.name, f"exit {code}" if code else "ok", seconds
        )
        if code:
            return Failure(run.folder, step, output)
        write_text(_mark(run, step, "done"), f"{seconds:.1f}\n")
    return None


def _require_same_arguments(run: Run, step: Step) -> None:
    mark = _mark(run, step, "arguments")
    if mark.is_file() and json.loads(mark.read_text()) != list(step.arguments):
        raise InputError(
            f"{run.folder} holds a run with other arguments for {step.script}: "
            f"{' '.join(json.loads(mark.read_text()))}; choose another output= or remove it"
        )


def _mark(run: Run, step: Step, kind: str) -> Path:
    return run.folder / f"{step.name}.{kind}"
