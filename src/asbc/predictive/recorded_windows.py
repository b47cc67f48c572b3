"""Recorded drivers as training examples: a context, and a window after it to predict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from asbc.data.history import (
    ALL,
    CONTEXTS,
    context_start,
    context_states,
    histories,
)
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import EvaluationWindows, evaluation_windows, gather
from asbc.errors import InputError
from asbc.evaluation.recording_lag import lagged
from asbc.posterior.segment_pool import SegmentPool
from asbc.simulator.kinematics import NO_LAG, Kinematics, LaggedKinematics, Lags

RANDOM = "random"
# What a window is predicted from in training: any stretch before it, or as an evaluation does it.
TRAINING_CONTEXTS = (RANDOM, *CONTEXTS)
# Share of random contexts of one segment, where a posterior reads several.
SINGLE = 0.5


@dataclass(frozen=True)
class Examples:
    """Contexts and the windows predicted from them.

    Attributes:
        states: (window, steps, 3) contexts, or segments.
        pairs: each window as a pair of its own, with the samples before it that a residual
            process continues from.
        windows: where in these pairs the windows start.
        kinematics: how recorded gaps change in each; None: as the simulator says.
    """

    states: Tensor | Segments
    pairs: Pairs
    windows: EvaluationWindows
    kinematics: LaggedKinematics | None = None

    def __len__(self) -> int:
        return len(self.states)

    @property
    def newest(self) -> Tensor:
        """The newest segment of each context, (window, steps, 3)."""
        return self.states if isinstance(self.states, Tensor) else self.states.states[:, 0]

    def split(self, size: int) -> Iterator["Examples"]:
        """Parts of `size` windows, the last may be smaller."""
        for place in self.windows.pair.split(size):
            yield self._take(place)

    def thinned(self, count: int) -> "Examples":
        """At most `count` of the windows, evenly spaced."""
        return self._take(torch.linspace(0, len(self) - 1, min(count, len(self))).long())

    def _take(self, place: Tensor) -> "Examples":
        windows = EvaluationWindows(
            torch.arange(len(place)), self.windows.start[place], self.windows.horizon
        )
        rule = None if self.kinematics is None else self.kinematics.of(place)
        return Examples(self.states[place], self.pairs.select(place), windows, rule)

    def scaled(self, factor: Tensor) -> "Examples":
        """All lengths times `factor` (window,): what drivers on a road of another scale would do.

        Car-following laws have this symmetry (`asbc.simulator.symmetry`).
        """
        each = factor.repeat_interleave(self.pairs.lengths)
        names = ("gap", "speed", "leader_speed", "acceleration")
        columns = {name: getattr(self.pairs, name) * each for name in names}
        if isinstance(self.states, Tensor):
            states: Tensor | Segments = self.states * factor[:, None, None]
        else:
            longer = self.states.states * factor[:, None, None, None]
            states = replace(self.states, states=longer)
        return Examples(states, replace(self.pairs, **columns), self.windows, self.kinematics)


@dataclass(frozen=True)
class RecordedWindows:
    """Examples from recorded pairs, at random or on the grid of an evaluation.

    Args:
        recorded: pairs; those too short for a context and a window after it are left out.
        context_steps: samples of context.
        horizon: steps of a window.
        prefix_steps: samples before a window that a residual process continues from.
        split: which pairs these are, for messages.
        pool: of a posterior that reads several segments; None: it reads one.
        rule: how speeds move the gap, but for their lags (`asbc.evaluation.recording_lag`); None:
            as the simulator says, and lags are not looked for.
        lags: of contexts that do not show them (s).
    """

    recorded: Pairs
    context_steps: int
    horizon: int
    prefix_steps: int
    split: str
    pool: SegmentPool | None = None
    rule: Kinematics | None = None
    lags: Lags = NO_LAG

    def __post_init__(self) -> None:
        if not len(self._room):
            raise InputError(
                f"objective=predictive: no {self.split} pair has {self.context_steps} samples of "
                f"context and a window of {self.horizon} steps after it; lower "
                "data.context_steps or objective.horizon, or add data"
            )

    @property
    def _room(self) -> Tensor:
        """Pairs that are long enough."""
        needed = max(self.context_steps, self.prefix_steps) + self.horizon + 1
        return torch.nonzero(self.recorded.lengths >= needed).flatten()

    def draw(
        self, count: int, context: str, largest_scale: float, rng: np.random.Generator
    ) -> Examples:
        """`count` windows of random pairs, each with a context before it.

        Args:
            count: windows.
            context: one of `TRAINING_CONTEXTS`.
            largest_scale: each is scaled by a factor between its inverse and it; 1: not at all.
            rng: source of all choices.
        """
        room = self._room
        pair = room[torch.from_numpy(rng.integers(len(room), size=count))]
        share = torch.from_numpy(rng.random((3, count)))
        first = max(self.context_steps, self.prefix_steps)
        start = first + _floor(share[0] * (self._latest(pair) - first + 1))
        if context == RANDOM:
            # Any stretch of the pair, then any window after it: windows soon after the context
            # are as likely as late ones, in short pairs and in long.
            begin = _floor(share[1] * (self._latest(pair) - first + 1))
            after = begin + first
            start = after + _floor(share[0] * (self._latest(pair) - after + 1))
            states = self._random(pair, after, rng)
        else:
            states = self._states(context, pair, start)
        examples = self._examples(states, pair, start)
        if largest_scale == 1:
            return examples
        factor = ((2 * share[2] - 1) * math.log(largest_scale)).exp().float()
        return examples.scaled(factor)

    def grid(self, context: str, stride: int, max_windows: int) -> Examples:
        """The windows of an evaluation after the context, each with the context it has there."""
        pair, start, _ = evaluation_windows(
            self.recorded, self.horizon, stride, max_windows, self.context_steps
        )
        usable = start >= self.prefix_steps
        pair, start = pair[usable], start[usable]
        return self._examples(self._states(context, pair, start), pair, start)

    def _examples(self, states: Tensor | Segments, pair: Tensor, start: Tensor) -> Examples:
        pairs, windows = self._cut(pair, start)
        if self.rule is None:
            return Examples(states, pairs, windows)
        late = lagged(states, self.rule, pairs.dt, self.lags, pairs.gap.dtype)
        return Examples(states, pairs, windows, late)

    def _states(self, context: str, pair: Tensor, start: Tensor) -> Tensor | Segments:
        """What a window at each start is predicted from."""
        if context == ALL:
            return self._history(pair, start)
        begin = context_start(context, start, self.context_steps)
        return context_states(self.recorded, pair, begin, self.context_steps)

    def _random(self, pair: Tensor, end: Tensor, rng: np.random.Generator) -> Tensor | Segments:
        """The stretch before each end; half of them with all that came before it, if possible."""
        if self.pool is None:
            begin = end - self.context_steps
            return context_states(self.recorded, pair, begin, self.context_steps)
        history = self._history(pair, end)
        single = torch.from_numpy(rng.random(len(pair))) < SINGLE
        kept = history.lengths.clone()
        kept[single, 1:] = 0  # the newest segment is the first
        return replace(history, lengths=kept)

    def _history(self, pair: Tensor, end: Tensor) -> Segments:
        if self.pool is None:
            raise InputError(
                f"objective.context={ALL} needs a posterior of several segments; use "
                "history=segments"
            )
        pool = self.pool
        return histories(
            self.recorded, pair, end, self.context_steps, pool.shortest, pool.max_segments
        )

    def _latest(self, pair: Tensor) -> Tensor:
        """The last start a window may have."""
        return self.recorded.lengths[pair] - self.horizon - 1

    def _cut(self, pair: Tensor, start: Tensor) -> tuple[Pairs, EvaluationWindows]:
        """The windows as pairs of their own, and where in these they start."""
        pairs, before = self.recorded, self.prefix_steps
        gap, speed, leader, acceleration = (
            gather(column, pairs.offsets, pair, start - before, before + self.horizon + 1)
            for column in (pairs.gap, pairs.speed, pairs.leader_speed, pairs.acceleration)
        )
        each = Pairs.from_series(gap, speed, leader, pairs.dt, acceleration, "recorded")
        place = torch.arange(len(pair))
        return each, EvaluationWindows(place, torch.full_like(place, before), self.horizon)


def _floor(value: Tensor) -> Tensor:
    return value.floor().long()
