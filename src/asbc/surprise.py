"""Whether a driver is still as it was: its drive among those that were forecast for it.

Every few seconds the driver is compared with what its posterior from before said. Drives behind
its leader are simulated from the state and with the posterior at the start of these seconds. If
the driver is still the same, its own drive is one more of them: its rank, by the distance to all
others, is uniform. The p-values of checks one after the other are independent then, and those of
the latest few are combined by Fisher's method.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, nan
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from asbc.data.history import LATEST
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.evaluation.observation import EXACT, Errors, Recorded, observation_model, recorded
from asbc.evaluation.predict import Start, window_starts
from asbc.evaluation.protocol import PREFIX_NOISE, PREFIX_STEPS
from asbc.simulator.rollout import Behind
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import key

if TYPE_CHECKING:
    from asbc.live import Present

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

    def combined(self, p_values: Collection[float]) -> float:
        """Fisher's p-value of independent ones; NaN for none."""
        if not p_values:
            return nan
        return float(stats.chi2.sf(-2 * sum(map(log, p_values)), 2 * len(p_values)))


USUAL = Surprise()


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


class Forecast:
    """Drives from one moment on of a driver who stays as it was known then.

    No step has to do everything. The posterior is encoded at the moment itself, where it is likely
    to be asked for anyway; in the steps after it, its draws are made, a layer of the flow in each,
    then residuals before the start are looked at, those after it drawn, and the recording's error;
    and from then on the drives go on by a step at each. They are those of
    `asbc.evaluation.predict.predict_windows` for the whole window, number for number.

    Args:
        present: what is known at that moment.
        made: samples of the drive until then.
        past: the newest of them, (n, 3) of gap, speed and leader speed.
        horizon: samples to compare.
        drives: to simulate.
    """

    def __init__(
        self, present: Present, made: int, past: np.ndarray, horizon: int, drives: int
    ) -> None:
        live = present.live
        self.made, self.horizon, self.drives = made, horizon, drives
        self._simulator = live.model.simulator
        self._past = as_recording(past, live.dt, live.name)
        self._window = EvaluationWindows(torch.tensor([0]), torch.tensor([len(past) - 1]), horizon)
        self._observation = recording_error(
            live.observation, len(past) - 1, live.model.context_steps
        )
        # Noise of its own: with the same in every check, the checks would not be independent.
        self._seed = key(live.seed, "check", live.key, made + horizon)
        self._samples = [past[-1].tolist()]  # of the driver, from the moment on
        self._driven = 0  # of them, those in which the drives have seen the leader
        self._draws = present.draws(drives, "forecast", made)
        # By name, so that a watched driver can be copied.
        self._portions = ["_start", "_behind", "_errors"]

    @property
    def over(self) -> bool:
        """Whether all samples to compare are there."""
        return len(self._samples) > self.horizon

    @torch.inference_mode()
    def watch(self, sample: Sequence[float]) -> None:
        """Take the driver's next sample (3,), and do this step's share of the work."""
        self._samples.append(list(sample))
        if not self._draws.over:
            self._draws.go_on()
        elif self._portions:
            getattr(self, self._portions.pop(0))
        else:
            self._drive()

    @torch.inference_mode()
    def p_value(self) -> float:
        """How unusual the driver is among the drives, once it is over."""
        self._drive()
        rollout = self._behind.rollout()
        if self._errors is not None:
            rollout = recorded(rollout, self._errors, self._past.dt)
        gap, speed = rollout.gap[:, 1:], rollout.speed[:, 1:]
        observed = torch.tensor(self._samples[1:], dtype=torch.float64)[:, :2].T
        return rank_p_value(observed, torch.stack([gap, speed], dim=1))

    @cached_property
    def _start(self) -> Start:
        """What the drives begin with, the residuals before the moment included."""
        return window_starts(
            self._simulator,
            self._draws.samples().theta,
            self._past,
            self._window,
            PREFIX_STEPS,
            PREFIX_NOISE,
            self._seed,
        )

    @cached_property
    def _behind(self) -> Behind:
        """The drives, with the residuals to come."""
        theta, gap, speed, rng, prefix = self._start
        rule = None
        if self._observation is not None:
            rule = self._observation.kinematics(self._simulator, self._past, self._window)
        return self._simulator.begin(theta, gap, speed, 1 + self.horizon, rng, prefix, rule)

    @cached_property
    def _errors(self) -> Errors | None:
        """What the recording adds to the drives, if it does."""
        if self._observation is None:
            return None
        errors = self._observation.errors(
            self._simulator, self._past, self._window, self.drives, self._seed
        )
        return Errors(*(of[0] for of in errors))

    def _drive(self) -> None:
        """Let the drives catch up with the leader."""
        for _, _, leader_speed in self._samples[self._driven :]:
            self._behind.follow(leader_speed)
        self._driven = len(self._samples)


def as_recording(samples: np.ndarray, dt: float, name: str) -> Pairs:
    """Samples (n, 3) of gap, speed and leader speed as a pair of this name."""
    columns = np.column_stack([samples, np.append(np.diff(samples[:, 1]), 0.0) / dt])
    gap, speed, leader, acceleration = torch.from_numpy(columns.T).float()[:, None]
    return replace(Pairs.from_series(gap, speed, leader, dt, acceleration), pair_id=(name,))


def recording_error(observation: str, start: int, context_steps: int) -> Recorded | None:
    """The error of drives that are predicted from the sample `start` of a recording on."""
    # As much of the past as there is says how large the recording's error is, if there is any.
    known = observation if start > 1 else EXACT
    return observation_model(known, min(start, context_steps), LATEST)
