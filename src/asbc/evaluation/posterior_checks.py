"""Checks of an amortized posterior on simulated drivers, whose parameters are known."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asbc.evaluation import calibration
from asbc.evaluation.draws import AmortizedPosterior, SimulatedDrivers, sample_contexts
from asbc.evaluation.uniformity import RankTest, rank_test
from asbc.simulator import Prior
from asbc.utils.random import stream

# One posterior that is right in all parameters passes all rank tests with this probability.
LEVEL = 0.95
PRIOR_DRAWS = 20_000


@dataclass(frozen=True)
class PosteriorChecks:
    """What simulated drivers say about a posterior.

    Attributes:
        names: parameters, in the order of all columns below.
        ranks: rank test of each parameter; together they hold at `LEVEL`.
        coverage: share of truths inside highest-density regions of `calibration.LEVELS`.
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
    posterior: AmortizedPosterior,
    prior: Prior,
    drivers: SimulatedDrivers,
    draws: int,
    seed: int,
) -> PosteriorChecks:
    """Run every check on simulated drivers with `draws` posterior draws each."""
    truth, states = drivers
    names = [f"simulated {i}" for i in range(len(truth))]
    theta, leak_rate = sample_contexts(posterior, states, names, draws, seed)
    ranks = calibration.rank_statistics(truth, theta).numpy()
    rng = stream(seed, "posterior checks")
    level = LEVEL ** (1 / len(prior.names))
    credibility = calibration.density_credibility(*_log_probs(posterior, truth, theta, states))
    tarp = calibration.tarp_credibility(truth, theta, prior.low, prior.high, rng)
    return PosteriorChecks(
        names=prior.names,
        ranks=tuple(rank_test(column, draws, rng, level) for column in ranks.T),
        coverage=calibration.coverage_curve(credibility),
        tarp=calibration.coverage_curve(tarp),
        contraction=calibration.contraction(theta, prior_variance(prior)).numpy(),
        recovery=calibration.recovery(truth, theta),
        truth=truth.numpy(),
        mean=theta.mean(dim=1).numpy(),
        leak_rate=leak_rate.numpy(),
    )


def prior_variance(prior: Prior) -> Tensor:
    """Variance of each parameter under the prior, (dim,), from a fixed set of draws."""
    return prior.sample(PRIOR_DRAWS, stream(0, "prior variance")).var(dim=0)


def _log_probs(
    posterior: AmortizedPosterior, truth: Tensor, theta: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """log q of each truth (driver,) and of its draws (driver, draw)."""
    together = torch.cat([truth.unsqueeze(1), theta], dim=1)
    parts = zip(together.split(64), states.split(64), strict=True)
    log_prob = torch.cat([posterior.log_prob(some, x) for some, x in parts])
    return log_prob[:, 0], log_prob[:, 1:]


def _largest_error(curve: np.ndarray) -> float:
    return float(np.abs(curve - calibration.LEVELS).max())
