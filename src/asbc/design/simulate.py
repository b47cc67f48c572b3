"""Simulate the pairs of a plan, replacing simulations that cannot be trained on."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.design.acquisition import Pairs, Plan
from asbc.design.bank import LeaderBank
from asbc.design.buffer import Simulations, concatenate
from asbc.simulator.contexts import ContextSimulator
from asbc.utils.checks import InputError


class Harvest(NamedTuple):
    """Usable simulations, and how many others had to be thrown away to get them."""

    simulations: Simulations
    redraws: int


def simulate_plan(
    plan: Plan,
    n: int,
    round: int,
    simulator: ContextSimulator,
    bank: LeaderBank,
    rng: np.random.Generator,
    max_tries: int,
) -> Harvest:
    """n simulations of the plan's pairs without a collision or a non-finite state.

    An unusable simulation is replaced by the plan's next pair. Whether it is usable depends on its
    trajectory alone, so leaving it out does not bias p(theta | x); drawing new noise for the same
    theta would.
    """
    parts: list[Simulations] = []
    missing, redraws = n, 0
    for _ in range(max_tries):
        simulations, usable = _simulate(plan.take(missing), round, simulator, bank, rng)
        parts.append(simulations)
        redraws += missing - usable
        missing -= usable
        if missing == 0:
            return Harvest(concatenate(parts), redraws)
    raise InputError(
        f"round {round}: {missing} of {n} simulations still collide or are not finite after "
        f"{max_tries} tries; narrow the prior, check the data's gaps and speeds, or raise "
        "training.max_tries"
    )


def _simulate(
    pairs: Pairs,
    round: int,
    simulator: ContextSimulator,
    bank: LeaderBank,
    rng: np.random.Generator,
) -> tuple[Simulations, int]:
    windows = bank.windows.take(pairs.window_id)
    rollout = simulator.rollout(pairs.theta, windows.leader_speed, windows.gap, windows.speed, rng)
    states = rollout.states
    usable: Tensor = ~rollout.collided & torch.isfinite(states).all(dim=2).all(dim=1)
    kept = int(usable.sum())
    return Simulations(
        theta=simulator.later(pairs.theta, rng)[usable],
        states=states[usable],
        window_id=pairs.window_id[usable],
        round=torch.full((kept,), round),
        log_ratio=pairs.log_ratio[usable],
    ), kept
