"""Is a posterior right? Checks on simulated drivers, whose parameters are known.

First the checks one by one: ranks, credible regions, contraction, recovery. Their shapes are
`truth` (driver, parameter) and `draws` (driver, draw, parameter), and they do not know how the
draws were made, so that they serve networks, MCMC and exact posteriors. Then the test whether
ranks are uniform: rank ECDFs with simultaneous bands (Sailynoja, Buerkner, Vehtari 2022). Last
`check_posterior`, which runs them all for an amortized posterior.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from asbc.data.segments import Segments
from asbc.evaluation.window_draws import sample_contexts
from asbc.simulator import Prior
from asbc.simulator.robust import SimulatedDrivers, SimulatedHistories
from asbc.types import Density
from asbc.utils.random import stream, uniform

LEVELS = np.linspace(0, 1, 21)  # of credible regions
# One posterior that is right in all parameters passes all rank tests with this probability.
LEVEL = 0.95
EVALUATION_POINTS = 50  # of a rank ECDF
PRIOR_DRAWS = 20_000


def rank_statistics(truth: Tensor, draws: Tensor) -> Tensor:
    """Rank of each true parameter among its draws (Talts et al. 2018), (driver, parameter).

    Uniform on 0..number of draws when the posterior is right.
    """
    return (draws < truth.unsqueeze(1)).sum(dim=1)


def density_credibility(log_prob_truth: Tensor, log_prob_draws: Tensor) -> NDArray[np.float64]:
    """Mass of the smallest highest-density region that holds the truth, (driver,).

    Args:
        log_prob_truth: log q(truth | x), (driver,).
        log_prob_draws: log q(draw | x), (driver, draw).
    """
    return (log_prob_draws > log_prob_truth.unsqueeze(1)).double().mean(dim=1).numpy()


def tarp_credibility(
    truth: Tensor, draws: Tensor, low: Tensor, high: Tensor, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Share of draws nearer to a random point than the truth (TARP, Lemos et al. 2023), (driver,).

    Unlike density regions it can detect a posterior that is wrong in any direction, and it needs
    draws only. Points are uniform in the box [low, high], which also scales the distance.
    """
    width = high - low
    point = uniform(rng, len(truth), truth.shape[-1], dtype=truth.dtype)
    distance_truth = ((truth - low) / width - point).norm(dim=-1)
    distance_draws = ((draws - low) / width - point.unsqueeze(1)).norm(dim=-1)
    return (distance_draws < distance_truth.unsqueeze(1)).double().mean(dim=1).numpy()


def coverage_curve(
    credibility: NDArray[np.float64], levels: NDArray[np.float64] = LEVELS
) -> NDArray[np.float64]:
    """Share of drivers whose truth lies in the region of each level; the diagonal when right."""
    return (credibility[:, None] <= levels).mean(axis=0)


def contraction(draws: Tensor, prior_variance: Tensor) -> Tensor:
    """1 - posterior / prior variance, (driver, parameter): 0 nothing learned, 1 certain."""
    return 1 - draws.var(dim=1) / prior_variance


def recovery(truth: Tensor, draws: Tensor) -> dict[str, NDArray[np.float64]]:
    """How well the true parameters are found, each entry (parameter,).

    `correlation` and `rmse` of the posterior mean with the truth, `bias` (mean error), and the
    share of central 50%, 80% and 95% intervals that hold the truth. A method that gives every
    driver the same answer has no correlation: NaN.
    """
    mean = draws.mean(dim=1)
    result = {
        "correlation": _correlation(mean.double(), truth.double()),
        "rmse": (mean - truth).square().mean(dim=0).sqrt().double().numpy(),
        "bias": (mean - truth).mean(dim=0).double().numpy(),
    }
    for level in (0.5, 0.8, 0.95):
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
        low, high = torch.quantile(draws, ends, dim=1)
        inside = ((truth >= low) & (truth <= high)).double().mean(dim=0)
        result[f"coverage{round(100 * level)}"] = inside.numpy()
    return result


def _correlation(first: Tensor, second: Tensor) -> NDArray[np.float64]:
    first, second = first - first.mean(dim=0), second - second.mean(dim=0)
    return ((first * second).sum(dim=0) / (first.norm(dim=0) * second.norm(dim=0))).numpy()


@dataclass(frozen=True)
class RankTest:
    """One parameter's rank ECDF, its simultaneous band, and the test's p-value.

    The band holds the whole ECDF of uniform ranks with the given probability, so a single point
    outside is evidence against the posterior, at the chosen level.
    """

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


@dataclass(frozen=True)
class PosteriorChecks:
    """What simulated drivers say about a posterior.

    Attributes:
        names: parameters, in the order of all columns below.
        ranks: rank test of each parameter; together they hold at `LEVEL`.
        coverage: share of truths inside highest-density regions of `LEVELS`.
        tarp: the same for TARP regions.
        contraction: (driver, parameter).
        recovery: posterior mean against truth, each (parameter,).
        truth, mean: (driver, parameter).
        leak_rate: share of draws that fell outside the prior's support, (driver,).
    """

    names: tuple[str, ...]
    ranks: tuple[RankTest, ...]
    coverage: np.ndarray
    tarp: np.ndarray
    contraction: np.ndarray
    recovery: dict[str, np.ndarray]
    truth: np.ndarray
    mean: np.ndarray
    leak_rate: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """The numbers of `metrics.json`."""
        return {
            "n_drivers": len(self.truth),
            "leak_rate": float(self.leak_rate.mean()),
            "coverage_error": _largest_error(self.coverage),
            "tarp_error": _largest_error(self.tarp),
            "sbc_level": LEVEL,
            "parameters": {
                name: {
                    "sbc_p_value": self.ranks[i].p_value,
                    "sbc_inside_band": self.ranks[i].inside,
                    "contraction": float(np.median(self.contraction[:, i])),
                    **{key: float(value[i]) for key, value in self.recovery.items()},
                }
                for i, name in enumerate(self.names)
            },
        }


def check_posterior(
    posterior: Density,
    prior: Prior,
    drivers: SimulatedDrivers | SimulatedHistories,
    draws: int,
    seed: int,
    variance: Tensor | None = None,
) -> PosteriorChecks:
    """Run every check on simulated drivers with `draws` posterior draws each.

    Args:
        posterior: to check.
        prior: of theta.
        drivers: with known theta.
        draws: of each driver's posterior.
        seed: of draws and tests.
        variance: (dim,) of theta before anything is seen; None: the prior's.
    """
    truth, states = drivers
    names = [f"simulated {i}" for i in range(len(truth))]
    theta, leak_rate = sample_contexts(posterior, states, names, draws, seed)
    ranks = rank_statistics(truth, theta).numpy()
    rng = stream(seed, "posterior checks")
    level = LEVEL ** (1 / len(prior.names))
    credibility = density_credibility(*_log_probs(posterior, truth, theta, states))
    tarp = tarp_credibility(truth, theta, prior.low, prior.high, rng)
    return PosteriorChecks(
        names=prior.names,
        ranks=tuple(rank_test(column, draws, rng, level) for column in ranks.T),
        coverage=coverage_curve(credibility),
        tarp=coverage_curve(tarp),
        contraction=contraction(
            theta, prior_variance(prior) if variance is None else variance
        ).numpy(),
        recovery=recovery(truth, theta),
        truth=truth.numpy(),
        mean=theta.mean(dim=1).numpy(),
        leak_rate=leak_rate.numpy(),
    )


def prior_variance(prior: Prior) -> Tensor:
    """Variance of each parameter under the prior, (dim,), from a fixed set of draws."""
    return prior.sample(PRIOR_DRAWS, stream(0, "prior variance")).var(dim=0)


def _log_probs(
    posterior: Density, truth: Tensor, theta: Tensor, states: Tensor | Segments
) -> tuple[Tensor, Tensor]:
    """log q of each truth (driver,) and of its draws (driver, draw)."""
    together = torch.cat([truth.unsqueeze(1), theta], dim=1)
    parts = zip(together.split(64), states.split(64), strict=True)
    log_prob = torch.cat([posterior.log_prob(some, x) for some, x in parts])
    return log_prob[:, 0], log_prob[:, 1:]


def _largest_error(curve: np.ndarray) -> float:
    return float(np.abs(curve - LEVELS).max())
