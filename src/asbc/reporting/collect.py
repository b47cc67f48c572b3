"""Evaluated runs found on disk, and the refusal to compare what cannot be compared."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any

import pandas as pd

from asbc.errors import InputError
from asbc.evaluation.cases import Cases
from asbc.evaluation.protocol import PROTOCOL_FIELDS
from asbc.evaluation.results import CASES, METRICS, WINDOWS, RunInfo, choices, read_metrics
from asbc.reporting.figures.convergence import Rounds, read_rounds
from asbc.run import Run

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluatedRun:
    """One evaluation folder.

    Attributes:
        folder: where its files are, usually RUN/evaluation.
        metrics: the content of its metrics.json.
        suffix: overrides and choices of the evaluation that set it apart from other runs of its
            method in the same report.
    """

    folder: Path
    metrics: dict[str, Any]
    suffix: tuple[str, ...] = ()

    @property
    def info(self) -> dict[str, Any]:
        """What was evaluated, as `RunInfo` saved it."""
        return self.metrics["run"]

    @property
    def label(self) -> str:
        """The row this run belongs to; runs that differ by their seed only share it."""
        remark = [self.info["remark"]] if self.info["remark"] else []
        # Said of every row, also where all rows share it and it sets none apart.
        chosen = [text for text in choices(self.metrics) if text not in self.suffix]
        return ", ".join([self.info["method"], *self.suffix, *chosen, *remark])

    @property
    def run(self) -> Run:
        """The run it is an evaluation of, if that is RUN/evaluation or RUN/NAME/evaluation."""
        above = [Run(folder) for folder in self.folder.parents[:2]]
        return next((run for run in above if run.record_file.is_file()), above[0])

    @cached_property
    def windows(self) -> pd.DataFrame:
        """A row per window."""
        return pd.read_parquet(self.folder / WINDOWS)

    @cached_property
    def cases(self) -> Cases:
        """Posterior and bands of every pair."""
        return Cases.load(self.folder / CASES)

    @cached_property
    def rounds(self) -> Rounds | None:
        """The run's rounds, where it has any."""
        return read_rounds(self.run.rounds, self.info["selected_round"])

    @property
    def comparable(self) -> dict[str, Any]:
        """What two runs must share to be compared: the observed pairs and the protocol."""
        settings = self.metrics["settings"]
        return {"data": self.metrics["data"]["fingerprint"]} | {
            f"evaluation.{key}": settings[key] for key in PROTOCOL_FIELDS
        }


def find_runs(patterns: str | Sequence[str]) -> list[EvaluatedRun]:
    """Evaluations below the folders that the patterns match, each once, in order of their path.

    Runs without an evaluation are named in the log.
    """
    found: set[Path] = set()
    for folder in _folders(patterns):
        files = [folder / METRICS, *folder.glob(f"**/evaluation/{METRICS}")]
        found |= {file.resolve() for file in files if file.is_file()}
        _mention_unevaluated(folder)
    if not found:
        raise InputError(
            f"runs={_shown(patterns)}: no evaluation found (RUN/evaluation/{METRICS}); "
            "evaluate the runs first: asbc evaluate run=RUN"
        )
    return [_read(file) for file in sorted(found)]


def find_trained(patterns: str | Sequence[str]) -> list[Run]:
    """Finished training runs below the folders that the patterns match, each once, by path.

    They need no evaluation; runs without weights are named in the log.
    """
    found = {run.path.resolve() for folder in _folders(patterns) for run in _runs_below(folder)}
    runs = [Run(path) for path in sorted(found)]
    for run in (run for run in runs if not run.best.is_file()):
        log.warning("%s has no trained model and is left out", run.shown)
    trained = [Run.open(run.path) for run in runs if run.best.is_file()]
    if not trained:
        raise InputError(
            f"runs={_shown(patterns)}: no trained run found; train some first: asbc train"
        )
    return trained


def _folders(patterns: str | Sequence[str]) -> list[Path]:
    """The folders that glob patterns match; each pattern must match something."""
    folders: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = [Path(match) for match in glob(str(Path(pattern).expanduser()), recursive=True)]
        if not matches:
            raise InputError(f"runs={pattern}: nothing matches")
        folders += filter(Path.is_dir, matches)
    return folders


def _shown(patterns: str | Sequence[str]) -> str:
    return patterns if isinstance(patterns, str) else ", ".join(patterns)


def _runs_below(folder: Path) -> list[Run]:
    """A folder itself and those below it, as far as they hold the record of a run."""
    return [Run(file.parent) for file in folder.glob(f"**/{Run(folder).record_file.name}")]


def _read(file: Path) -> EvaluatedRun:
    metrics = read_metrics(file.parent)
    known = metrics.get("run", {})
    lacking = [field.name for field in fields(RunInfo) if field.name not in known]
    if lacking:
        raise InputError(
            f"{file}: written by another version (no {', '.join(lacking)}); evaluate the run again"
        )
    return EvaluatedRun(file.parent, metrics)


def group_comparable(runs: Sequence[EvaluatedRun]) -> list[list[EvaluatedRun]]:
    """Runs that saw the same pairs under the same protocol, the largest group first."""
    keys = [json.dumps(run.comparable, sort_keys=True) for run in runs]
    order = [key for key, _ in Counter(keys).most_common()]
    return [[run for run, k in zip(runs, keys, strict=True) if k == key] for key in order]


def require_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Raise naming every run whose data or protocol differ from most runs', and in what."""
    groups = group_comparable(runs)
    if len(groups) == 1:
        return
    reference = groups[0][0]
    lines = [f"these runs were not evaluated alike; {len(groups[0])} agree, but"]
    for run in (run for group in groups[1:] for run in group):
        differences = [
            _difference(key, run, reference)
            for key, value in run.comparable.items()
            if value != reference.comparable[key]
        ]
        lines.append(f"  {run.folder}: {'; '.join(differences)}")
    lines.append("leave them out of runs=, or write one report per group with mixed=separate")
    raise InputError("\n".join(lines))


def with_suffixes(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """The runs, labelled by what sets them apart; a method and seed may occur once.

    Overrides that all trained runs share (`experiment=...` of a study) are left out. Where runs
    were trained on different data, a row says on which.
    """
    trained = [set(run.info["variant"]) for run in runs if run.info["kind"] == "asbc"]
    shared = set.intersection(*trained) if len(trained) > 1 else set()
    shared |= set.intersection(*(set(choices(run.metrics)) for run in runs))
    places = short_names([run.info["trained_on"] for run in runs])
    labelled = []
    for run in runs:
        place = places[run.info["trained_on"]]
        told = (
            *run.info["variant"],
            *choices(run.metrics),
            *([f"trained on {place}"] if place else []),
        )
        labelled.append(replace(run, suffix=tuple(text for text in told if text not in shared)))
    seen: dict[tuple[str, int | None], Path] = {}
    for run in labelled:
        key = (run.label, run.info["seed"])
        if key in seen:
            raise InputError(
                f"{run.folder} and {seen[key]} are the same method and seed ({run.label}, seed "
                f"{run.info['seed']}); leave one out of runs="
            )
        seen[key] = run.folder
    return labelled


def short_names(descriptions: Sequence[str]) -> dict[str, str]:
    """What tells descriptions of data apart, without what they share; "" if they are all one.

    Example:
        >>> short_names(["pairs: a/north/x.csv", "pairs: a/south/x.csv"])
        {'pairs: a/north/x.csv': 'north', 'pairs: a/south/x.csv': 'south'}
        >>> both = "pairs: a/north/x.csv and a/south/x.csv"
        >>> short_names(["pairs: a/north/x.csv", both])[both]
        'north and south'
        >>> short_names(["pairs: x.csv", "roads: seed 0"])
        {'pairs: x.csv': 'x.csv', 'roads: seed 0': 'roads'}
    """
    every = list(dict.fromkeys(descriptions))
    if len(every) == 1:
        return {every[0]: ""}
    kinds = {text: text.partition(": ")[0] for text in every}
    files = {
        text: [Path(file).parts for file in text.partition(": ")[2].split(" and ")]
        for text in every
        if kinds[text] == "pairs" or list(kinds.values()).count(kinds[text]) > 1
    }
    parts = [part for some in files.values() for part in some]
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    names = {
        text: " and ".join("/".join(p for p in part if p not in shared) for part in some)
        for text, some in files.items()
    }
    return kinds | names


def _difference(key: str, run: EvaluatedRun, reference: EvaluatedRun) -> str:
    if key == "data":
        theirs, ours = run.metrics["data"]["n_pairs"], reference.metrics["data"]["n_pairs"]
        return (
            f"data {run.info['evaluated_on']} ({theirs} pairs) instead of "
            f"{reference.info['evaluated_on']} ({ours} pairs)"
        )
    return f"{key}={run.comparable[key]} instead of {reference.comparable[key]}"


def _mention_unevaluated(folder: Path) -> None:
    for run in _runs_below(folder):
        if not any(run.path.glob(f"**/evaluation/{METRICS}")):
            log.warning(
                "%s is not evaluated and left out; asbc evaluate run=%s", run.path, run.path
            )
