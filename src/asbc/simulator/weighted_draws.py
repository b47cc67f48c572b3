"""Draws of drivers weighted by their exact posterior, and drawn again where they miss it.

A network's draws are a start, so one Student t suffices. `asbc.exact.importance` starts from
nothing: it needs JAX and the IDM, and in this place took two to three times as long per driver,
after a minute of compilation.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.data.segments import Segments
from asbc.simulator.prior import Prior
from asbc.simulator.segment_likelihood import known_log_likelihood
from asbc.simulator.simulator import Simulator
from asbc.types import Density
from asbc.utils.random import standard_normal, uniform

# The largest k-hat at which weighted draws are reliable (Vehtari et al. 2024).
RELIABLE_K_HAT = 0.7
# Likelihoods evaluated at once (driver times draw): bounds the memory, changes no value.
LIKELIHOOD_ROWS = 16_384
# Degrees of freedom: heavier tails than any posterior in this space.
FREEDOM = 5
# Share of the draws that must count when the next proposal is fitted.
LEAST_SHARE = 0.1
# The fitted covariance is widened a little: too wide wastes draws, too narrow misses mass.
WIDENING = 1.2
# Values closer to a bound than this share of the range are moved there: finite in the new space.
EDGE = 1e-6


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
def log_joint(simulator: Simulator, theta: Tensor, states: Tensor | Segments) -> Tensor:
    """log p(theta) + log L(x | theta), (driver, draw) in float64.

    Args:
        simulator: prior and likelihood.
        theta: draws (driver, draw, dim).
        states: observed contexts (driver, step, 3), or the segments of each driver.
    """
    rows = max(1, LIKELIHOOD_ROWS // theta.shape[1])
    likelihood = [
        known_log_likelihood(simulator, some, x)
        for some, x in zip(theta.split(rows), states.split(rows), strict=True)
    ]
    return simulator.prior.log_prob(theta.double()) + torch.cat(likelihood)


def log_weights(
    posterior: Density, simulator: Simulator, theta: Tensor, states: Tensor | Segments
) -> Tensor:
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
    import arviz as az  # here: it takes a second, and drivers are mostly not weighted

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


def unreliable(found: Importance, least: float) -> Tensor:
    """Drivers (driver,) whose weights have too heavy a tail, or are worth too few draws."""
    return ~((found.k_hat <= RELIABLE_K_HAT) & (found.effective_draws >= least))


def improve(
    simulator: Simulator,
    theta: Tensor,
    log_weight: Tensor,
    found: Importance,
    states: Tensor | Segments,
    rounds: int,
    least: float,
    rng: Callable[[int, Tensor], np.random.Generator],
) -> tuple[Tensor, Importance]:
    """Draws and weights after the unreliable ones were drawn again, up to `rounds` times.

    Args:
        simulator: prior and likelihood.
        theta: draws (driver, n, dim).
        log_weight: (driver, n).
        found: their smoothed weights.
        states: observed contexts (driver, step, 3), or the segments of each driver.
        rounds: at most.
        least: independent draws that the weighted ones must be worth.
        rng: source of a round's draws for some drivers.
    """
    theta, log_weight = theta.clone(), log_weight.clone()
    for round in range(rounds):
        rows = torch.nonzero(unreliable(found, least)).flatten()
        if not len(rows):
            break
        fresh = adapt(simulator, theta[rows], log_weight[rows], states[rows], rng(round, rows))
        theta[rows], log_weight[rows] = fresh
        found = found.replace(rows, smooth(fresh[1], torch.zeros(len(rows))))
    return theta, found


def resample(theta: Tensor, weights: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """n equally weighted draws (driver, n, dim), by systematic resampling, in random order.

    One uniform number per driver places n equidistant points on the cumulated weights: each draw
    is taken at least floor(n w) and at most ceil(n w) times.

    Example:
        >>> theta, weights = torch.tensor([[[7.0], [8.0]]]), torch.tensor([[0.75, 0.25]])
        >>> resample(theta, weights, 4, np.random.default_rng(0)).sum()
        tensor(29.)
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


@torch.no_grad()
def adapt(
    simulator: Simulator,
    theta: Tensor,
    log_weight: Tensor,
    states: Tensor | Segments,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """One round: new draws (driver, n, dim) and their log-weights, from weighted draws.

    Args:
        simulator: prior and likelihood.
        theta: draws (driver, n, dim).
        log_weight: (driver, n).
        states: observed contexts (driver, step, 3), or the segments of each driver.
        rng: source of the draws, by driver.
    """
    prior = simulator.prior
    mean, factor = _fit(_to_free(theta, prior), _temper(log_weight).softmax(1))
    drivers, n, dim = theta.shape
    normal = standard_normal(rng, drivers, n, dim + FREEDOM, dtype=torch.float64)
    spread = (FREEDOM / normal[..., dim:].square().sum(-1)).sqrt()
    base = normal[..., :dim] * spread.unsqueeze(-1)  # standard t, (driver, n, dim)
    free = mean.unsqueeze(1) + base @ factor.transpose(1, 2)
    fresh = _to_box(free, prior)
    log_t = _log_student(base) - factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
    value = log_joint(simulator, fresh, states) + _log_volume(free, prior) - log_t
    return fresh.float(), torch.where(torch.isfinite(value), value, -torch.inf)


def _temper(log_weight: Tensor) -> Tensor:
    """beta log w with the largest beta <= 1 at which `LEAST_SHARE` of the draws count."""
    least = LEAST_SHARE * log_weight.shape[1]
    largest = log_weight.amax(1, keepdim=True)
    value = torch.where(torch.isfinite(largest), log_weight - largest, 0.0)
    value = value.clamp_min(-1e6)  # minus infinity has no product with 0
    low = torch.zeros(len(value), 1, dtype=value.dtype)
    high = torch.ones_like(low)
    for _ in range(40):
        middle = (low + high) / 2
        enough = 1 / (middle * value).softmax(1).square().sum(1, keepdim=True) >= least
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    whole = 1 / value.softmax(1).square().sum(1, keepdim=True) >= least
    return torch.where(whole, value, low * value)


def _fit(free: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean (driver, dim) and Cholesky factor (driver, dim, dim) of the covariance."""
    weight = weight.unsqueeze(-1)
    mean = (weight * free).sum(1)
    centred = free - mean.unsqueeze(1)
    covariance = WIDENING * (weight * centred).transpose(1, 2) @ centred
    floor = 1e-6 * torch.eye(free.shape[-1], dtype=free.dtype)
    return mean, torch.linalg.cholesky(covariance + floor)


def _log_student(base: Tensor) -> Tensor:
    """Log-density of the standard multivariate t, (driver, n)."""
    dim = base.shape[-1]
    constant = math.lgamma((FREEDOM + dim) / 2) - math.lgamma(FREEDOM / 2)
    constant -= dim / 2 * math.log(FREEDOM * math.pi)
    return constant - (FREEDOM + dim) / 2 * torch.log1p(base.square().sum(-1) / FREEDOM)


def _to_free(theta: Tensor, prior: Prior) -> Tensor:
    low, high = prior.low.double(), prior.high.double()
    return torch.logit((theta.double() - low) / (high - low), eps=EDGE)


def _to_box(free: Tensor, prior: Prior) -> Tensor:
    low, high = prior.low.double(), prior.high.double()
    return low + (high - low) * torch.sigmoid(free)


def _log_volume(free: Tensor, prior: Prior) -> Tensor:
    """log |d theta / d free|, summed over the parameters."""
    width = (prior.high.double() - prior.low.double()).log()
    logsigmoid = torch.nn.functional.logsigmoid
    return (width + logsigmoid(free) + logsigmoid(-free)).sum(-1)
