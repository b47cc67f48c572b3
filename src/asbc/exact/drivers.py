"""The posteriors of drivers one by one: NUTS, and importance sampling where it fails."""

import time
from typing import NamedTuple

import arviz as az
import numpy as np
from numpy.typing import NDArray

from asbc.data.pairs import Pairs
from asbc.exact import diagnostics as inference
from asbc.exact.diagnostics import Convergence, NutsSettings
from asbc.exact.hierarchy import Population, prior_population, sample_new_drivers
from asbc.exact.likelihood import TrajectoryLikelihood, asbc_prior, theta_model
from asbc.exact.nuts import sample_drivers
from asbc.exact.statistics import statistics, transitions
from asbc.simulator import Simulator
from asbc.utils.progress import Stopwatch
from asbc.utils.random import key


class DriverPosteriors(NamedTuple):
    """Draws of every driver's posterior, with the verdict on them."""

    data: az.InferenceData
    convergence: Convergence
    nuts_seconds: float  # CPU seconds of NUTS for all drivers

    @property
    def theta(self) -> NDArray[np.float64]:
        """(chain, draw, driver, dim)."""
        return self.data["posterior"]["theta"].values

    @property
    def converged(self) -> NDArray[np.bool_]:
        """(driver,) whether its draws keep the bounds."""
        drivers = self.data["posterior"].driver.values
        return ~np.isin(drivers, self.convergence.drivers_not_converged)


def nuts_drivers(
    simulator: Simulator,
    pairs: Pairs,
    context_steps: int,
    settings: NutsSettings,
    seed: int,
    at_once: int,
) -> DriverPosteriors:
    """Each pair's own posterior given its first `context_steps` samples, by NUTS.

    Args:
        simulator: its residual process and prior define the posterior.
        pairs: one posterior each.
        context_steps: samples of context.
        settings: sampler settings.
        seed: a pair's draws depend on it and on the pair only.
        at_once: pairs sampled side by side.
    """
    prior, likelihood = asbc_prior(simulator.prior.marginals), TrajectoryLikelihood.of(simulator)
    keys = [key(seed, "nuts", name) for name in pairs.pair_id]
    watch = Stopwatch(time.process_time)
    with watch("nuts"):
        seen = statistics(simulator, transitions(simulator, pairs, context_steps))
        chains = sample_drivers(theta_model(prior, likelihood), settings, keys, seen, at_once)
    data = inference.driver_data(chains, simulator.parameter_names, pairs.pair_id)
    return DriverPosteriors(data, inference.check(data, settings), watch.seconds["nuts"])


def exact_drivers(
    simulator: Simulator,
    pairs: Pairs,
    context_steps: int,
    settings: NutsSettings,
    seed: int,
    at_once: int,
) -> DriverPosteriors:
    """As `nuts_drivers`, but pairs on which NUTS fails are sampled again by importance."""
    found = nuts_drivers(simulator, pairs, context_steps, settings, seed, at_once)
    place = np.flatnonzero(~found.converged)
    # With fewer draws than must count, no sampler keeps the bounds.
    if not len(place) or settings.chains * settings.draws <= settings.min_ess:
        return found
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
    data = inference.with_repeated(found.data, place, again.theta, again.ess)
    return found._replace(data=data, convergence=inference.check(data, settings))
