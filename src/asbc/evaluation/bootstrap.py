"""Bootstrap intervals of window means, resampling pairs.

Windows of one pair share a driver and a posterior, so resampling windows would give intervals that
are too narrow: whole pairs are drawn with replacement.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pair_weights(pairs: int, replicates: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How often each pair appears in each bootstrap data set, (replicate, pair)."""
    return rng.multinomial(pairs, np.full(pairs, 1 / pairs), size=replicates).astype(np.float64)


def bootstrap_interval(
    values: ArrayLike,
    pair: ArrayLike,
    replicates: int,
    rng: np.random.Generator,
    level: float = 0.95,
) -> NDArray[np.float64]:
    """Percentile interval of the mean over windows when pairs are resampled.

    Args:
        values: (window,) or (window, column).
        pair: the pair each window belongs to, any labels.
        replicates: number of bootstrap data sets.
        rng: source of the resampling.
        level: coverage of the interval.

    Returns:
        (2,) or (2, column): lower and upper ends.
    """
    table = np.asarray(values, dtype=np.float64)
    columns = table.reshape(len(table), -1)
    labels, index = np.unique(np.asarray(pair), return_inverse=True)
    count = np.bincount(index, minlength=len(labels)).astype(np.float64)
    total = np.zeros((len(labels), columns.shape[1]))
    np.add.at(total, index, columns)
    weight = pair_weights(len(labels), replicates, rng)
    means = (weight @ total) / (weight @ count)[:, None]
    ends = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ends.reshape(2, *table.shape[1:])
