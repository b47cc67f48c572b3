"""A JAX function of many drivers, some of them at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from asbc.utils.progress import progress


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
