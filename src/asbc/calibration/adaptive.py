"""Proposals that learn from their own weights, for drivers whose network draws miss the posterior.

Population Monte Carlo (Cappé et al. 2004) in the unconstrained space of the prior's box: a
Student-t is fitted to the weighted draws, draws anew, and so on. The weights it is fitted to are
tempered until enough draws count, so that the proposals walk to a posterior far from where they
started. The last round's weights are plain importance weights: k-hat says whether it worked.
"""

import math

import numpy as np
import torch
from torch import Tensor

from asbc.calibration.importance import log_joint
from asbc.simulator import Prior, Simulator
from asbc.utils.random import standard_normal

# Degrees of freedom: heavier tails than any posterior in this space.
FREEDOM = 5
# Share of the draws that must count when the next proposal is fitted.
LEAST_SHARE = 0.1
# The fitted covariance is widened a little: too wide wastes draws, too narrow misses mass.
WIDENING = 1.2
# Values closer to a bound than this share of the range are moved there: finite in the new space.
EDGE = 1e-6


@torch.no_grad()
def adapt(
    simulator: Simulator,
    theta: Tensor,
    log_weight: Tensor,
    states: Tensor,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """One round: new draws (driver, n, dim) and their log-weights, from weighted draws.

    Args:
        simulator: prior and likelihood.
        theta: draws (driver, n, dim).
        log_weight: (driver, n).
        states: observed contexts (driver, step, 3).
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
