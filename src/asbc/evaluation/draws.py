"""Posterior draws for observed pairs and for simulated drivers whose parameters are known."""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.data.pairset import PairSet
from asbc.data.windows import LeaderWindows
from asbc.evaluation.streams import RowStreams
from asbc.posterior.posterior import PosteriorSamples
from asbc.simulator import Simulator
from asbc.simulator.contexts import ContextSimulator
from asbc.utils.checks import InputError
from asbc.utils.progress import progress
from asbc.utils.random import stream

# Trajectories sampled at once: bounds the memory, changes no draw.
CHUNK = 32
# Batches of simulated drivers tried before giving up on drivers without a collision.
MAX_BATCHES = 20


class AmortizedPosterior(Protocol):
    """What the evaluation needs of a posterior; `PosteriorEstimator` provides it."""

    def encode(self, states: Tensor) -> Tensor: ...

    def log_prob(self, theta: Tensor, states: Tensor) -> Tensor: ...

    def sample(self, states: Tensor, n: int, rng: np.random.Generator) -> PosteriorSamples: ...


class SimulatedDrivers(NamedTuple):
    """Drivers from the prior, with the trajectory each produced."""

    theta: Tensor  # (driver, dim)
    states: Tensor  # (driver, steps, 3)


def sample_pairs(
    posterior: AmortizedPosterior, pairs: PairSet, context_steps: int, n: int, seed: int
) -> PosteriorSamples:
    """n draws for each pair from its first `context_steps` samples.

    A pair's draws depend on the seed, its id and its context only.
    """
    names = [f"pair {name}" for name in pairs.pair_id]
    return sample_contexts(posterior, pairs.contexts(context_steps), names, n, seed)


def sample_contexts(
    posterior: AmortizedPosterior, states: Tensor, names: list[str], n: int, seed: int
) -> PosteriorSamples:
    """n draws for each trajectory (B, T, 3), keyed by its name."""
    parts = []
    places = torch.arange(len(names)).split(CHUNK)
    for place in progress(places, "posterior", total=len(places)):
        rng = RowStreams([stream(seed, "posterior", names[i]) for i in place.tolist()])
        parts.append(posterior.sample(states[place], n, rng))
    return PosteriorSamples(*(torch.cat(field) for field in zip(*parts, strict=True)))


def simulate_drivers(
    simulator: Simulator | ContextSimulator, windows: LeaderWindows, count: int, seed: int
) -> SimulatedDrivers:
    """`count` drivers from the prior behind random leader windows, none of which collided.

    As in training, a collision replaces driver and window together: whether a trajectory collides
    is a function of the trajectory, so p(theta | x) stays what it was.
    """
    theta, states, found = [], [], 0
    for batch in range(MAX_BATCHES):
        rng = stream(seed, "simulated drivers", batch)
        candidate = simulator.prior.sample(count, rng)
        window = windows.take(torch.from_numpy(rng.integers(len(windows.gap), size=count)))
        rollout = simulator.rollout(
            candidate, window.leader_speed, window.gap, window.speed, rng, check=False
        )
        if isinstance(simulator, ContextSimulator):
            candidate = simulator.later(candidate, rng)
        theta.append(candidate[~rollout.collided])
        states.append(rollout.states[~rollout.collided])
        found += len(theta[-1])
        if found >= count:
            return SimulatedDrivers(torch.cat(theta)[:count], torch.cat(states)[:count])
    raise InputError(
        f"only {found} of {count * MAX_BATCHES} simulated drivers did not collide; "
        "check the data's gaps and speeds, or set evaluation.simulated_drivers=0"
    )
