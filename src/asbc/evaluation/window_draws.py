"""Posterior draws of observed drivers: of a pair from its first seconds, or of each window.

What a window is predicted from is said by `asbc.data.history`: `first`, `latest` or `all`. Draws
are functions of the seed and of what they are for, so a window's do not depend on the others.
"""

from abc import abstractmethod
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from asbc.data.history import (
    ALL,
    FIRST,
    LATEST,
    context_start,
    context_states,
    earlier_pairs,
    first_segments,
    histories,
)
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.source import DataSource
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.posterior.posterior import PosteriorSamples
from asbc.posterior.segment_pool import SegmentPool
from asbc.types import Density
from asbc.utils.checks import require_finite
from asbc.utils.progress import progress
from asbc.utils.random import RowStreams, stream

# Trajectories sampled at once: bounds the memory, changes no draw.
CHUNK = 32


def pool_of(posterior: Density) -> SegmentPool | None:
    """What joins the segments of a driver in this posterior; None: it reads one of each."""
    return getattr(posterior, "pool", None)


def readable(source: DataSource, posterior: Density) -> DataSource:
    """The data, with pairs shorter than the context where the posterior can read them."""
    pool = pool_of(posterior)
    return source if pool is None else source.for_segments(pool.shortest)


def first_contexts(posterior: Density, pairs: Pairs, context_steps: int) -> Tensor | Segments:
    """The first `context_steps` samples of each pair; all of a shorter one, if it can be read."""
    pool = pool_of(posterior)
    if pool is None or not len(pairs) or int(pairs.lengths.min()) >= context_steps:
        return pairs.contexts(context_steps)
    return first_segments(pairs, context_steps)


def sample_pairs(
    posterior: Density, pairs: Pairs, context_steps: int, n: int, seed: int
) -> PosteriorSamples:
    """n draws for each pair from its first `context_steps` samples.

    A pair's draws depend on the seed, its id and its context only.
    """
    names = [f"pair {name}" for name in pairs.pair_id]
    contexts = first_contexts(posterior, pairs, context_steps)
    return sample_contexts(posterior, contexts, names, n, seed)


def sample_contexts(
    posterior: Density, states: Tensor | Segments, names: list[str], n: int, seed: int
) -> PosteriorSamples:
    """n draws for each trajectory (B, T, 3), or of each driver's segments, keyed by its name."""
    parts = []
    places = torch.arange(len(names)).split(CHUNK)
    for place in progress(places, "posterior", total=len(places)):
        rng = RowStreams([stream(seed, "posterior", names[i]) for i in place.tolist()])
        parts.append(posterior.sample(states[place], n, rng))
    return PosteriorSamples(*(torch.cat(field) for field in zip(*parts, strict=True)))


class WindowDraws(Protocol):
    """Parameter draws that each window has of its own."""

    @property
    def of_pairs(self) -> Tensor: ...  # (pair, draw, dim), from each pair's first context

    def of(self, windows: EvaluationWindows) -> Tensor: ...  # (window, draw, dim)


class ContextDraws:
    """Draws of each window from a context of its own, made when they are asked for.

    A context's draws depend on the seed, its pair's id and its place only, and it is encoded once
    if windows are asked for in order. Windows whose context is the pair's first have the draws of
    `sample_pairs`, the same numbers.

    Args:
        posterior: the density they are drawn from.
        pairs: observed pairs.
        windows: all windows that will be asked for.
        context_steps: samples of context.
        of_pairs: (pair, draw, dim) draws from the first contexts.
        seed: as for `sample_pairs`.
    """

    def __init__(
        self,
        posterior: Density,
        pairs: Pairs,
        windows: EvaluationWindows,
        context_steps: int,
        of_pairs: Tensor,
        seed: int,
    ) -> None:
        self.posterior, self.pairs, self.of_pairs = posterior, pairs, of_pairs
        self.context_steps, self.seed = context_steps, seed
        self._base = int(pairs.lengths.max()) + 2  # places are below it
        own = self._codes(windows)
        self._contexts = own[own % self._base > 0].unique()
        self._blocks: dict[int, Tensor] = {}

    def of(self, windows: EvaluationWindows) -> Tensor:
        """(window, draw, dim)."""
        theta = self.of_pairs[windows.pair]
        codes = self._codes(windows)
        later = torch.nonzero(codes % self._base > 0).flatten()
        place = torch.searchsorted(self._contexts, codes[later])
        # Whole blocks of the list of contexts, whatever windows are asked for: networks round
        # differently in batches of another size. The next windows begin in the last block.
        numbers = place.div(CHUNK, rounding_mode="floor")
        for number in numbers.unique().tolist():
            block = self._blocks[number] if number in self._blocks else self._sample(number)
            inside = numbers == number
            theta[later[inside]] = block[place[inside] - number * CHUNK]
            self._blocks = {number: block}
        return theta

    def _codes(self, windows: EvaluationWindows) -> Tensor:
        """One integer for the pair and place of each window's context."""
        return windows.pair * self._base + self._places(windows)

    def _sample(self, number: int) -> Tensor:
        codes = self._contexts[number * CHUNK : (number + 1) * CHUNK]
        pair, place = codes.div(self._base, rounding_mode="floor"), codes % self._base
        keys = zip(pair.tolist(), place.tolist(), strict=True)
        rng = RowStreams(
            [
                stream(self.seed, "posterior", f"pair {self.pairs.pair_id[p]}", *self._key(t))
                for p, t in keys
            ]
        )
        states = self._states(pair, place)
        theta = self.posterior.sample(states, self.of_pairs.shape[1], rng).theta
        require_finite("theta", theta)
        return theta

    @abstractmethod
    def _places(self, windows: EvaluationWindows) -> Tensor:
        """What tells a pair's contexts apart, (window,); 0: the first context."""

    @abstractmethod
    def _key(self, place: int) -> tuple[str | int, ...]:
        """What keys a context's draws, besides its pair."""

    @abstractmethod
    def _states(self, pair: Tensor, place: Tensor) -> Tensor | Segments:
        """The contexts."""


class LatestDraws(ContextDraws):
    """Draws of each window from the latest `context_steps` samples before it."""

    def _places(self, windows: EvaluationWindows) -> Tensor:
        return context_start(LATEST, windows.start, self.context_steps)

    def _key(self, place: int) -> tuple[str | int, ...]:
        return (place,)

    def _states(self, pair: Tensor, place: Tensor) -> Tensor:
        return context_states(self.pairs, pair, place, self.context_steps)


class HistoryDraws(ContextDraws):
    """Draws of each window from everything of its driver before it."""

    def _places(self, windows: EvaluationWindows) -> Tensor:
        # The first context, and nothing else, is what there is right after it, and what is used
        # where there is too little.
        shortest, steps = self._pool.shortest, self.context_steps
        first = (windows.start < shortest) | (windows.start == steps)
        return torch.where(first & self._alone[windows.pair], 0, windows.start + 1)

    def _key(self, place: int) -> tuple[str | int, ...]:
        return ("history", place - 1)

    def _states(self, pair: Tensor, place: Tensor) -> Segments:
        pool = self._pool
        return histories(
            self.pairs, pair, place - 1, self.context_steps, pool.shortest, pool.max_segments
        )

    @cached_property
    def _pool(self) -> SegmentPool:
        pool = pool_of(self.posterior)
        if pool is None:
            raise no_history()
        return pool

    @cached_property
    def _alone(self) -> Tensor:
        """Which pairs are the first of their driver that can be read, (pair,) bool."""
        lengths, shortest = self.pairs.lengths.tolist(), self._pool.shortest
        return torch.tensor(
            [all(lengths[i] < shortest for i in own) for own in earlier_pairs(self.pairs)]
        )


def no_history() -> InputError:
    """The error of a model that reads one segment of each driver."""
    return InputError(
        f"evaluation.context={ALL} reads all segments of a driver, but this model was trained on "
        "single ones; train with experiment=history, or use evaluation.context=latest"
    )


DRAWS: dict[str, type[ContextDraws]] = {LATEST: LatestDraws, ALL: HistoryDraws}


def window_draws(
    context: str,
    posterior: Density,
    pairs: Pairs,
    windows: EvaluationWindows,
    context_steps: int,
    of_pairs: Tensor,
    seed: int,
) -> Tensor | ContextDraws:
    """The draws that `context` asks for: those of the pairs themselves for `first`."""
    if context == FIRST:
        return of_pairs
    return DRAWS[context](posterior, pairs, windows, context_steps, of_pairs, seed)
