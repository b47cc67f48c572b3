"""What a study consists of: a folder per variant and seed, and the commands that fill it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asbc.training.folder import LAST, quoted
from asbc.utils.checks import InputError


@dataclass(frozen=True)
class Step:
    """One command of a run: an entry point and its arguments."""

    name: str
    script: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One folder and the steps that fill it, in order."""

    folder: Path
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Overrides:
    """Arguments that all runs of a study share, by entry point."""

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
        variants: overrides of train.py by name.
        baselines: overrides of baseline.py by name; these run once, with the first seed.
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
        runs.append(Run(folder, (Step("baseline", "baseline.py", tuple(arguments)),)))
    return runs


def _trained(folder: Path, overrides: Sequence[str], shared: Overrides) -> Run:
    # A run that was killed goes on from its own last checkpoint.
    train = Step("train", "train.py", (*overrides, _into(folder), f"ckpt_path={LAST}"))
    if shared.evaluate is None:
        return Run(folder, (train,))
    evaluate = Step("evaluate", "evaluate.py", (f"run={quoted(folder)}", *shared.evaluate))
    return Run(folder, (train, evaluate))


def _into(folder: Path) -> str:
    return f"hydra.run.dir={quoted(folder)}"
