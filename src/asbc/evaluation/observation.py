"""What is recorded of a drive: the drive itself, or the drive with the recording's own error.

A simulated gap changes by the integrated relative speed; a recorded one does not quite. Speeds are
recorded late (`asbc.evaluation.recording_lag`): how late, the context shows, and drives are
simulated with gaps that change as the recording's do. Besides, trackers jitter, also where a
driver stands. A prediction of a *recorded* gap k steps ahead starts at a recorded gap, so it
misses by

    d_k = (recorded change of the gap over k steps) - (its change by the recorded speeds),

and the context shows how large that is, too. `Recorded` adds a normal error with the root mean
square of d_k at step k. Half of its variance is one number for the whole window: if the errors e_t
of single samples are independent, d_k = e_k - e_0, and the error at the start is in every step.

Where a driver stands, the recorded speed is its error, and recorded accelerations are the changes
of it. Simulated drivers stand still. Where they do, speeds get independent errors of the size that
the context's standing samples have, cut at 0 as recordings are, and accelerations what follows
from them. On the road nothing tells an error of the speed from what the driver does; there the
residual stands for both.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.data.history import ALL, FIRST, context_start, histories, single_segments
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.recording_lag import lagged, unexplained
from asbc.simulator import Rollout, Simulator
from asbc.simulator.kinematics import (
    Kinematics,
    LaggedKinematics,
    LeaderAccelerationKinematics,
)
from asbc.utils.random import RowStreams, standard_normal, stream

EXACT, RECORDED = "exact", "recorded"
OBSERVATIONS = (EXACT, RECORDED)
# Share of the error's variance that a window's steps have in common.
COMMON = 0.5
# Below this speed (m/s) a driver stands, and what is recorded is the error.
STANDING = 0.1
# Its size (m/s) where a context does not show it; chosen on validation drivers of Lyft.
UNSEEN = 0.01
# Samples at least of the newest segment, from which the error is estimated under `all`.
SHORTEST = 15
LAG_SEGMENTS = 8  # at most, that lags are estimated from


def check_observation(name: str, section: str) -> None:
    """Raise unless `name` is one of `OBSERVATIONS`; `section` is the config's."""
    if name not in OBSERVATIONS:
        raise InputError(
            f"{section}.observation={name}; expected one of {', '.join(OBSERVATIONS)}"
        )


class Errors(NamedTuple):
    """What a recording adds to drives; at their start it has nothing to add."""

    gap: Tensor  # (window, draw, horizon)
    speed: Tensor  # (window, draw, horizon + 1): the last acceleration ends at a sample beyond


@dataclass(frozen=True)
class Recorded:
    """The recording's error, estimated from the context each window is predicted from.

    Args:
        context_steps: samples of context.
        context: `first`, `latest` or `all`, see `asbc.data.history`.
    """

    context_steps: int
    context: str = FIRST

    def kinematics(
        self, simulator: Simulator, pairs: Pairs, windows: EvaluationWindows
    ) -> LaggedKinematics | None:
        """How each window's recorded gap changes by recorded speeds; None for a black box, which
        moves its vehicles itself."""
        rule = getattr(simulator, "kinematics", None)
        if rule is None:
            return None
        known = self._known(pairs, windows, LAG_SEGMENTS)
        return lagged(known, rule, pairs.dt, simulator.lags, pairs.gap.dtype)

    def observe(
        self,
        rollout: Rollout,
        simulator: Simulator,
        pairs: Pairs,
        windows: EvaluationWindows,
        seed: int,
    ) -> Rollout:
        """The rollout (window, draw, horizon + 1) as it would be recorded.

        The state at the start is the recorded one already and stays; collisions are those of the
        simulated gap.
        """
        draws = rollout.gap.shape[1]
        return recorded(rollout, self.errors(simulator, pairs, windows, draws, seed), pairs.dt)

    def errors(
        self,
        simulator: Simulator,
        pairs: Pairs,
        windows: EvaluationWindows,
        draws: int,
        seed: int,
    ) -> Errors:
        """The errors that `observe` adds."""
        places = zip(windows.pair.tolist(), windows.start.tolist(), strict=True)
        rng = RowStreams([stream(seed, "observation", pairs.pair_id[p], t) for p, t in places])
        known, dtype = self._known(pairs, windows), pairs.gap.dtype
        rule = self._rule(simulator, pairs, windows)
        return draw_errors(known, rule, pairs.dt, windows.horizon, draws, rng, dtype)

    def spread(self, simulator: Simulator, pairs: Pairs, windows: EvaluationWindows) -> Tensor:
        """Standard deviation of the error 1 .. horizon steps ahead, (window, horizon), float64."""
        known = self._known(pairs, windows)
        rule = self._rule(simulator, pairs, windows)
        return error_spread(known, rule, pairs.dt, windows.horizon)

    def _rule(self, simulator: Simulator, pairs: Pairs, windows: EvaluationWindows) -> Kinematics:
        """How recorded gaps change, for a black box too, which has no rule of its own."""
        return self.kinematics(simulator, pairs, windows) or kinematics_of(simulator)

    def _known(self, pairs: Pairs, windows: EvaluationWindows, segments: int = 1) -> Segments:
        """What errors are estimated from; under `all` of so many segments at most."""
        steps = self.context_steps
        if self.context == ALL:
            # The newest alone for errors, which depend on the traffic of the moment; lags do not.
            least = min(SHORTEST, steps)
            return histories(pairs, windows.pair, windows.start, steps, least, segments)
        start = context_start(self.context, windows.start, steps)
        return single_segments(pairs, windows.pair, start, steps)


def draw_errors(
    states: Tensor | Segments,
    kinematics: Kinematics,
    dt: float,
    horizon: int,
    draws: int,
    rng: np.random.Generator,
    dtype: torch.dtype,
) -> Errors:
    """Errors of the size that contexts show.

    Args:
        states: gap, speed and approach rate, (context, steps, 3), or segments.
        kinematics: how speeds change the gap, in each context.
        dt: time step (s).
        horizon: steps ahead.
        draws: for each context.
        rng: source of the errors.
        dtype: of the drives.
    """
    spread = error_spread(states, kinematics, dt, horizon)
    standing, count = standing_error(states), len(spread)
    noise = standard_normal(rng, count * draws, 1 + horizon, dtype=dtype)
    noise = noise.view(count, draws, 1 + horizon)
    common, own = noise[..., :1], noise[..., 1:]
    gap = COMMON**0.5 * common + (1 - COMMON) ** 0.5 * own
    speed = standard_normal(rng, count * draws, 1 + horizon, dtype=dtype)
    return Errors(
        spread.to(dtype)[:, None] * gap,
        standing.to(dtype)[:, None, None] * speed.view(count, draws, 1 + horizon),
    )


def recorded(rollout: Rollout, errors: Errors, dt: float) -> Rollout:
    """The rollout (window, draw, horizon + 1) with errors of gaps, speeds and accelerations."""
    gap = rollout.gap.clone()
    gap[..., 1:] += errors.gap
    # The sample after the last: the last acceleration leads to it.
    after = (rollout.speed[..., -1:] + dt * rollout.acceleration[..., -1:]).clamp_min(0)
    later = torch.cat([rollout.speed[..., 1:], after], dim=-1)
    error = ((later + errors.speed).clamp_min(0) - later).where(later < STANDING, 0.0)
    error = torch.nn.functional.pad(error, (1, 0))
    return rollout._replace(
        gap=gap,
        speed=rollout.speed + error[..., :-1],
        approach_rate=rollout.approach_rate + error[..., :-1],
        acceleration=rollout.acceleration + error.diff(dim=-1) / dt,
    )


def standing_error(states: Tensor | Segments) -> Tensor:
    """Standard deviation of recorded speeds where drivers stand, (context,), float64.

    Where nobody stands in a context, it is `UNSEEN`.

    Errors below 0 are recorded as 0, so that half of the variance is missing.

    Args:
        states: gap, speed and approach rate, (context, steps, 3), or segments.

    Example:
        >>> still = torch.zeros(1, 6, 3)
        >>> still[0, :, 1] = torch.tensor([0.0, 0.02, 0.0, 0.02, 3.0, 5.0])
        >>> standing_error(still).round(decimals=4)
        tensor([0.0200], dtype=torch.float64)
    """
    segments = states if isinstance(states, Segments) else Segments.of(states)
    rows, lengths = segments.rows()
    speed = rows[..., 1].double()
    stands = (speed < STANDING) & (torch.arange(speed.shape[1]) < lengths[:, None])
    driver = torch.nonzero(segments.present)[:, 0]
    total = torch.zeros(len(segments), 2, dtype=torch.float64)
    squares = speed.square().masked_fill(~stands, 0.0).sum(1)
    total.index_add_(0, driver, torch.stack([squares, stands.sum(1).double()], dim=1))
    error = (2 * total[:, 0] / total[:, 1].clamp(min=1)).sqrt()
    return error.where(total[:, 1] > 0, UNSEEN)


def observation_model(name: str, context_steps: int, context: str = FIRST) -> Recorded | None:
    """The model called `name`; None for `exact`, which changes nothing.

    Example:
        >>> observation_model("recorded", 75)
        Recorded(context_steps=75, context='first')
    """
    return None if name == EXACT else Recorded(context_steps, context)


def error_spread(
    states: Tensor | Segments, kinematics: Kinematics, dt: float, horizon: int
) -> Tensor:
    """Root mean square of d_k for k = 1 .. horizon in each context, (context, horizon), float64.

    The mean is over all samples of the context that have one k steps later. Where these are less
    than a third of a segment, it says nothing; beyond what any segment says, the value of the
    longest k before is kept.

    Args:
        states: gap, speed and approach rate, (context, steps, 3), or segments.
        kinematics: how speeds change the gap, as in the simulator that predicts.
        dt: time step (s).
        horizon: steps ahead.

    Example:
        >>> still = torch.zeros(1, 6, 3)  # a driver who stands, recorded gaps jump by 0.1 m
        >>> still[0, :, 0] = torch.tensor([5.0, 5.1, 5.0, 5.1, 5.0, 5.1])
        >>> error_spread(still, LeaderAccelerationKinematics(), 0.2, 4).round(decimals=4)
        tensor([[0.1000, 0.0000, 0.1000, 0.0000]], dtype=torch.float64)
    """
    segments = states if isinstance(states, Segments) else Segments.of(states)
    rows, lengths = segments.rows()
    driver = torch.nonzero(segments.present)[:, 0]
    if isinstance(kinematics, LaggedKinematics):
        kinematics = kinematics.of(driver)
    error = unexplained(rows.double(), kinematics, dt)  # (row, steps)
    longest = (2 * lengths).div(3, rounding_mode="floor").clamp(min=1)
    steps = torch.arange(error.shape[1])
    total = torch.zeros(len(segments), horizon, dtype=torch.float64)
    count = torch.zeros_like(total)
    for k in range(1, min(horizon, int(longest.max())) + 1):
        known = (steps[k:] < lengths[:, None]) & (k <= longest)[:, None]
        squares = (error[:, k:] - error[:, :-k]).square().masked_fill(~known, 0.0)
        total[:, k - 1].index_add_(0, driver, squares.sum(1))
        count[:, k - 1].index_add_(0, driver, known.sum(1).double())
    reach = (count > 0).sum(1, keepdim=True).clamp(min=1) - 1
    last = torch.minimum(torch.arange(horizon).expand(len(total), -1), reach)
    return (total / count.clamp(min=1)).gather(1, last).sqrt()


def kinematics_of(simulator: Simulator) -> Kinematics:
    """The simulator's own rule; for a black box, which has none, that of smooth speeds."""
    return getattr(simulator, "kinematics", None) or LeaderAccelerationKinematics()
