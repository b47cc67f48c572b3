"""Are ranks uniform? Rank ECDFs with simultaneous bands (Sailynoja, Buerkner, Vehtari 2022).

The band holds the whole ECDF of uniform ranks with the given probability, so a single point
outside is evidence against the posterior, at the chosen level.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

EVALUATION_POINTS = 50


@dataclass(frozen=True)
class RankTest:
    """One parameter's rank ECDF, its simultaneous band, and the test's p-value."""

    points: NDArray[np.float64]
    ecdf: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p_value: float

    @property
    def inside(self) -> bool:
        """Whether the ECDF stays within its band everywhere."""
        return bool(((self.ecdf >= self.low) & (self.ecdf <= self.high)).all())


def rank_test(
    ranks: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
    level: float = 0.95,
    replicates: int = 1000,
) -> RankTest:
    """Compare the ranks of one parameter with the uniform distribution on 0..draws.

    Args:
        ranks: (driver,) rank of the truth among `draws` posterior draws.
        draws: number of draws behind each rank.
        rng: source of the simulated uniform ranks that calibrate the band.
        level: probability that the band holds all of a uniform ECDF.
        replicates: simulated rank sets.
    """
    drivers, points = len(ranks), min(EVALUATION_POINTS, draws + 1)
    # Ranks r <= edge - 1 have probability edge / (draws + 1): points where both ECDFs are exact.
    edges = np.unique(np.linspace(0, draws + 1, points + 1).round().astype(int))[1:-1]
    probability = edges / (draws + 1)
    tails = _tail_table(drivers, probability)
    uniform_ranks = rng.integers(0, draws + 1, size=(replicates, drivers))
    simulated = np.array([_smallest_tail(row, edges, tails) for row in uniform_ranks])
    threshold = np.quantile(simulated, 1 - level)
    low, high = _band(drivers, probability, threshold)
    observed = _smallest_tail(ranks, edges, tails)
    return RankTest(
        points=probability,
        ecdf=_counts(ranks, edges) / drivers,
        low=low / drivers,
        high=high / drivers,
        p_value=float((1 + (simulated <= observed).sum()) / (1 + replicates)),
    )


def _counts(ranks: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(np.sort(ranks), edges, side="left")


def _tail_table(drivers: int, probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two-sided tail probability of each count at each point, (drivers + 1, point)."""
    count = np.arange(drivers + 1)[:, None]
    lower = stats.binom.cdf(count, drivers, probability)
    upper = stats.binom.sf(count - 1, drivers, probability)
    return np.minimum(1.0, 2 * np.minimum(lower, upper))


def _smallest_tail(
    ranks: NDArray[np.int64], edges: NDArray[np.int64], tails: NDArray[np.float64]
) -> float:
    return float(tails[_counts(ranks, edges), np.arange(len(edges))].min())


def _band(
    drivers: int, probability: NDArray[np.float64], threshold: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest counts whose tail probability is not below the threshold."""
    tails = _tail_table(drivers, probability)
    allowed = tails >= threshold
    low = allowed.argmax(axis=0)
    high = drivers - allowed[::-1].argmax(axis=0)
    return low.astype(np.float64), high.astype(np.float64)
