"""A driver who is being watched: the posterior of now, what comes next, and whether it changed.

What is known at each time step is what `asbc.data.history` would find in a recording that ends
there, so the posterior is that of `asbc calibrate`, number for number. Memory does not grow: of
more than the model reads, the newest is kept.

Every few seconds the driver is compared with what its posterior from before said, see
`asbc.surprise`.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.calibration.export.tables import long_summary, summary_columns
from asbc.data.history import cut
from asbc.data.segments import Segments
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.observation import EXACT, check_observation
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import PREFIX_NOISE, PREFIX_STEPS
from asbc.posterior.gradual import GradualDraws
from asbc.simulator import Rollout
from asbc.surprise import USUAL, Forecast, Surprise, as_recording, recording_error
from asbc.trained_model import Model
from asbc.utils.random import RowStreams, stream

COLUMNS = ("gap", "speed", "leader_speed")
SUMMARY_DRAWS = 500


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
        with torch.inference_mode():  # a tenth cheaper than without gradients alone
            context = self.live.model.posterior.encode(self.known)
        return context.clone()  # as an ordinary tensor

    def theta(self, n: int = SUMMARY_DRAWS, *purpose: str | int) -> Tensor:
        """n draws (n, dim); the same for the same seed, name of the driver, and purpose."""
        posterior, rng = self.live.model.posterior, self._noise(*purpose)
        return posterior.sample_context(self.context, n, rng).theta[0]

    def draws(self, n: int, *purpose: str | int) -> GradualDraws:
        """Those of `theta`, to be made bit by bit."""
        return GradualDraws(self.live.model.posterior, self.context, n, self._noise(*purpose))

    def _noise(self, *purpose: str | int) -> RowStreams:
        return RowStreams([stream(self.live.seed, "posterior", self.live.key, *purpose)])

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
        observation: whether predictions have the recording's own error (`recorded`), or not
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
        surprise: Surprise | None = USUAL,
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
        self._keep = self._most * self._steps
        self._drive = np.zeros((2 * self._keep, len(COLUMNS)))  # the newest samples of this drive
        self._held = self._count = 0  # samples in it, and in the whole drive
        self._closed: list[_Closed] = []  # segments of earlier drives, the newest first
        self._pause = 0.0  # s since the last of them ended
        self._p_values: deque[float] = deque(maxlen=1 if surprise is None else surprise.checks)
        self._forecast: Forecast | None = None
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
        self._check(sample)
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
        start = self._held - 1
        windows = EvaluationWindows(torch.tensor([0]), torch.tensor([start]), len(plan))
        rollout = predict_windows(
            self.model.simulator,
            theta[None],
            as_recording(samples, self.dt, self.name),
            windows,
            PREFIX_STEPS,
            PREFIX_NOISE,
            self.seed,
            recording_error(self.observation, start, self._steps),
        )
        return Rollout(*(series[0] for series in rollout))

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

    def _check(self, sample: tuple[float, float, float]) -> None:
        """Compare the driver with the forecast, if its time is over, and begin the next one."""
        if self.surprise is None or self.now.known is None:
            return
        if self._forecast is not None:
            self._forecast.watch(sample)
            if not self._forecast.over:
                return
            self._p_values.append(self._forecast.p_value())
            found = self.surprise.combined(self._p_values)
            self.now = replace(self.now, surprise=found, changed=found < self.surprise.level)
        past = self._drive[self._held - min(self._count, self._steps) : self._held]
        self._forecast = Forecast(self.now, self._count, past, self._checked, self.surprise.drives)


@dataclass(frozen=True)
class _Closed:
    """Samples of a segment (length, 3), and its age when its drive ended (s)."""

    samples: np.ndarray
    age: float
