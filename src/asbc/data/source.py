"""A data source: where pairs come from, and the steps every source shares.

Those steps are here too: one time step for all, dropping of short pairs, and the split into
training, validation and test followers.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd

from asbc.data.pairs import Pairs
from asbc.data.resampling import divides, resample
from asbc.data.summary import DataSummary, summarise
from asbc.data.table import time_steps
from asbc.errors import InputError
from asbc.utils.random import stream

log = logging.getLogger(__name__)

SPLIT_NAMES = ("train", "validation", "test")
MIN_STEPS = 2  # samples of the shortest pair that anything can be done with


class Loaded(NamedTuple):
    """What a loader returns: a pairs table, and what it left out on purpose."""

    table: pd.DataFrame
    drops: dict[str, int]  # what was left out or mended, and why -> count


@dataclass(frozen=True)
class Splits:
    """The pairs of each split, with a summary of where they came from."""

    train: Pairs
    validation: Pairs
    test: Pairs
    summary: DataSummary


@dataclass(frozen=True, kw_only=True)
class DataSource(ABC):
    """Settings and steps shared by all sources; a subclass only says how to load a pairs table.

    Args:
        dt: time step of everything downstream; recordings at another one
            are thinned, or interpolated up to 0.5 s (`asbc.data.resampling`).
        context_steps: samples the encoder reads (T_E); no pair may be shorter, unless `shortest`
            is less.
        min_duration: shortest pair kept, in seconds (T_min).
        split: train, validation and test fractions of the followers.
        split_seed: the split depends on this and on the follower keys only.
        cache_dir: folder for tables that are slow to rebuild.
    """

    dt: float = 0.2
    context_steps: int = 75
    min_duration: float = 40.0
    split: Sequence[float] = (0.6, 0.1, 0.3)
    split_seed: int = 0
    cache_dir: str = ".cache/asbc"
    # Samples a pair needs at least; None: those of a context. A model's to say: `for_segments`.
    shortest: ClassVar[int | None] = None
    # Whether drivers who are too short are named, as in a user's own table, or left out, as the
    # fragments of a recording are.
    names_short: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.dt > 0:
            raise InputError(f"data.dt={self.dt}; expected a positive time step in seconds")
        if self.context_steps < MIN_STEPS:
            raise InputError(
                f"data.context_steps={self.context_steps}; expected at least {MIN_STEPS}"
            )
        if self.min_duration < 0:
            raise InputError(f"data.min_duration={self.min_duration}; expected seconds >= 0")

    @property
    @abstractmethod
    def description(self) -> str:
        """What messages and the summary call this source."""

    @abstractmethod
    def load(self) -> Loaded:
        """Read a pairs table, validated by `asbc.data.table.validate_pairs`, at any time step."""

    @cached_property
    def _prepared(self) -> Loaded:
        loaded = self.load()
        table, drops = loaded if loaded.table.empty else self.thinned(loaded)
        if table.empty:
            raise self.nothing(drops)
        return Loaded(table, drops)

    @cached_property
    def _pairs(self) -> Pairs:
        return self.packed(self._prepared.table)

    def thinned(self, loaded: Loaded) -> Loaded:
        """A table that has rows at the time step `dt`, without its short pairs."""
        table, changed = resample(loaded.table, self.dt, self.description)
        table, short = drop_short(table, self.dt, self.min_duration)
        return Loaded(table, count_drops(loaded.drops, changed, short))

    def packed(self, table: pd.DataFrame) -> Pairs:
        """The pairs of a thinned table, each as long as a model needs it."""
        pairs = Pairs.from_table(table, self.dt)
        shortest = int(pairs.lengths.argmin())
        samples = int(pairs.lengths[shortest])
        if self.shortest is not None and samples < self.shortest:
            raise InputError(
                f"pair {pairs.pair_id[shortest]} has {samples} samples, but a segment needs "
                f"{self.shortest} ({self.shortest * self.dt:g} s); raise data.min_duration to "
                f"{self.shortest * self.dt:g}"
            )
        if self.shortest is None and samples < self.context_steps:
            raise InputError(
                f"data.context_steps={self.context_steps} is longer than pair "
                f"{pairs.pair_id[shortest]} ({samples} samples); lower data.context_steps, raise "
                f"data.min_duration to {self.context_steps * self.dt:g}, or use a model of "
                "history=segments"
            )
        return pairs

    def for_segments(self, shortest: int | None) -> Self:
        """The same data for a model that reads segments of `shortest` samples or more."""
        made = replace(self)
        object.__setattr__(made, "shortest", shortest)  # frozen
        return made

    def nothing(self, drops: dict[str, int]) -> InputError:
        """The error of a source without any usable pair."""
        reasons = "; ".join(f"{n} {reason}" for reason, n in drops.items()) or "nothing"
        return InputError(
            f"{self.description}: no usable pair (dropped: {reasons}); lower "
            "data.min_duration or add data"
        )

    @property
    def drops(self) -> dict[str, int]:
        """What was left out or mended on purpose: reason -> count."""
        return self._prepared.drops

    def pairs(self) -> Pairs:
        """All usable pairs, in an order that does not depend on how files or rows were ordered."""
        return self._pairs

    def splits(self) -> Splits:
        """Pairs split by follower, with their summary (logged)."""
        pairs = self.pairs()
        train, validation, test = split_by_follower(pairs, self.split, self.split_seed)
        summary = summarise(
            self.description,
            pairs,
            {"train": train, "validation": validation, "test": test},
            self.drops,
        )
        log.info("%s", summary.headline())
        return Splits(train, validation, test, summary)


def pairs_of_split(source: DataSource, split: str) -> tuple[Pairs, DataSummary]:
    """The pairs to evaluate and a summary of where they come from."""
    if split == "all":
        # Not split at all: a file of three drivers can be evaluated, but not divided.
        pairs = source.pairs()
        return pairs, summarise(source.description, pairs, {}, source.drops)
    splits = source.splits()
    return getattr(splits, split), splits.summary


def split_by_follower(
    pairs: Pairs, fractions: Sequence[float], seed: int
) -> tuple[Pairs, Pairs, Pairs]:
    """Divide followers by `fractions`; a follower's pairs stay together.

    The division depends on the set of follower keys and the seed only, not on the order of pairs.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"data.split={list(fractions)}; expected three positive fractions that sum to 1"
        )
    followers = sorted(set(pairs.follower))
    sizes = split_sizes(len(followers), fractions)
    if min(sizes) < 1:
        counted = ", ".join(f"{n}: {s}" for n, s in zip(SPLIT_NAMES, sizes, strict=True))
        raise InputError(
            f"{len(followers)} followers ({len(pairs)} pairs) are too few for "
            f"data.split={list(fractions)} ({counted}); add data, lower data.min_duration or "
            "change data.split"
        )
    order = stream(seed, "split").permutation(len(followers))
    part = np.empty(len(followers), dtype=np.int64)
    part[order] = np.repeat(np.arange(3), sizes)
    part_of = dict(zip(followers, part.tolist(), strict=True))
    member = np.array([part_of[follower] for follower in pairs.follower])
    train, validation, test = (pairs.select(np.flatnonzero(member == p)) for p in range(3))
    return train, validation, test


def split_sizes(count: int, fractions: Sequence[float]) -> tuple[int, int, int]:
    """Followers per split: validation and test rounded to nearest, training takes the rest.

    Example:
        >>> split_sizes(200, (0.6, 0.1, 0.3))
        (120, 20, 60)
        >>> split_sizes(3, (0.6, 0.1, 0.3))
        (2, 0, 1)
    """
    validation, test = (int(count * fraction + 0.5) for fraction in fractions[1:])
    return count - validation - test, validation, test


def whole_factor(dt: float, step: float, where: str) -> int:
    """How many recorded steps make one `dt`; an error when that is not a whole number.

    Example:
        >>> whole_factor(0.2, 0.04, "recording 01")
        5
    """
    if not divides(np.float64(step), dt):
        raise _misfit(dt, step, where)
    return round(dt / step)


def drop_short(
    table: pd.DataFrame, dt: float, min_duration: float
) -> tuple[pd.DataFrame, dict[str, int]]:
    """The pairs that last at least `min_duration` seconds, and how many were dropped.

    A pair of n samples lasts n * dt: each sample stands for one step.
    """
    starts, _ = time_steps(table)
    lengths = np.diff(np.append(starts, len(table)))
    short = lengths < min_samples(dt, min_duration)
    kept = table[np.repeat(~short, lengths)].reset_index(drop=True)
    return kept, count_drops({short_reason(min_duration): int(short.sum())})


def min_samples(dt: float, min_duration: float) -> int:
    """Samples a pair needs to last `min_duration` seconds.

    Example:
        >>> min_samples(0.2, 40.0)
        200
    """
    return max(2, int(np.ceil(min_duration / dt - 1e-6)))


def short_reason(min_duration: float) -> str:
    """The label under which too short segments are counted."""
    return f"segments shorter than {min_duration:g} s"


def count_drops(*counts: dict[str, int]) -> dict[str, int]:
    """Sum of counts by reason, without zeros."""
    total: dict[str, int] = {}
    for part in counts:
        for reason, number in part.items():
            total[reason] = total.get(reason, 0) + number
    return {reason: number for reason, number in total.items() if number}


def _misfit(dt: float, step: float, where: str) -> InputError:
    return InputError(
        f"{where}: the recorded time step is {step:g} s, which does not divide "
        f"data.dt={dt:g} s; set data.dt to a whole multiple of {step:g}"
    )
