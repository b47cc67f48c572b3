"""Reasons to be careful with a driver's posterior, as columns of the table of drivers."""

import numpy as np
import torch
from torch import Tensor

from asbc.posterior.novelty import Novelty
from asbc.simulator import Prior
from asbc.simulator.weighted_draws import RELIABLE_K_HAT

# A draw this close to a bound counts as being at it: a share of the range of its logarithm, which
# is what priors are made for. Of 0.04 to 2.2, 1% of the range itself would be half of 0.04.
BOUND_MARGIN = 0.01
# A flat posterior has 1% of its draws at each bound; from here on it leans against it.
BOUND_SHARE = 0.10
# Share of draws outside the prior's range from which on q is called leaky.
LEAKY = 0.05


def flag_columns(
    theta: Tensor, leak_rate: Tensor, prior: Prior, novelty: Novelty | None, embedding: Tensor
) -> dict[str, np.ndarray]:
    """Flags of each driver.

    Args:
        theta: draws (driver, draw, dim).
        leak_rate: (driver,).
        prior: bounds of the parameters.
        novelty: yardstick of the training simulations; None leaves its columns out.
        embedding: contexts as the network sees them, (driver, d).
    """
    columns: dict[str, np.ndarray] = {}
    if novelty is not None:
        distance = novelty.distance(embedding)
        columns["novelty"] = distance.numpy()
        columns["unlike_training"] = (distance > novelty.threshold).numpy()
    columns["leak_rate"] = leak_rate.numpy()
    columns["at_bound"] = at_bound(theta, prior)
    return columns


def at_bound(theta: Tensor, prior: Prior) -> np.ndarray:
    """Which bounds each posterior leans against, e.g. "v0:low b:high"; "" for none.

    Args:
        theta: draws (driver, draw, dim).
        prior: the bounds.
    """
    margin = (prior.high / prior.low) ** BOUND_MARGIN
    sides = {
        "low": (theta <= prior.low * margin).float().mean(1) > BOUND_SHARE,
        "high": (theta >= prior.high / margin).float().mean(1) > BOUND_SHARE,
    }
    found = [
        " ".join(
            f"{name}:{side}"
            for i, name in enumerate(prior.names)
            for side, hit in sides.items()
            if hit[driver, i]
        )
        for driver in range(len(theta))
    ]
    return np.array(found, dtype=object)


def any_flag(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Whether anything about a driver asks for care."""
    flagged = (columns["leak_rate"] > LEAKY) | (columns["at_bound"] != "")
    if "unlike_training" in columns:
        flagged |= columns["unlike_training"]
    if "k_hat" in columns:
        # NUTS does not depend on how good the network's draws were.
        flagged |= ~(columns["k_hat"] <= RELIABLE_K_HAT) & (columns["route"] != "nuts")
    if "nuts_converged" in columns:
        flagged |= columns["nuts_converged"] == False  # noqa: E712  (None: not sampled)
    return flagged


def readable(embedding: Tensor) -> Tensor:
    """Whether the network could make anything of a context, (driver,)."""
    return torch.isfinite(embedding).all(1)
