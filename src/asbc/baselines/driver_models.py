"""The posteriors of drivers one by one: NUTS, and importance sampling where it fails."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import arviz as az
import numpy as np
from numpy.typing import NDArray

from asbc.baselines import inference
from asbc.baselines.convergence import Convergence
from asbc.baselines.hierarchical_model import Population, prior_population
from asbc.baselines.likelihood import TrajectoryLikelihood
from asbc.baselines.nuts import Chains, sample_drivers
from asbc.baselines.pooled_models import theta_model
from asbc.baselines.population_sampler import sample_new_drivers
from asbc.baselines.priors import asbc_prior
from asbc.baselines.settings import NutsSettings
from asbc.baselines.statistics import statistics
from asbc.baselines.transitions import transitions
from asbc.data.pairset import PairSet
from asbc.simulator import Simulator
from asbc.utils.random import key
from asbc.utils.stopwatch import Stopwatch


class ExactDrivers(NamedTuple):
    """Draws of every driver's posterior, with the verdict on them."""

    data: az.InferenceData
    convergence: Convergence
    nuts_seconds: float  # CPU seconds of NUTS for all drivers

    @property
    def theta(self) -> NDArray[np.float64]:
        """(chain, draw, driver, dim)."""
        return self.data["posterior"]["theta"].values


def exact_drivers(
    simulator: Simulator,
    pairs: PairSet,
    context_steps: int,
    settings: NutsSettings,
    seed: int,
    at_once: int,
) -> ExactDrivers:
    """Each pair's posterior by NUTS; pairs on which it fails are sampled again by importance.

    Args:
        simulator, pairs, context_steps, settings, seed, at_once: see `driver_posteriors`.
    """
    watch = Stopwatch(time.process_time)
    with watch("nuts"):
        chains = driver_posteriors(simulator, pairs, context_steps, settings, seed, at_once)
    data = inference.driver_data(chains, simulator.parameter_names, pairs.pair_id)
    verdict = inference.check(data, settings)
    # With fewer draws than must count, no sampler keeps the bounds.
    if verdict.drivers_not_converged and settings.chains * settings.draws > settings.min_ess:
        place = [pairs.pair_id.index(name) for name in verdict.drivers_not_converged]
        failed = pairs.select(place)
        population = Population.of(simulator)
        again = sample_new_drivers(
            population,
            prior_population(population.dim),
            statistics(simulator, transitions(simulator, failed, context_steps)),
            settings,
            [key(seed, "importance", name) for name in failed.pair_id],
            min(at_once, len(failed)),
        )
        data = inference.with_repeated(data, place, again.theta, again.ess)
        verdict = inference.check(data, settings)
    return ExactDrivers(data, verdict, watch.seconds["nuts"])


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
