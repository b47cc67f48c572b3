"""Many runs as one study: what to run, what is done already, what is left."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from asbc.arguments import quoted
from asbc.errors import InputError
from asbc.run import LAST
from asbc.utils.files import locked, write_text


@dataclass(frozen=True)
class Step:
    """One command of a run and its arguments."""

    name: str
    command: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One folder and the steps that fill it, in order."""

    folder: Path
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Overrides:
    """Arguments that all runs of a study share, by command."""

    train: Sequence[str] = ()
    evaluate: Sequence[str] | None = ()  # None: train only
    baseline: Sequence[str] = ()


def plan_study(
    output: Path,
    variants: Mapping[str, Sequence[str]],
    baselines: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    shared: Overrides,
    only: Sequence[str] | None = None,
) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study holds complete comparisons.

    Args:
        output: the study's folder; a run goes to output/VARIANT/seedK.
        variants: overrides of `asbc train` by name.
        baselines: overrides of `asbc baseline` by name; these run once, with the first seed.
        seeds: one training run of each variant for each.
        shared: arguments of every run.
        only: names of variants and baselines to run; None for all.
    """
    if unknown := sorted(set(only or ()) - set(variants) - set(baselines)):
        names = ", ".join([*variants, *baselines])
        raise InputError(f"only={', '.join(unknown)}: no such variant or baseline; have {names}")
    if not seeds or not (variants or baselines):
        raise InputError("a study needs at least one seed and one variant or baseline")
    if both := sorted(set(variants) & set(baselines)):
        raise InputError(f"{', '.join(both)}: the name of a variant and of a baseline")
    runs = [
        _trained(output / name / f"seed{seed}", [*shared.train, *own, f"seed={seed}"], shared)
        for seed in seeds
        for name, own in variants.items()
        if only is None or name in only
    ]
    for name, own in baselines.items():
        if only is not None and name not in only:
            continue
        folder = output / name / f"seed{seeds[0]}"
        arguments = [*shared.baseline, *(shared.evaluate or ()), *own]
        arguments += [f"seed={seeds[0]}", _into(folder)]
        runs.append(Run(folder, (Step("baseline", "baseline", tuple(arguments)),)))
    return runs


def _trained(folder: Path, overrides: Sequence[str], shared: Overrides) -> Run:
    # A run that was killed goes on from its own last checkpoint.
    train = Step("train", "train", (*overrides, _into(folder), f"ckpt_path={LAST}"))
    if shared.evaluate is None:
        return Run(folder, (train,))
    evaluate = Step("evaluate", "evaluate", (f"run={quoted(folder)}", *shared.evaluate))
    return Run(folder, (train, evaluate))


def _into(folder: Path) -> str:
    return f"hydra.run.dir={quoted(folder)}"


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
            f"{run.folder} holds a run with other arguments for {step.command}: "
            f"{' '.join(json.loads(mark.read_text()))}; choose another output= or remove it"
        )


def _mark(run: Run, step: Step, kind: str) -> Path:
    return run.folder / f"{step.name}.{kind}"


def execute(step: Step, output: Path) -> int:
    """Run a step as a process of its own, on one core, with its output going to a file."""
    alone = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with output.open("a") as file:
        return subprocess.run(
            [sys.executable, "-m", "asbc", step.command, *step.arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | alone,
        ).returncode
