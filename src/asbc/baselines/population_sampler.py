"""NUTS for a population, block by block.

One trajectory through all parameters of all drivers takes the step size of the most awkward
driver. Given the population the drivers are independent, so every one of them moves with a step
size and a mass matrix of its own.
The population moves twice, in centred and in non-centred coordinates (interweaving: Yu & Meng,
2011): the first is quick where drivers are known well, the second where they are not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.infer.hmc import hmc
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from asbc.baselines.hierarchical_model import SD_SCALE, Population
from asbc.baselines.nuts import Chains, random_key, to_numpy
from asbc.baselines.settings import NutsSettings

# Every driver waits for the one with the deepest tree.
DRIVER_TREE_DEPTH = 5
FIRST_STEP = 0.1


class Block:
    """A NUTS kernel for many problems side by side, whose density depends on other blocks.

    Args:
        potential: of one problem, from its own position and what is given of the other blocks.
        settings: of NUTS.
        depth: of the trees, at most.
    """

    def __init__(
        self, potential: Callable[..., Array], settings: NutsSettings, depth: int
    ) -> None:
        self._gradient = jax.vmap(jax.value_and_grad(potential))
        start, move = hmc(potential_fn_gen=lambda *given: lambda place: potential(place, *given))

        def begin(key: Array, place: Any, *given: Any) -> Any:
            return start(
                place,
                settings.warmup,
                step_size=FIRST_STEP,
                dense_mass=True,
                target_accept_prob=settings.target_accept,
                max_tree_depth=min(depth, settings.max_tree_depth),
                model_args=given,
                rng_key=key,
            )

        self.start = jax.vmap(begin)
        self._move = jax.vmap(lambda state, *given: move(state, model_args=given))

    def move(self, state: Any, place: Any, *given: Any) -> Any:
        """The state after one draw from `place`, the other blocks being as given."""
        value, gradient = self._gradient(place, *given)
        now = state._replace(z=place, potential_energy=value, z_grad=gradient)
        return self._move(now, *given)


class State(NamedTuple):
    """States of the kernels; those of the drivers are all chains' in one row."""

    centred: Any
    non_centred: Any
    drivers: Any


def sample_population(
    population: Population, data: Any, settings: NutsSettings, key: int
) -> Chains:
    """Draws of mean, sd, factor and correlation of the population and of each driver's theta.

    A draw counts as divergent if any of its blocks diverged.

    Args:
        population: the model.
        data: a tree of arrays whose first axis is the driver.
        settings: of NUTS.
        key: all randomness.
    """

    def run(random: Array, data: Any) -> Chains:
        sampler = _Sampler(population, data, settings)

        def draw(state: State, _: None) -> tuple[State, Chains]:
            state = sampler.step(state)
            return state, sampler.kept(state)

        # One loop, so that the step is compiled once.
        steps = settings.warmup + settings.draws
        _, every = jax.lax.scan(draw, sampler.start(random), None, steps)
        return jax.tree.map(lambda x: jnp.moveaxis(x[settings.warmup :], 0, 1), every)

    return to_numpy(jax.jit(run)(random_key(key), jax.tree.map(jnp.asarray, data)))


class _Sampler:
    def __init__(self, population: Population, data: Any, settings: NutsSettings) -> None:
        self._model, self._data, self._chains = population, data, settings.chains
        self._count, self._dim = len(jax.tree.leaves(data)[0]), len(population.centre)
        self._each = jax.tree.map(lambda x: jnp.concatenate([x] * settings.chains), data)
        self._centred = Block(
            lambda place, log_theta: potential_energy(population.centred, (log_theta,), {}, place),
            settings,
            settings.max_tree_depth,
        )
        self._non_centred = Block(
            lambda place, deviation: potential_energy(
                population.non_centred, (deviation, data), {}, place
            ),
            settings,
            settings.max_tree_depth,
        )
        self._drivers = Block(
            lambda place, *given: -population.driver(place, *given), settings, DRIVER_TREE_DEPTH
        )

    def start(self, random: Array) -> State:
        """Chains that begin apart, by up to a standard deviation of the mean's prior."""
        keys, shape = jax.random.split(random, 5), (self._chains, self._dim)
        model = self._model
        mean = model.centre + model.scale * jax.random.uniform(keys[0], shape, minval=-1.0)
        away = jax.random.uniform(keys[1], (shape[0], self._count, shape[1]), minval=-1.0)
        log_theta = mean[:, None] + SD_SCALE * away
        sd, factor = jnp.full(self._dim, SD_SCALE), jnp.eye(self._dim)
        place = jax.vmap(
            lambda m: unconstrain_fn(model.prior, (), {}, {"mean": m, "sd": sd, "factor": factor})
        )(mean)

        def split(key: Array, count: int) -> Array:
            return jax.random.split(key, count)

        return State(
            self._centred.start(split(keys[2], self._chains), place, log_theta),
            self._non_centred.start(split(keys[3], self._chains), place, away),
            self._drivers.start(
                split(keys[4], self._chains * self._count),
                log_theta.reshape(-1, self._dim),
                *self._given(place),
            ),
        )

    def step(self, state: State) -> State:
        """Every block once."""
        log_theta = self._by_chain(state.drivers.z)
        first = self._centred.move(state.centred, state.non_centred.z, log_theta)
        mean, root = self._population(first.z)
        deviation = jnp.einsum("cij,cdj->cdi", jnp.linalg.inv(root), log_theta - mean[:, None])
        second = self._non_centred.move(state.non_centred, first.z, deviation)
        mean, root = self._population(second.z)
        moved = mean[:, None] + jnp.einsum("cij,cdj->cdi", root, deviation)
        drivers = self._drivers.move(
            state.drivers, moved.reshape(-1, self._dim), *self._given(second.z)
        )
        return State(first, second, drivers)

    def kept(self, state: State) -> Chains:
        """What is recorded of a state, a row per chain."""
        sites = self._sites(state.non_centred.z)
        drivers, blocks = state.drivers, (state.centred, state.non_centred)
        found: dict[str, Any] = {
            **sites,
            "correlation": sites["factor"] @ sites["factor"].mT,
            "theta": jnp.exp(self._by_chain(drivers.z)),
        }
        diverging: Any = self._by_chain(drivers.diverging).any(axis=1)
        leapfrogs: Any = self._by_chain(drivers.num_steps).max(axis=1)
        for block in blocks:
            diverging, leapfrogs = diverging | block.diverging, leapfrogs + block.num_steps
        return Chains(found, diverging, leapfrogs)

    def _given(self, place: Any) -> tuple[Array, Array, Any]:
        """What each driver's density depends on: mean, whitening matrix and data."""
        mean, root = self._population(place)
        whitener = jnp.linalg.inv(root)
        return (
            jnp.repeat(mean, self._count, axis=0),
            jnp.repeat(whitener, self._count, axis=0),
            self._each,
        )

    def _sites(self, place: Any) -> dict[str, Array]:
        return jax.vmap(lambda one: constrain_fn(self._model.prior, (), {}, one))(place)

    def _population(self, place: Any) -> tuple[Array, Array]:
        sites = self._sites(place)
        return sites["mean"], sites["sd"][..., None] * sites["factor"]

    def _by_chain(self, value: Array) -> Array:
        return value.reshape(self._chains, self._count, *value.shape[1:])
