"""A data source: where pairs come from, and the steps every source shares."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from asbc.data.pairset import PairSet
from asbc.data.segments import count_drops, decimate, drop_short
from asbc.data.splits import split_by_follower
from asbc.data.summary import DataSummary, summarise
from asbc.utils.checks import InputError

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """What a loader returns: a pairs table, and what it left out on purpose."""

    table: pd.DataFrame
    drops: dict[str, int]  # what was left out or mended, and why -> count


@dataclass(frozen=True)
class Splits:
    """The pairs of each split, with a summary of where they came from."""

    train: PairSet
    validation: PairSet
    test: PairSet
    summary: DataSummary


@dataclass(frozen=True, kw_only=True)
class DataSource(ABC):
    """Settings and steps shared by all sources; a subclass only says how to load a pairs table.

    Args:
        dt: time step of everything downstream; finer recordings are decimated by a whole factor.
        context_steps: samples the encoder reads (T_E); no pair may be shorter.
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

    def __post_init__(self) -> None:
        if not self.dt > 0:
            raise InputError(f"data.dt={self.dt}; expected a positive time step in seconds")
        if self.context_steps < 2:
            raise InputError(f"data.context_steps={self.context_steps}; expected at least 2")
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
        table, drops = self.load()
        if not table.empty:
            table = decimate(table, self.dt, self.description)
            table, short = drop_short(table, self.dt, self.min_duration)
            drops = count_drops(drops, short)
        if table.empty:
            reasons = "; ".join(f"{n} {reason}" for reason, n in drops.items()) or "nothing"
            raise InputError(
                f"{self.description}: no usable pair (dropped: {reasons}); lower "
                "data.min_duration or add data"
            )
        return Loaded(table, drops)

    @cached_property
    def _pairs(self) -> PairSet:
        pairs = PairSet.from_table(self._prepared.table, self.dt)
        shortest = int(pairs.lengths.argmin())
        if self.context_steps > int(pairs.lengths[shortest]):
            raise InputError(
                f"data.context_steps={self.context_steps} is longer than pair "
                f"{pairs.pair_id[shortest]} ({int(pairs.lengths[shortest])} samples); lower "
                "data.context_steps or raise data.min_duration to "
                f"{self.context_steps * self.dt:g}"
            )
        return pairs

    @property
    def drops(self) -> dict[str, int]:
        """What was left out or mended on purpose: reason -> count."""
        return self._prepared.drops

    def pairs(self) -> PairSet:
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
            self._prepared.drops,
        )
        log.info("%s", summary.headline())
        return Splits(train, validation, test, summary)
