"""New drivers behind a recorded leader: what the population as a whole would have done there."""

import numpy as np
from torch import Tensor

from asbc.population.population import Population
from asbc.simulator import Rollout, Simulator


def simulate(
    simulator: Simulator,
    population: Population,
    drivers: int,
    leader_speed: Tensor,
    gap: Tensor | float,
    speed: Tensor | float,
    rng: np.random.Generator,
) -> tuple[Tensor, Rollout]:
    """Draw new drivers from the population and let each follow the same leader.

    Args:
        simulator: law, residual process and kinematics.
        population: where drivers come from; correlations between parameters are kept.
        drivers: how many to draw.
        leader_speed: (step,) m/s.
        gap, speed: the state in which every driver starts (m, m/s).
        rng: source of drivers and of their residuals.

    Returns:
        The drivers (drivers, dim) and their drives, each series (drivers, step).
    """
    theta = population.sample(drivers, rng)
    leader = leader_speed.expand(drivers, -1)
    start = theta.new_ones(drivers)
    return theta, simulator.rollout(theta, leader, start * gap, start * speed, rng)
