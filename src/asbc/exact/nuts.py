"""NumPyro's NUTS: one model, or the same model for many drivers side by side."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.infer import MCMC, NUTS, init_to_uniform

from asbc.exact.diagnostics import Chains, NutsSettings
from asbc.utils.progress import progress

# Sums of squares over long trajectories and near-singular kernels need double precision.
numpyro.enable_x64()
# The first steps, far from the posterior and without a mass matrix, would take the deepest trees.
WARMUP_TREE_DEPTH = 8


def random_key(key: int) -> jax.Array:
    """JAX's key for one of ours."""
    return jax.random.PRNGKey(key % 2**32)


def map_drivers(
    batch: Callable[[jax.Array, Any], Any],
    keys: Sequence[int],
    data: Any,
    at_once: int,
    description: str = "drivers",
) -> Any:
    """`batch(keys, data)` over all drivers: a tree of arrays in host memory, drivers first.

    Args:
        batch: of `at_once` drivers.
        keys: one per driver.
        data: a tree of arrays whose first axis is the driver.
        at_once: drivers in one batch; changes the speed and no result beyond rounding.
        description: of the progress bar.
    """
    random = jax.numpy.stack([random_key(key) for key in keys])
    starts = range(0, len(keys), at_once)
    batches = []
    for start in progress(starts, description, total=len(starts)):
        # The last batch is filled up with other drivers, so that nothing is compiled twice.
        place = np.arange(start, start + at_once) % len(keys)
        found = batch(random[place], jax.tree.map(lambda x, p=place: x[p], data))
        wanted = min(at_once, len(keys) - start)
        batches.append(jax.tree.map(lambda x, n=wanted: np.asarray(x[:n]), found))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


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


def sample_drivers(
    model: Callable[..., None],
    settings: NutsSettings,
    keys: Sequence[int],
    data: Any,
    at_once: int,
) -> list[Chains]:
    """Draws of `model(data of driver i)` for every driver.

    Args:
        model: one driver's model.
        settings: as for one model; every driver adapts its own step size and mass matrix.
        keys: one per driver.
        data: a tree of arrays whose first axis is the driver.
        at_once: drivers in one batch; changes the speed and no result beyond rounding.
    """
    every = map_drivers(jax.jit(jax.vmap(_runner(model, settings))), keys, data, at_once)
    return [jax.tree.map(lambda x, i=i: x[i], every) for i in range(len(keys))]


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
