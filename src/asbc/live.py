"""A driver who is being watched: the posterior of now, what comes next, and whether it changed.

What is known at each time step is what `asbc.data.history` would find in a recording that ends
there, so the posterior is that of `asbc calibrate`, number for number. Memory does not grow: of
more than the model reads, the newest is kept.

Every few seconds the driver is compared with what its posterior from before said. Drives behind
the recorded leader are simulated from the state and with the posterior at the start of these
seconds. If the driver is still the same, its own drive is one more of them: its rank, by the
distance to all others, is uniform. The p-values of checks one after the other are independent
then, and those of the latest few are combined by Fisher's method.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log, nan

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from asbc.calibration.export.tables import long_summary, summary_columns
from asbc.data.history import LATEST, cut
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.observation import EXACT, check_observation, observation_model
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import EvaluationSettings
from asbc.simulator import Rollout
from asbc.trained_model import Model
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import RowStreams, key, stream

COLUMNS = ("gap", "speed", "leader_speed")
SUMMARY_DRAWS = 500
# A scale below this (m or m/s) is rounding: all drives are the same.
SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class Surprise:
    """When a driver counts as changed.

    Args:
        seconds: that a check compares; they follow each other.
        drives: simulated for a check.
        checks: latest ones that are combined.
        level: share of checks at which a driver who has not changed is called so.

    Example:
        >>> Surprise().combined([0.5, 0.01, 0.02]) < 0.01 < Surprise().combined([0.5, 0.9, 0.01])
        True
    """

    seconds: float = 5.0
    drives: int = 100
    checks: int = 3
    level: float = 0.01

    def __post_init__(self) -> None:
        check_number("surprise.seconds", self.seconds, above=0)
        check_integer("surprise.drives", self.drives, minimum=10)
        check_integer("surprise.checks", self.checks, minimum=1)
        check_number("surprise.level", self.level, above=0)

    def combined(self, p_values: "list[float] | deque[float]") -> float:
        """Fisher's p-value of independent ones; NaN for none."""
        if not p_values:
            return nan
        return float(stats.chi2.sf(-2 * sum(map(log, p_values)), 2 * len(p_values)))


def rank_p_value(observed: Tensor, simulated: Tensor) -> float:
    """How unusual a series is among simulated ones: a p-value, exact if it is one of their kind.

    The statistic is the mean distance to all others; whatever it were, all ranks would be equally
    likely, as all series are treated alike.

    Args:
        observed: (series, step), gaps and speeds for example.
        simulated: (n, series, step).

    Example:
        >>> simulated = torch.linspace(-1, 1, 99)[:, None, None]
        >>> rank_p_value(torch.zeros(1, 1), simulated)
        1.0
        >>> rank_p_value(torch.full((1, 1), 5.0), simulated)
        0.01
    """
    every = torch.cat([observed[None], simulated]).double()
    scale = (every - every.mean(0)).square().mean((0, 2)).sqrt().clamp_min(SMALLEST_SCALE)
    points = (every / scale[:, None]).flatten(1)
    distance = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").sum(1)
    # Equal up to rounding counts as equal.
    least = distance[0] * (1 - 1e-9)
    return float((distance >= least).double().mean())


@dataclass(frozen=True)
class Present:
    """What is known of a driver at one time step; encoded and drawn from when it is asked for.

    Attributes:
        seconds: of the driver that the posterior is from.
        segments: in how many segments.
        surprise: p-value of the latest checks, small where the driver is not as before; NaN
            before the first.
        changed: whether it is below the level.
        known: the segments themselves; None before there is one.
    """

    seconds: float
    segments: int
    surprise: float
    changed: bool
    known: Segments | None = field(repr=False)
    live: "Live" = field(repr=False)

    @cached_property
    def context(self) -> Tensor:
        """What the posterior is conditioned on as its flow sees it, (1, d)."""
        if self.known is None:
            raise InputError(
                f"driver {self.live.name}: nothing is known yet; a posterior needs "
                f"{self.live.shortest * self.live.dt:g} s without a pause"
            )
        return self.live.model.posterior.encode(self.known)

    def theta(self, n: int = SUMMARY_DRAWS, *purpose: str | int) -> Tensor:
        """n draws (n, dim); the same for the same seed, name of the driver, and purpose."""
        rng = RowStreams([stream(self.live.seed, "posterior", self.live.key, *purpose)])
        return self.live.model.posterior.sample_context(self.context, n, rng).theta[0]

    @property
    def summary(self) -> pd.DataFrame:
        """A row per parameter: unit, mean, sd, 5%, 50% and 95% quantile."""
        prior = self.live.model.simulator.prior
        columns = summary_columns(self.theta()[None], prior)
        table = pd.DataFrame({"follower": [self.live.name], **columns})
        return long_summary(table, prior).drop(columns="follower").reset_index(drop=True)


class Live:
    """The posterior of a driver, updated with every sample; `Run.follow` makes one.

    Args:
        model: what calibrates. If it reads several segments, all that is known is used; else the
            latest `context_steps` samples.
        name: of the driver, which the draws are keyed by.
        seed: of all draws.
        observation: whether predicted gaps have the recording's own error (`recorded`), or not
            (`exact`).
        surprise: when the driver counts as changed; None: it is never asked.

    Example:
        >>> from asbc import Run
        >>> live = Run.open("idm_gaussian").follow()
        >>> for step in range(80):
        ...     now = live.update(gap=20.0, speed=10.0, leader_speed=10.0)
        >>> now.seconds, now.theta(200).shape, live.predict([10.0] * 25, n=50).gap.shape
        (15.0, torch.Size([200, 6]), torch.Size([50, 26]))
    """

    def __init__(
        self,
        model: Model,
        name: str = "driver",
        seed: int = 0,
        observation: str = EXACT,
        surprise: Surprise | None = Surprise(),
    ) -> None:
        check_observation(observation, "follow")
        self.model, self.name, self.seed = model, name, seed
        self.dt, self._steps = model.simulator.dt, model.context_steps
        pool = model.posterior.pool
        # A model of single trajectories reads the latest full one.
        self.shortest = self._steps if pool is None else pool.shortest
        self._most = 1 if pool is None else pool.max_segments
        self.key = f"{'pair' if pool is None else 'driver'} {name}"
        self.observation, self.surprise = observation, surprise
        self._checked = 0 if surprise is None else max(1, round(surprise.seconds / self.dt))
        self._keep = max(self._most, 1 + -(-self._checked // self._steps)) * self._steps
        self._drive = np.zeros((2 * self._keep, len(COLUMNS)))  # the newest samples of this drive
        self._held = self._count = 0  # samples in it, and in the whole drive
        self._closed: list[_Closed] = []  # segments of earlier drives, the newest first
        self._pause = 0.0  # s since the last of them ended
        self._p_values: deque[float] = deque(maxlen=1 if surprise is None else surprise.checks)
        self._forecast: _Forecast | None = None
        self.now = Present(0.0, 0, nan, False, None, self)

    def update(self, gap: float, speed: float, leader_speed: float) -> Present:
        """What is known with one more sample, a time step after the one before.

        Args:
            gap: net gap (m).
            speed: of the follower (m/s).
            leader_speed: of the leader (m/s).
        """
        sample = (float(gap), float(speed), float(leader_speed))
        for name, value in zip(COLUMNS, sample, strict=True):
            if not (value > 0 if name == "gap" else value >= 0) or value == float("inf"):
                expected = "a positive number (m)" if name == "gap" else "0 or more (m/s)"
                raise InputError(f"driver {self.name}: {name}={value}; expected {expected}")
        if self._held == len(self._drive):
            self._drive[: self._keep] = self._drive[self._keep :]
            self._held = self._keep
        self._drive[self._held] = sample
        self._held, self._count = self._held + 1, self._count + 1
        known = self.segments()
        self.now = Present(
            seconds=0.0 if known is None else int(known.total) * self.dt,
            segments=0 if known is None else known.lengths.shape[1],
            surprise=self.now.surprise,
            changed=self.now.changed,
            known=known,
            live=self,
        )
        self._check()
        return self.now

    def pause(self, seconds: float | None = None) -> None:
        """The driver was out of sight, or has another leader: the next sample begins a new drive.

        Args:
            seconds: from the last sample to the next one; None: nobody knows.
        """
        lasted = nan if seconds is None else seconds
        if not (lasted > 0 or seconds is None):
            raise InputError(f"driver {self.name}: pause={seconds}; expected seconds above 0")
        found = self._own()
        duration = max(self._count - 1, 0) * self.dt
        if found:
            older = [replace(c, age=c.age + self._pause + duration) for c in self._closed]
            self._closed = [*found, *older][: self._most]
            self._pause = lasted
        else:  # too short to count, and part of the pause
            self._pause += duration + lasted
        self._held = self._count = 0
        self._forecast = None

    def segments(self) -> Segments | None:
        """All that the posterior of now is conditioned on; None if there is no segment yet."""
        own = self._own()
        since = self._pause + (self._count - 1) * self.dt if own else 0.0
        found = [*own, *(replace(c, age=c.age + since) for c in self._closed)][: self._most]
        if not found:
            return None
        states = np.zeros((len(found), self._steps, 3), np.float32)
        for slot, segment in enumerate(found):
            gap, speed, leader = segment.samples.T.astype(np.float32)
            states[slot, : len(gap)] = np.stack([gap, speed, speed - leader], axis=-1)
        lengths = torch.tensor([[len(segment.samples) for segment in found]])
        age = torch.tensor([[segment.age for segment in found]], dtype=torch.float32)
        return Segments(torch.from_numpy(states)[None], lengths, age)

    def posterior(self, n: int = SUMMARY_DRAWS) -> Tensor:
        """n draws (n, dim) of the posterior of now."""
        return self.now.theta(n)

    def predict(self, leader_speed: "list[float] | np.ndarray | Tensor", n: int = 200) -> Rollout:
        """n drives from now behind a leader with these speeds in the next steps.

        Residuals go on from the latest ones. Series are (n, 1 + steps), now included.

        Args:
            leader_speed: of the leader, one step from now and on (m/s).
            n: drives.
        """
        theta = self.now.theta(n)
        if not self._count:
            raise InputError(f"driver {self.name}: no sample since the pause; update first")
        plan = np.asarray(leader_speed, dtype=np.float64).reshape(-1)
        if not len(plan) or not bool(((plan >= 0) & (plan < np.inf)).all()):
            raise InputError("leader_speed: expected speeds of the next steps, 0 or more (m/s)")
        future = np.repeat(self._drive[self._held - 1 : self._held], len(plan), axis=0)
        future[:, 2] = plan
        samples = np.concatenate([self._drive[: self._held], future])
        return self._rollout(theta, samples, self._held - 1, self.seed)

    def _own(self) -> "list[_Closed]":
        """The segments of the present drive, the newest first."""
        # Of a longer drive than is kept, no older segment is read; its rest is full then.
        pieces = cut(min(self._count, self._most * self._steps), self._steps, self.shortest)
        newest = min(self._count, self._most * self._steps)
        first = self._held - newest
        return [
            _Closed(
                self._drive[first + start : first + start + length].copy(),
                (newest - start - length) * self.dt,
            )
            for start, length in pieces
        ]

    def _rollout(self, theta: Tensor, samples: np.ndarray, start: int, seed: int) -> Rollout:
        """Drives (n, step) from the sample `start` to the last one of `samples`."""
        columns = np.column_stack([samples, np.append(np.diff(samples[:, 1]), 0.0) / self.dt])
        gap, speed, leader, change = torch.from_numpy(columns.T).float()[:, None]
        pairs = Pairs.from_series(gap, speed, leader, self.dt, change)
        pairs = replace(pairs, pair_id=(self.name,))
        windows = EvaluationWindows(
            torch.tensor([0]), torch.tensor([start]), len(samples) - 1 - start
        )
        # As much of the past as there is says how large the recording's error is, if there is any.
        known = self.observation if start > 1 else EXACT
        model = observation_model(known, min(start, self._steps), LATEST)
        rollout = predict_windows(
            self.model.simulator,
            theta[None],
            pairs,
            windows,
            PREFIX.residual_prefix_steps,
            PREFIX.residual_prefix_noise,
            seed,
            model,
        )
        return Rollout(*(series[0] for series in rollout))

    def _check(self) -> None:
        """Compare the driver with the forecast, if its time is over, and begin the next one.

        Its posterior is encoded one step later and drawn from after two, so that no step has to
        do everything.
        """
        forecast = self._forecast
        if self.surprise is None or self.now.known is None:
            return
        if forecast is None:
            self._forecast = _Forecast(self._count, self.now, self.surprise.drives)
            return
        waited = self._count - forecast.made
        if waited == 1:
            _ = forecast.present.context
        elif waited == 2:
            _ = forecast.theta
        if waited >= self._checked:
            self._p_values.append(self._p_value(forecast))
            found = self.surprise.combined(self._p_values)
            self.now = replace(self.now, surprise=found, changed=found < self.surprise.level)
            self._forecast = _Forecast(self._count, self.now, self.surprise.drives)

    def _p_value(self, forecast: "_Forecast") -> float:
        samples = self._drive[max(0, self._held - self._checked - self._steps) : self._held]
        start = len(samples) - 1 - self._checked
        # Noise of its own: with the same in every check, the checks would not be independent.
        seed = key(self.seed, "check", self.key, self._count)
        rollout = self._rollout(forecast.theta, samples, start, seed)
        simulated = torch.stack([rollout.gap, rollout.speed], dim=1)[..., 1:]
        observed = torch.from_numpy(samples[start + 1 :, :2].T)
        return rank_p_value(observed, simulated)


@dataclass(frozen=True)
class _Closed:
    """Samples of a segment (length, 3), and its age when its drive ended (s)."""

    samples: np.ndarray
    age: float


@dataclass(frozen=True)
class _Forecast:
    """What was known after `made` samples of the drive, and draws (drives, dim) from it."""

    made: int
    present: Present
    drives: int

    @cached_property
    def theta(self) -> Tensor:
        return self.present.theta(self.drives, "forecast", self.made)


# A prediction goes on from the residuals before it as one of an evaluation does.
PREFIX = EvaluationSettings()
