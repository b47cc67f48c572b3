"""Pareto-smoothed importance weights: how far q(theta | x) is from the exact posterior.

With draws theta_i from q, the weights w_i = p(theta_i) L(x | theta_i) / q(theta_i | x) turn sums
over draws into sums over the exact posterior, and their mean is the evidence Z = p(x). If q misses
a part of the posterior, the weights have a heavy tail whose Pareto shape k-hat says so (Vehtari et
al. 2024): below 0.7 the weighted draws can be trusted, above it they cannot.
"""

import math
from typing import NamedTuple, Protocol

import arviz as az
import numpy as np
import torch
from torch import Tensor

from asbc.simulator import Simulator
from asbc.utils.random import uniform

# The largest k-hat at which weighted draws are reliable (Vehtari et al. 2024).
RELIABLE_K_HAT = 0.7
# Likelihoods evaluated at once (driver times draw): bounds the memory, changes no value.
LIKELIHOOD_ROWS = 16_384


class Density(Protocol):
    """The part of a posterior that weights need; `PosteriorEstimator` provides it."""

    def log_prob(self, theta: Tensor, states: Tensor) -> Tensor: ...


class Importance(NamedTuple):
    """Weighted draws of each driver."""

    weights: Tensor  # (driver, draw), smoothed, sum to 1
    k_hat: Tensor  # (driver,)
    effective_draws: Tensor  # (driver,) independent draws worth the same
    log_evidence: Tensor  # (driver,) log p(x)
    log_evidence_error: Tensor  # (driver,) its Monte-Carlo standard error

    def replace(self, rows: Tensor, other: "Importance") -> "Importance":
        """The same with some of the drivers' values taken from `other`, one row each."""
        pairs = zip(self, other, strict=True)
        return Importance(*(mine.index_copy(0, rows, theirs) for mine, theirs in pairs))


@torch.no_grad()
def log_joint(simulator: Simulator, theta: Tensor, states: Tensor) -> Tensor:
    """log p(theta) + log L(x | theta), (driver, draw) in float64.

    Args:
        simulator: prior and likelihood.
        theta: draws (driver, draw, dim).
        states: observed contexts (driver, step, 3).
    """
    rows = max(1, LIKELIHOOD_ROWS // theta.shape[1])
    likelihood = [
        simulator.log_likelihood(some, x.unsqueeze(1))
        for some, x in zip(theta.split(rows), states.split(rows), strict=True)
    ]
    return simulator.prior.log_prob(theta.double()) + torch.cat(likelihood)


def log_weights(posterior: Density, simulator: Simulator, theta: Tensor, states: Tensor) -> Tensor:
    """log p(theta) + log L(x | theta) - log q(theta | x), arguments as for `log_joint`."""
    log_q = posterior.log_prob(theta, states).double()
    value = log_joint(simulator, theta, states) - log_q
    # A draw that the likelihood cannot judge counts nothing.
    return torch.where(torch.isfinite(value), value, -torch.inf)


def smooth(log_weight: Tensor, leak_rate: Tensor) -> Importance:
    """Smoothed weights and what they tell of each driver.

    Args:
        log_weight: (driver, draw) of draws inside the prior's support.
        leak_rate: (driver,) share of q outside the support. Draws are redrawn until they are
            inside, so their density is q / (1 - leak rate).
    """
    draws = log_weight.shape[1]
    usable = torch.isfinite(log_weight.amax(1)) & (leak_rate < 1)
    safe = torch.where(usable[:, None], log_weight, 0.0)
    with np.errstate(over="ignore"):  # a tail beyond all measure
        smoothed, k_hat = az.psislw(safe.numpy(), normalize=False)
    value = torch.from_numpy(smoothed)
    total = value.logsumexp(1)
    weights = (value - total[:, None]).exp()
    effective = 1 / weights.square().sum(1)
    log_evidence = total - math.log(draws) + torch.log1p(-leak_rate.double())
    error = (1 / effective - 1 / draws).clamp_min(0).sqrt()
    nothing = ~usable
    return Importance(
        weights=weights,
        k_hat=_replace(torch.from_numpy(np.atleast_1d(k_hat)), nothing, torch.inf),
        effective_draws=_replace(effective, nothing, 0.0),
        log_evidence=_replace(log_evidence, nothing, torch.nan),
        log_evidence_error=_replace(error, nothing, torch.nan),
    )


def resample(theta: Tensor, weights: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """n equally weighted draws (driver, n, dim), by systematic resampling, in random order.

    One uniform number per driver places n equidistant points on the cumulated weights: each draw
    is taken at least floor(n w) and at most ceil(n w) times.
    """
    drivers = len(theta)
    numbers = uniform(rng, drivers, 1 + n, dtype=torch.float64)
    points = (torch.arange(n) + numbers[:, :1]) / n
    chosen = torch.searchsorted(weights.double().cumsum(1).contiguous(), points)
    # The order carries the proposals' order otherwise, with copies side by side.
    chosen = chosen.clamp_max(theta.shape[1] - 1).gather(1, numbers[:, 1:].argsort(1))
    return theta.gather(1, chosen.unsqueeze(-1).expand(-1, -1, theta.shape[2]))


def _replace(value: Tensor, where: Tensor, by: float) -> Tensor:
    return torch.where(where, torch.full_like(value, by), value)
