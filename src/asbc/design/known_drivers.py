"""Training pairs that cost no simulation: observed drivers with draws of their exact posterior.

Simulations near observed drivers have parameters like theirs, but real trajectories are not the
simulator's: at them q extrapolates, however many simulations there are. Where the likelihood is
known, the exact posterior of an observed trajectory is too. Draws of it are what q should say
there, so (draw, trajectory) is a training pair like a simulated one, of the same target: which x
are trained on does not change p(theta | x).
"""

import numpy as np
import torch
from torch import Tensor

from asbc.design.simulations import Simulations
from asbc.simulator import Simulator
from asbc.simulator.weighted_draws import improve, log_weights, resample, smooth, unreliable
from asbc.types import Density

# Draws weighted for each trajectory, how often they are drawn again if weights are poor, and the
# independent draws that they have to be worth.
PROPOSALS, ROUNDS, LEAST = 2000, 8, 200.0
# The round of a pair that no round has simulated.
NO_ROUND = -1


def known_pairs(
    posterior: Density,
    simulator: Simulator,
    contexts: Tensor,
    draws: int,
    rng: np.random.Generator,
) -> Simulations:
    """`draws` exact draws for each trajectory whose weights are reliable; the others are left out.

    Args:
        posterior: where the draws start.
        simulator: prior and likelihood.
        contexts: (trajectories, steps, 3) observed.
        draws: of each.
        rng: source of all draws.
    """
    drawn = posterior.sample(contexts, PROPOSALS, rng)
    weight = log_weights(posterior, simulator, drawn.theta, contexts)
    theta, found = improve(
        simulator,
        drawn.theta,
        weight,
        smooth(weight, drawn.leak_rate),
        contexts,
        ROUNDS,
        LEAST,
        lambda round, rows: rng,
    )
    reliable = ~unreliable(found, LEAST)
    theta = resample(theta[reliable], found.weights[reliable], draws, rng).flatten(0, 1)
    return Simulations(
        theta=theta,
        states=contexts[reliable].repeat_interleave(draws, dim=0),
        window_id=torch.full((len(theta),), -1),
        round=torch.full((len(theta),), NO_ROUND),
        log_ratio=torch.zeros(len(theta)),
    )
