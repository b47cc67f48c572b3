"""Predictive rollouts of observed drivers.

A window starts at sample t0 of its pair: the simulator is reset to the gap and speed observed
there and follows the recorded leader. Of the follower it sees samples up to t0 only. Parameter
draws are those of its pair, or its own where each window has a context of its own.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, gather
from asbc.errors import InputError
from asbc.evaluation.observation import Recorded
from asbc.evaluation.window_draws import WindowDraws
from asbc.simulator import Prefix, Rollout, Simulator
from asbc.simulator.kinematics import LaggedKinematics
from asbc.utils.checks import require_finite, require_shape
from asbc.utils.random import RowStreams, stream


@runtime_checkable
class Predictor(Protocol):
    """A model that drives by itself: no parameters of the simulator, rollouts at once."""

    def predict(
        self,
        pairs: Pairs,
        windows: EvaluationWindows,
        seed: int,
        kinematics: LaggedKinematics | None = None,
    ) -> Rollout: ...


# What windows are predicted with: a pair's parameters, a window's own, or none.
Draws = Tensor | WindowDraws | Predictor


def predict_windows(
    simulator: Simulator,
    theta: Draws,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int,
    prefix_noise: float,
    seed: int,
    observation: Recorded | None = None,
) -> Rollout:
    """One rollout per window and parameter draw, each series (window, draw, horizon + 1).

    Args:
        simulator: law, residual process and kinematics.
        theta: (pair, draw, dim) parameter draws of every pair in `pairs`, or each window's own;
            or a model that predicts without any.
        pairs: observed pairs.
        windows: which pair and start each window has.
        prefix_steps: residuals before the start that the residual process is conditioned on; a
            learned residual reads as many samples as it was trained with, unless this is 0.
        prefix_noise: their observation noise relative to sigma^2.
        seed: the noise is a function of it and of each window's pair and start.
        observation: makes drives those of a recording; None: drives as simulated.
    """
    kinematics = None
    if observation is not None:
        kinematics = observation.kinematics(simulator, pairs, windows)
    if isinstance(theta, Predictor):
        rollout = theta.predict(pairs, windows, seed, kinematics)
    else:
        own = theta[windows.pair] if isinstance(theta, Tensor) else theta.of(windows)
        rollout = drive_windows(
            simulator, own, pairs, windows, prefix_steps, prefix_noise, seed, kinematics
        )
    return (
        observation.observe(rollout, simulator, pairs, windows, seed) if observation else rollout
    )


def drive_windows(
    simulator: Simulator,
    own: Tensor,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int,
    prefix_noise: float,
    seed: int,
    kinematics: LaggedKinematics | None,
) -> Rollout:
    """Drives of windows with parameter draws of their own (window, draw, dim).

    The other arguments are those of `predict_windows`; `kinematics` is each window's, None the
    simulator's.
    """
    start = window_starts(simulator, own, pairs, windows, prefix_steps, prefix_noise, seed)
    return _roll_out(simulator, start, own.shape[1], pairs, windows, kinematics)


class Start(NamedTuple):
    """What the drives of windows begin with: of the follower, nothing after the start."""

    theta: Tensor  # (window * draw, dim)
    gap: Tensor  # (window * draw,)
    speed: Tensor  # (window * draw,)
    rng: RowStreams
    prefix: Prefix | None


def window_starts(
    simulator: Simulator,
    own: Tensor,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int,
    prefix_noise: float,
    seed: int,
) -> Start:
    """How each window begins with its own parameter draws (window, draw, dim).

    The other arguments are those of `predict_windows`; of the pairs, samples up to the windows'
    starts are enough.
    """
    rows = pairs.offsets[windows.pair] + windows.start
    prefix = None
    if prefix_steps and simulator.residual.parameters:  # without a residual nothing goes on
        steps = simulator.reads(prefix_steps)
        prefix = _observed_prefix(simulator, own, pairs, rows, windows.start, steps, prefix_noise)
    return Start(
        own.flatten(0, 1),
        pairs.gap[rows].repeat_interleave(own.shape[1]),
        pairs.speed[rows].repeat_interleave(own.shape[1]),
        window_streams(pairs, windows, seed),
        prefix,
    )


def _roll_out(
    simulator: Simulator,
    begin: Start,
    draws: int,
    pairs: Pairs,
    windows: EvaluationWindows,
    kinematics: LaggedKinematics | None,
) -> Rollout:
    """The simulator's drives (window, draw, step) behind the recorded leaders."""
    pair, start, horizon = windows
    theta, gap, speed, rng, prefix = begin
    leader = gather(pairs.leader_speed, pairs.offsets, pair, start, horizon + 1)
    leader = leader.repeat_interleave(draws, dim=0)
    if kinematics is not None:
        kinematics = kinematics.of(torch.arange(len(pair)).repeat_interleave(draws))
    rollout = simulator.rollout(
        theta, leader, gap, speed, rng, prefix, check=False, kinematics=kinematics
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
    prefix = Prefix(residuals.flatten(0, 1), mask.flatten(0, 1), noise)
    if simulator.learned is None:
        return prefix
    return prefix._replace(states=states.repeat_interleave(theta.shape[1], dim=0))


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
