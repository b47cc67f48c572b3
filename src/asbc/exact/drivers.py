"""The posteriors of drivers one by one: NUTS, and importance sampling where it fails."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from numpy.typing import NDArray

from asbc.engine import Engine
from asbc.exact import diagnostics
from asbc.exact.diagnostics import Convergence, NutsSettings
from asbc.exact.importance import Normal, importance_draws, small_cholesky
from asbc.exact.likelihood import TrajectoryLikelihood, asbc_prior, theta_model, theta_of_normal
from asbc.exact.nuts import Batch, driver_batch, driver_pool, map_drivers
from asbc.exact.statistics import Transitions, statistics
from asbc.simulator import Simulator
from asbc.utils.progress import Stopwatch
from asbc.utils.random import key

# A driver whose proposals count for less than this share of its draws is sampled again.
WEAK, RETRIES = 0.5, 3


class DriverPosteriors(NamedTuple):
    """Draws of every driver's posterior, with the verdict on them."""

    data: az.InferenceData
    convergence: Convergence
    nuts_seconds: float  # CPU seconds of NUTS for all drivers, in all processes
    worker_seconds: float  # CPU seconds that other processes than this took for anything

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
    seen: Sequence[Transitions],
    names: Sequence[str],
    settings: NutsSettings,
    seed: int,
    at_once: int,
    engine: Engine | None = None,
) -> DriverPosteriors:
    """Each driver's own posterior given what was seen of it, by NUTS.

    Args:
        simulator: its residual process and prior define the posterior.
        seen: of each driver, from `asbc.exact.statistics`: one trajectory, or several segments.
        names: of the drivers.
        settings: sampler settings.
        seed: a driver's draws depend on it, on the name and on what was seen only.
        at_once: drivers sampled side by side.
        engine: where batches of so many drivers are sampled; None: one by one in this process.
    """
    keys = [key(seed, "nuts", name) for name in names]
    build = partial(_nuts_batch, simulator, settings)
    watch = Stopwatch(time.process_time)
    with watch("nuts"), driver_pool(engine, build, len(names), at_once) as pool:
        every = map_drivers(pool, keys, statistics(simulator, seen), at_once)
    chains = [jax.tree.map(lambda x, i=i: x[i], every) for i in range(len(names))]
    data = diagnostics.driver_data(chains, simulator.parameter_names, names)
    elsewhere = pool.worker_seconds
    return DriverPosteriors(
        data, diagnostics.check(data, settings), watch.seconds["nuts"] + elsewhere, elsewhere
    )


def _nuts_batch(simulator: Simulator, settings: NutsSettings) -> Batch:
    """What a worker samples with."""
    prior, likelihood = asbc_prior(simulator.prior.marginals), TrajectoryLikelihood.of(simulator)
    return driver_batch(theta_model(prior, likelihood), settings)


def exact_drivers(
    simulator: Simulator,
    seen: Sequence[Transitions],
    names: Sequence[str],
    settings: NutsSettings,
    seed: int,
    at_once: int,
    engine: Engine | None = None,
) -> DriverPosteriors:
    """As `nuts_drivers`, but drivers on which NUTS fails are sampled again by importance."""
    found = nuts_drivers(simulator, seen, names, settings, seed, at_once, engine)
    place = np.flatnonzero(~found.converged)
    # With fewer draws than must count, no sampler keeps the bounds.
    if not len(place) or settings.chains * settings.draws <= settings.min_ess:
        return found
    model = DriverModel.of(simulator)
    again = sample_by_importance(
        model,
        model.prior(),
        statistics(simulator, [seen[i] for i in place.tolist()]),
        settings,
        [key(seed, "importance", names[i]) for i in place.tolist()],
        min(at_once, len(place)),
        engine,
    )
    data = diagnostics.with_repeated(found.data, place, again.theta, again.ess)
    return found._replace(
        data=data,
        convergence=diagnostics.check(data, settings),
        worker_seconds=found.worker_seconds + again.worker_seconds,
    )


@dataclass(frozen=True)
class DriverModel:
    """A driver's likelihood in coordinates z, which are standard normal under ASBC's prior.

    Attributes:
        dim: number of parameters.
        theta: (..., dim) of z (..., dim).
        log_likelihood: of one driver, from theta (dim,) and its data.
        simulator: whose they are; one without can only be used in this process.
    """

    dim: int
    theta: Callable[[Array], Array]
    log_likelihood: Callable[[Array, Any], Array]
    simulator: Simulator | None = None

    @classmethod
    def of(cls, simulator: Simulator) -> "DriverModel":
        """With ASBC's prior and likelihood."""
        prior = simulator.prior
        likelihood = TrajectoryLikelihood.of(simulator)
        return cls(prior.dim, theta_of_normal(prior.marginals), likelihood, simulator)

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions of JAX cannot be sent: a worker makes its own.
        if self.simulator is None:
            raise TypeError("a DriverModel without its simulator cannot be sent to a worker")
        return DriverModel.of, (self.simulator,)

    def prior(self) -> Normal:
        """ASBC's prior of z, with a leading axis of one."""
        return Normal(jnp.zeros((1, self.dim)), jnp.eye(self.dim)[None])


class ImportanceDraws(NamedTuple):
    """Equally weighted draws of every driver, sampled several times over."""

    theta: NDArray[np.float64]  # (repeat, draw, driver, dim)
    ess: NDArray[np.float64]  # (driver,) effective number of the proposals behind all draws
    worker_seconds: float  # CPU seconds of other processes than this


def sample_by_importance(
    model: DriverModel,
    priors: Normal,
    data: Any,
    settings: NutsSettings,
    keys: Sequence[int],
    at_once: int,
    engine: Engine | None = None,
) -> ImportanceDraws:
    """Posteriors of drivers whose prior is one of several normal laws, nobody knows which.

    Every driver is sampled `settings.chains` times over from scratch, so that r-hat shows whether
    the repeats found the same posterior. Where a proposal was not found in one of them, all are
    made again.

    Args:
        model: likelihood and coordinates.
        priors: the laws of z, equally likely, along a leading axis.
        data: a tree of arrays whose first axis is the driver.
        settings: how often, and how many draws.
        keys: one per driver.
        at_once: drivers in one batch.
        engine: where batches are sampled; None: one by one in this process.
    """
    build = partial(_importance_batch, model, priors, settings)
    with driver_pool(engine, build, len(keys), at_once) as pool:
        z, ess = map_drivers(pool, keys, data, at_once)
        for attempt in range(RETRIES):
            weak = np.flatnonzero(ess.min(axis=1) < WEAK * settings.draws)
            if not len(weak):
                break
            again = [key(keys[i], "again", attempt) for i in weak.tolist()]
            own = jax.tree.map(lambda x, weak=weak: x[weak], data)
            new_z, new_ess = map_drivers(pool, again, own, at_once, "weak drivers")
            better = new_ess.min(axis=1) > ess[weak].min(axis=1)
            z[weak[better]], ess[weak[better]] = new_z[better], new_ess[better]
    theta = np.asarray(model.theta(jnp.asarray(z)))
    return ImportanceDraws(
        theta.transpose(1, 2, 0, 3),
        np.minimum(ess, settings.draws).sum(1),
        pool.worker_seconds,
    )


def _importance_batch(model: DriverModel, priors: Normal, settings: NutsSettings) -> Batch:
    """What a worker samples with."""
    mean, factor = priors
    away = mean - mean.mean(0)
    covariance = (factor @ factor.transpose(0, 2, 1)).mean(0) + away.T @ away / len(mean)
    overall = Normal(mean.mean(0), small_cholesky(covariance))

    @jax.vmap
    def one(random: Array, own: Any) -> tuple[Array, Array]:
        def log_density(z: Array) -> Array:
            members = jax.vmap(lambda *law: Normal(*law).log_prob(z))(mean, factor)
            return model.log_likelihood(model.theta(z), own) + logsumexp(members)

        return jax.lax.map(
            lambda random: importance_draws(log_density, overall, settings.draws, random),
            jax.random.split(random, settings.chains),
        )

    return jax.jit(one)
