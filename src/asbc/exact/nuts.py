"""NumPyro's NUTS: one model, or the same model for many drivers side by side.

Drivers are sampled in batches, and batches are the pieces of work of an engine. A worker compiles
once, so a batch should hold enough drivers to be worth it. Which drivers are in a batch depends on
their order and its size alone: results are the same, byte for byte, for any engine and number of
workers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.infer import MCMC, NUTS, init_to_uniform

from asbc.engine import Engine, LocalEngine, Pool
from asbc.exact.diagnostics import Chains, NutsSettings

# Sums of squares over long trajectories and near-singular kernels need double precision.
numpyro.enable_x64()
# The first steps, far from the posterior and without a mass matrix, would take the deepest trees.
WARMUP_TREE_DEPTH = 8
# A compiled function of keys (driver, 2), a tree of the drivers' data, and what they share.
Batch = Callable[..., Any]


def random_key(key: int) -> jax.Array:
    """JAX's key for one of ours."""
    return jax.random.PRNGKey(key % 2**32)


def driver_pool(
    engine: Engine | None, build: Callable[[], Batch], drivers: int, at_once: int
) -> Pool:
    """Workers for `map_drivers`, no more than there are batches.

    Args:
        engine: where; None: this process.
        build: makes a worker's batch function, which is compiled when it is first called.
        drivers: how many there are.
        at_once: drivers in one batch.
    """
    return (engine or LocalEngine(workers=1)).pool(build, most=-(-drivers // at_once))


def map_drivers(
    pool: Pool,
    keys: Sequence[int],
    data: Any,
    at_once: int,
    description: str = "drivers",
    shared: tuple[Any, ...] = (),
) -> Any:
    """The pool's batch function over all drivers: a tree of NumPy arrays, drivers first.

    Args:
        pool: of `driver_pool`.
        keys: one per driver.
        data: a tree of arrays whose first axis is the driver.
        at_once: drivers in one batch; changes the speed and no result beyond rounding.
        description: of the progress bar.
        shared: further arguments of every batch.
    """
    data, shared = jax.tree.map(np.asarray, (data, shared))
    pieces = []
    for start in range(0, len(keys), at_once):
        wanted = min(at_once, len(keys) - start)
        # The last batch is filled up with other drivers, so that nothing is compiled twice.
        place = np.arange(start, start + at_once) % len(keys)
        own = jax.tree.map(lambda x, p=place: x[p], data)
        value = ([keys[i] for i in place.tolist()], own, shared, wanted)
        pieces.append((f"{description} {start + 1} to {start + wanted}", value))
    batches = pool.gather(_run, pieces, description)
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def _run(batch: Batch, piece: tuple[list[int], Any, tuple[Any, ...], int]) -> Any:
    """One batch in a worker."""
    keys, own, shared, wanted = piece
    found = batch(jax.numpy.stack([random_key(key) for key in keys]), own, *shared)
    return jax.tree.map(lambda x: np.asarray(x[:wanted]), found)


def sample(
    model: Callable[..., None],
    settings: NutsSettings,
    key: int,
    data: Any,
    thinning: int = 1,
) -> Chains:
    """Draws of `model(data)`, of which every `thinning`-th is kept."""
    run = jax.jit(_runner(model, settings, thinning))
    return jax.tree.map(np.asarray, run(random_key(key), data))


def driver_batch(model: Callable[..., None], settings: NutsSettings) -> Batch:
    """A batch function of `map_drivers`: the chains of `model(data of driver i)`.

    Args:
        model: one driver's model.
        settings: as for one model; every driver adapts its own step size and mass matrix.
    """
    return jax.jit(jax.vmap(_runner(model, settings)))


def _runner(
    model: Callable[..., None], settings: NutsSettings, thinning: int = 1
) -> Callable[..., Chains]:
    def run(random: jax.Array, data: Any) -> Chains:
        kernel = NUTS(
            model,
            dense_mass=True,  # suits few, strongly dependent parameters
            init_strategy=init_to_uniform(radius=1.0),
            target_accept_prob=settings.target_accept,
            max_tree_depth=(
                min(WARMUP_TREE_DEPTH, settings.max_tree_depth),
                settings.max_tree_depth,
            ),
        )
        mcmc = MCMC(
            kernel,
            num_warmup=settings.warmup,
            num_samples=settings.draws * thinning,
            thinning=thinning,
            num_chains=settings.chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(random, data, extra_fields=("diverging", "num_steps"))
        extra = mcmc.get_extra_fields(group_by_chain=True)
        return Chains(
            mcmc.get_samples(group_by_chain=True), extra["diverging"], extra["num_steps"]
        )

    return run
