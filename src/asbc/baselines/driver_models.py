"""NUTS for drivers one by one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asbc.baselines.likelihood import TrajectoryLikelihood
from asbc.baselines.nuts import Chains, sample_drivers
from asbc.baselines.pooled_models import theta_model
from asbc.baselines.priors import asbc_prior
from asbc.baselines.settings import NutsSettings
from asbc.baselines.statistics import statistics
from asbc.baselines.transitions import transitions
from asbc.data.pairset import PairSet
from asbc.simulator import Simulator
from asbc.utils.random import key


def driver_posteriors(
    simulator: Simulator,
    pairs: PairSet,
    context_steps: int,
    settings: NutsSettings,
    seed: int,
    at_once: int,
) -> list[Chains]:
    """Draws of each pair's own posterior given its first `context_steps` samples.

    Args:
        simulator: its residual process and prior define the posterior.
        pairs: one posterior each.
        context_steps: samples of context.
        settings: sampler settings.
        seed: a pair's draws depend on it and on the pair only.
        at_once: pairs sampled side by side.
    """
    model = theta_model(asbc_prior(simulator.prior.marginals), TrajectoryLikelihood.of(simulator))
    data = statistics(simulator, transitions(simulator, pairs, context_steps))
    keys = [key(seed, "nuts", name) for name in pairs.pair_id]
    return sample_drivers(model, settings, keys, data, at_once)


def draws_of(chains: Sequence[Chains]) -> NDArray[np.float64]:
    """theta of all drivers, (chain, draw, driver, dim)."""
    return np.stack([chain.sites["theta"] for chain in chains], axis=2)
