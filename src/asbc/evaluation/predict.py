"""Posterior draws of observed and simulated drivers, and their predictive rollouts.

A window starts at sample t0 of its pair: the simulator is reset to the gap and speed observed
there and follows the recorded leader. Of the follower it sees samples up to t0 only.
"""

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, gather
from asbc.errors import InputError
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
    posterior: Density, states: Tensor, names: list[str], n: int, seed: int
) -> PosteriorSamples:
    """n draws for each trajectory (B, T, 3), keyed by its name."""
    parts = []
    places = torch.arange(len(names)).split(CHUNK)
    for place in progress(places, "posterior", total=len(places)):
        rng = RowStreams([stream(seed, "posterior", names[i]) for i in place.tolist()])
        parts.append(posterior.sample(states[place], n, rng))
    return PosteriorSamples(*(torch.cat(field) for field in zip(*parts, strict=True)))


def predict_windows(
    simulator: Simulator,
    theta: Tensor,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int,
    prefix_noise: float,
    seed: int,
) -> Rollout:
    """One rollout per window and parameter draw, each series (window, draw, horizon + 1).

    Args:
        simulator: law, residual process and kinematics.
        theta: (pair, draw, dim) parameter draws of every pair in `pairs`.
        pairs: observed pairs.
        windows: which pair and start each window has.
        prefix_steps: residuals before the start that the residual process is conditioned on.
        prefix_noise: their observation noise relative to sigma^2.
        seed: the noise is a function of it and of each window's pair and start.
    """
    pair, start, horizon = windows
    draws = theta.shape[1]
    rows = pairs.offsets[pair] + start
    each = theta[pair].flatten(0, 1)  # (window * draw, dim)

    def repeat(value: Tensor) -> Tensor:
        return value.repeat_interleave(draws, dim=0)

    prefix = None
    if prefix_steps and simulator.residual.parameters:  # without a residual nothing goes on
        prefix = _observed_prefix(
            simulator, theta[pair], pairs, rows, start, prefix_steps, prefix_noise
        )
    leader = gather(pairs.leader_speed, pairs.offsets, pair, start, horizon + 1)
    places = zip(pair.tolist(), start.tolist(), strict=True)
    streams = [stream(seed, "rollout", pairs.pair_id[p], t) for p, t in places]
    rollout = simulator.rollout(
        each,
        repeat(leader),
        repeat(pairs.gap[rows]),
        repeat(pairs.speed[rows]),
        RowStreams(streams),
        prefix,
        check=False,
    )
    return Rollout(*(series.unflatten(0, (len(pair), draws)) for series in rollout))


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


def check_prediction_input(simulator: Simulator, theta: Tensor, pairs: Pairs) -> None:
    """Raise unless theta holds finite draws for every pair, at the simulator's time step."""
    require_shape("theta", theta, (len(pairs), None, simulator.dim))
    require_finite("theta", theta)
    if abs(pairs.dt - simulator.dt) > 1e-9:
        raise InputError(
            f"the data have a time step of {pairs.dt:g} s but the simulator one of "
            f"{simulator.dt:g} s; set data.dt={simulator.dt:g}"
        )
