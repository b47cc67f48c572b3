"""Many runs as one study: what to run, what is done already, what is left."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from asbc.arguments import quoted
from asbc.engine import Engine
from asbc.errors import InputError
from asbc.run import LAST, Run
from asbc.utils.files import locked, write_text

log = logging.getLogger(__name__)

# Commands of a study.
COMMANDS = ("train", "evaluate", "baseline", "report")
# Those with an engine of their own, which gets one core where many runs share a machine.
SHARING = ("evaluate", "baseline")
# Settings of a study that are lists.
LISTS = ("seeds", "once", "repeated", "only", "overrides")


@dataclass(frozen=True)
class Step:
    """One command, `asbc COMMAND`, its arguments, and a name if a run has several of it."""

    command: str
    arguments: tuple[str, ...]
    name: str = ""

    @property
    def title(self) -> str:
        """What its files and messages call it."""
        return f"{self.command}_{self.name}" if self.name else self.command


@dataclass(frozen=True)
class PlannedRun:
    """One folder and the steps that fill it, in order."""

    folder: Path
    steps: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What conf/study.yaml says, with one file of conf/study/.

    Args:
        name: of the study.
        output: its folder; a run goes to output/VARIANT/seedK.
        seeds: one training run of each variant for each.
        variants: overrides of `asbc train` by name.
        once: variants that run with the first seed only.
        baselines: overrides of `asbc baseline` by name; these run with the first seed only.
        repeated: baselines that run with every seed.
        evaluations: overrides of `asbc evaluate` by name, where a trained run is evaluated more
            than once; each goes to RUN/NAME/evaluation.
        shared: overrides of all runs by command; None for `evaluate` if runs are only trained.
        overrides: of all runs, for `asbc train` and `asbc baseline` alike.
        only: names of variants and baselines to run; None for all.
    """

    name: str
    output: str | Path
    seeds: Sequence[int] = (0,)
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    once: Sequence[str] = ()
    baselines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    repeated: Sequence[str] = ()
    evaluations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shared: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    only: Sequence[str] | None = None

    def __post_init__(self) -> None:
        lists = {name: getattr(self, name) for name in LISTS}
        lists |= {f"evaluations.{name}": value for name, value in self.evaluations.items()}
        lists |= {f"shared.{name}": value for name, value in self.shared.items()}
        for name, value in lists.items():
            if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
                raise InputError(f"{name}={value}: expected a list; write {name}=[{value}]")
        if not self.seeds or not (self.variants or self.baselines):
            raise InputError("a study needs at least one seed and one variant or baseline")
        if both := sorted(set(self.variants) & set(self.baselines)):
            raise InputError(
                f"{', '.join(both)}: the name of a variant and of a baseline; rename one"
            )
        known = [*self.variants, *self.baselines]
        _require_known("only", self.only or (), known, "variant or baseline")
        _require_known("once", self.once, self.variants, "variant")
        _require_known("repeated", self.repeated, self.baselines, "baseline")
        if unknown := sorted(set(self.shared) - set(COMMANDS)):
            raise InputError(
                f"shared.{unknown[0]}: no such command; expected {', '.join(COMMANDS)}"
            )

    def runs(self) -> list[PlannedRun]:
        """All runs, seed by seed, so that an interrupted study holds complete comparisons."""
        trained = [
            self._trained(name, seed)
            for seed in self.seeds
            for name in self.variants
            if self._wanted(name) and (seed == self.seeds[0] or name not in self.once)
        ]
        return trained + [
            self._baseline(name, seed)
            for seed in self.seeds
            for name in self.baselines
            if self._wanted(name) and (seed == self.seeds[0] or name in self.repeated)
        ]

    def report_over(self, runs: Sequence[PlannedRun]) -> Step | None:
        """The report over the runs; None where they are only trained and nothing is asked for."""
        if not self._evaluated and not self._shared("report"):
            return None
        folders = ",".join(quoted(run.folder) for run in runs)
        place = quoted(Path(self.output) / "report")
        return Step("report", (f"runs=[{folders}]", f"output={place}", *self._shared("report")))

    @property
    def _evaluated(self) -> bool:
        return self.shared.get("evaluate", ()) is not None

    def _shared(self, command: str) -> tuple[str, ...]:
        return tuple(self.shared.get(command) or ())

    def _wanted(self, name: str) -> bool:
        return self.only is None or name in self.only

    def _trained(self, name: str, seed: int) -> PlannedRun:
        folder = self._folder(name, seed)
        # A run that was killed goes on from its own last checkpoint.
        own = (*self.variants[name], f"seed={seed}", _into(folder), f"ckpt_path={LAST}")
        train = Step("train", (*self._shared("train"), *self.overrides, *own))
        if not self._evaluated:
            return PlannedRun(folder, (train,))
        shared = (f"run={quoted(folder)}", *self._shared("evaluate"))
        if not self.evaluations:
            return PlannedRun(folder, (train, Step("evaluate", shared)))
        evaluations = [
            Step(
                "evaluate",
                (*shared, *own, f"output={quoted(Run(folder / name).evaluation)}"),
                name,
            )
            for name, own in self.evaluations.items()
        ]
        return PlannedRun(folder, (train, *evaluations))

    def _baseline(self, name: str, seed: int) -> PlannedRun:
        folder = self._folder(name, seed)
        own = (*self.baselines[name], f"seed={seed}", _into(folder))
        shared = (*self._shared("baseline"), *self.overrides, *self._shared("evaluate"))
        return PlannedRun(folder, (Step("baseline", (*shared, *own)),))

    def _folder(self, name: str, seed: int) -> Path:
        return Path(self.output) / name / f"seed{seed}"


def _require_known(setting: str, names: Sequence[str], known: Collection[str], what: str) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise InputError(
            f"{setting}={', '.join(unknown)}: no such {what}; have {', '.join(known)}"
        )


def _into(folder: Path) -> str:
    return f"hydra.run.dir={quoted(folder)}"


# Runs a step with its output going to a file; returns the exit code.
Execute = Callable[[Step, Path], int]


@dataclass(frozen=True)
class Failure:
    """A step that did not succeed, and where it says why."""

    folder: Path
    step: Step
    log: Path


def execute(step: Step, output: Path) -> int:
    """Run a step as a process of its own, on one core, with its output going to a file.

    A report, which comes after all runs, may have more.
    """
    alone = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    # Before what the study says, which may say otherwise.
    own = ["engine.workers=1"] if step.command in SHARING else []
    with output.open("a") as file:
        return subprocess.run(
            [sys.executable, "-m", "asbc", step.command, *own, *step.arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | alone,
        ).returncode


def run_study(runs: Sequence[PlannedRun], engine: Engine, execute: Execute) -> list[Failure]:
    """Run what is left on the engine's workers; a failed run does not stop the others.

    Two studies of one folder share the work: a run that another process has begun is left to it.
    A run whose worker died goes on from its last checkpoint in another one.

    Args:
        runs: from `Study.runs`.
        engine: who runs them; workers on other machines must see the folders.
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
    found: dict[str, Failure | None] = {}
    with engine.pool(partial(_keep, execute), most=len(left)) as pool:
        work = [(str(run.folder), run) for run in left]
        for folder, (failure, news) in pool.map(fill, work, "runs"):
            found[folder] = failure
            for text in news:
                log.info("%s", text)
    return [failure for name, _ in work if (failure := found[name]) is not None]


def _keep(execute: Execute) -> Execute:
    """What a worker keeps."""
    return execute


def is_done(run: PlannedRun, step: Step) -> bool:
    """Whether the step has succeeded before."""
    return _mark(run, step, "done").is_file()


def fill(execute: Execute, run: PlannedRun) -> tuple[Failure | None, list[str]]:
    """Take the steps of a run that are left; what failed, and what there is to say of each."""
    run.folder.mkdir(parents=True, exist_ok=True)
    with locked(run.folder / ".study.lock") as mine:
        if mine:
            return _take_steps(run, execute)
    return None, [f"{run.folder}: left to another study that is at it"]


def _take_steps(run: PlannedRun, execute: Execute) -> tuple[Failure | None, list[str]]:
    news: list[str] = []
    for step in run.steps:
        if is_done(run, step):
            continue
        write_text(_mark(run, step, "arguments"), json.dumps(step.arguments))
        output, start = _mark(run, step, "out"), time.perf_counter()
        code = execute(step, output)
        seconds = time.perf_counter() - start
        outcome = f"exit {code}" if code else "ok"
        news.append(f"{run.folder} {step.title}: {outcome}, {seconds:.0f} s")
        if code:
            return Failure(run.folder, step, output), news
        write_text(_mark(run, step, "done"), f"{seconds:.1f}\n")
    return None, news


def _require_same_arguments(run: PlannedRun, step: Step) -> None:
    mark = _mark(run, step, "arguments")
    if mark.is_file() and json.loads(mark.read_text()) != list(step.arguments):
        raise InputError(
            f"{run.folder} holds a run with other arguments for {step.title}: "
            f"{' '.join(json.loads(mark.read_text()))}; choose another output= or remove it"
        )


def _mark(run: PlannedRun, step: Step, kind: str) -> Path:
    return run.folder / f"{step.title}.{kind}"
