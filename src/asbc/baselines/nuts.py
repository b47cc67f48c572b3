"""NumPyro's NUTS: one model, or the same model for many drivers side by side."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
from numpy.typing import NDArray
from numpyro.infer import MCMC, NUTS, init_to_uniform

from asbc.baselines.settings import NutsSettings
from asbc.baselines.side_by_side import map_drivers, random_key

# Sums of squares over long trajectories and near-singular kernels need double precision.
numpyro.enable_x64()

# The first steps, far from the posterior and without a mass matrix, would take the deepest trees.
WARMUP_TREE_DEPTH = 8


class Chains(NamedTuple):
    """Draws of one posterior."""

    sites: dict[str, NDArray[np.float64]]  # each (chain, draw, ...)
    diverging: NDArray[np.bool_]  # (chain, draw)
    leapfrogs: NDArray[np.int64]  # (chain, draw)


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
