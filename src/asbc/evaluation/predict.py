"""Posterior draws of observed and simulated drivers, and their predictive rollouts.

A window starts at sample t0 of its pair: the simulator is reset to the gap and speed observed
there and follows the recorded leader. Of the follower it sees samples up to t0 only. Parameter
draws are those of its pair, or its own where each window has a context of its own.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from asbc.data.history import LATEST, context_start, context_states
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import EvaluationWindows, gather
from asbc.errors import InputError
from asbc.evaluation.observation import RecordedGaps
from asbc.posterior.posterior import PosteriorSamples
from asbc.simulator import Prefix, Rollout, Simulator
from asbc.types import Density
from asbc.utils.checks import require_finite, require_shape
from asbc.utils.progress import progress
from asbc.utils.random import RowStreams, stream

# Trajectories sampled at once: bounds the memory, changes no draw.
CHUNK = 32


def sample_pairs(
    posterior: Density, pairs: Pairs, context_steps: int, n: int, seed: int
) -> PosteriorSamples:
    """n draws for each pair from its first `context_steps` samples.

    A pair's draws depend on the seed, its id and its context only.
    """
    names = [f"pair {name}" for name in pairs.pair_id]
    return sample_contexts(posterior, pairs.contexts(context_steps), names, n, seed)


def sample_contexts(
    posterior: Density, states: Tensor | Segments, names: list[str], n: int, seed: int
) -> PosteriorSamples:
    """n draws for each trajectory (B, T, 3) or set of segments, keyed by its name."""
    parts = []
    places = torch.arange(len(names)).split(CHUNK)
    for place in progress(places, "posterior", total=len(places)):
        rng = RowStreams([stream(seed, "posterior", names[i]) for i in place.tolist()])
        parts.append(posterior.sample(states[place], n, rng))
    return PosteriorSamples(*(torch.cat(field) for field in zip(*parts, strict=True)))


class WindowDraws(Protocol):
    """Parameter draws that each window has of its own; `LatestDraws` provides them."""

    @property
    def of_pairs(self) -> Tensor: ...  # (pair, draw, dim), from each pair's first context

    def of(self, windows: EvaluationWindows) -> Tensor: ...  # (window, draw, dim)


@runtime_checkable
class Predictor(Protocol):
    """A model that drives by itself: no parameters of the simulator, rollouts at once."""

    def predict(self, pairs: Pairs, windows: EvaluationWindows, seed: int) -> Rollout: ...


# What windows are predicted with: a pair's parameters, a window's own, or none.
Draws = Tensor | WindowDraws | Predictor


class LatestDraws:
    """Draws of each window from the latest samples before it, made when they are asked for.

    A context's draws depend on the seed, its pair's id and its start only, and it is encoded once
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
        self._longest = int(pairs.lengths.max())
        own = self._codes(windows)
        self._contexts = own[own % self._longest > 0].unique()
        self._blocks: dict[int, Tensor] = {}

    def of(self, windows: EvaluationWindows) -> Tensor:
        """(window, draw, dim)."""
        theta = self.of_pairs[windows.pair]
        codes = self._codes(windows)
        later = torch.nonzero(codes % self._longest > 0).flatten()
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
        """One integer for the pair and first sample of each window's context."""
        first = context_start(LATEST, windows.start, self.context_steps)
        return windows.pair * self._longest + first

    def _sample(self, number: int) -> Tensor:
        codes = self._contexts[number * CHUNK : (number + 1) * CHUNK]
        pair, start = codes.div(self._longest, rounding_mode="floor"), codes % self._longest
        states = context_states(self.pairs, pair, start, self.context_steps)
        places = zip(pair.tolist(), start.tolist(), strict=True)
        rng = RowStreams(
            [stream(self.seed, "posterior", f"pair {self.pairs.pair_id[p]}", t) for p, t in places]
        )
        theta = self.posterior.sample(states, self.of_pairs.shape[1], rng).theta
        require_finite("theta", theta)
        return theta


def predict_windows(
    simulator: Simulator,
    theta: Draws,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int,
    prefix_noise: float,
    seed: int,
    observation: RecordedGaps | None = None,
) -> Rollout:
    """One rollout per window and parameter draw, each series (window, draw, horizon + 1).

    Args:
        simulator: law, residual process and kinematics.
        theta: (pair, draw, dim) parameter draws of every pair in `pairs`, or each window's own;
            or a model that predicts without any.
        pairs: observed pairs.
        windows: which pair and start each window has.
        prefix_steps: residuals before the start that the residual process is conditioned on.
        prefix_noise: their observation noise relative to sigma^2.
        seed: the noise is a function of it and of each window's pair and start.
        observation: adds the recording's error to the gaps; None: gaps as simulated.
    """
    if isinstance(theta, Predictor):
        rollout = theta.predict(pairs, windows, seed)
    else:
        own = theta[windows.pair] if isinstance(theta, Tensor) else theta.of(windows)
        rollout = _roll_out(simulator, own, pairs, windows, prefix_steps, prefix_noise, seed)
    return (
        observation.observe(rollout, simulator, pairs, windows, seed) if observation else rollout
    )


def _roll_out(
    simulator: Simulator,
    own: Tensor,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int,
    prefix_noise: float,
    seed: int,
) -> Rollout:
    """The simulator's drives with each window's parameter draws (window, draw, dim)."""
    pair, start, horizon = windows
    draws = own.shape[1]
    rows = pairs.offsets[pair] + start
    each = own.flatten(0, 1)

    def repeat(value: Tensor) -> Tensor:
        return value.repeat_interleave(draws, dim=0)

    prefix = None
    if prefix_steps and simulator.residual.parameters:  # without a residual nothing goes on
        prefix = _observed_prefix(simulator, own, pairs, rows, start, prefix_steps, prefix_noise)
    leader = gather(pairs.leader_speed, pairs.offsets, pair, start, horizon + 1)
    rollout = simulator.rollout(
        each,
        repeat(leader),
        repeat(pairs.gap[rows]),
        repeat(pairs.speed[rows]),
        window_streams(pairs, windows, seed),
        prefix,
        check=False,
    )
    return Rollout(*(series.unflatten(0, (len(pair), draws)) for series in rollout))


def window_streams(pairs: Pairs, windows: EvaluationWindows, seed: int) -> RowStreams:
    """The noise of each window's rollouts: a function of the seed, its pair and its start."""
    places = zip(windows.pair.tolist(), windows.start.tolist(), strict=True)
    return RowStreams([stream(seed, "rollout", pairs.pair_id[p], t) for p, t in places])


def _observed_prefix(
    simulator: Simulator,
    theta: Tensor,
    pairs: Pairs,
    rows: Tensor,
    start: Tensor,
    steps: int,
    noise: float,
) -> Prefix:
    """Residuals of the `steps` samples before each start, for every draw of theta."""
    back = torch.arange(-steps, 0)
    observed = start[:, None] + back >= 0
    # Samples before the recording are masked; any valid row stands in for them.
    before = torch.where(observed, rows[:, None] + back, rows[:, None])
    speed = pairs.speed[before]
    states = torch.stack([pairs.gap[before], speed, speed - pairs.leader_speed[before]], dim=-1)
    residuals = simulator.residuals(
        theta, states.unsqueeze(1), pairs.acceleration[before].unsqueeze(1)
    )  # (window, draw, steps)
    mask = observed.unsqueeze(1).expand_as(residuals)
    return Prefix(residuals.flatten(0, 1), mask.flatten(0, 1), noise)


def check_prediction_input(simulator: Simulator, theta: Draws, pairs: Pairs) -> None:
    """Raise unless theta holds finite draws for every pair, at the simulator's time step."""
    if not isinstance(theta, Predictor):
        theta = theta if isinstance(theta, Tensor) else theta.of_pairs
        require_shape("theta", theta, (len(pairs), None, simulator.dim))
        require_finite("theta", theta)
    if abs(pairs.dt - simulator.dt) > 1e-9:
        raise InputError(
            f"the data have a time step of {pairs.dt:g} s but the simulator one of "
            f"{simulator.dt:g} s; set data.dt={simulator.dt:g}"
        )
