"""Residual accelerations: what a process has to offer, independent Gaussian ones, and none."""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.utils.random import standard_normal


class Prefix(NamedTuple):
    """Residuals observed just before a simulation starts.

    Attributes:
        residuals: (batch, K), oldest first; the last one lies one time step before the first
            simulated residual.
        observed: (batch, K) bool; entries that are False are ignored.
        noise: variance of the observation error relative to sigma^2, on top of any white
            noise that is part of the process.
        states: (batch, K, 3) gap, speed and approach rate there, for residuals that depend on
            them.
    """

    residuals: Tensor
    observed: Tensor
    noise: float
    states: Tensor | None = None


class ResidualProcess(Protocol):
    """A zero-mean stationary process for the acceleration the law does not explain.

    `hyper` holds the process's columns of theta, in the order of `parameters`.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the process's columns of theta."""
        ...

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """Residuals (batch, steps) for hyper (batch, p), given the prefix where there is one.

        Row i uses only the i-th stretch of the generator's stream: it does not depend on the
        batch size, and two consecutive calls equal one call on the joined batch.
        """
        ...

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        """Log-density (...) in float64 of residuals (..., T) under hyper (..., p).

        Where the bool mask `lower` (`upper`) is true the acceleration was raised (cut) to a
        bound: the process itself was at or below (above) the entry, which is a censored
        observation and contributes a probability instead of a density.
        """
        ...


@runtime_checkable
class HasCorrelation(Protocol):
    """A process that can write its covariance out, as `transform=laplace` needs it."""

    def correlation(self, shape: Tensor, steps: int, dt: float) -> Tensor:
        """Covariance matrices (n, steps, steps) over sigma^2, white noise included.

        Args:
            shape: (n, p - 1), the parameters other than sigma, which is the first.
            steps: consecutive residuals.
            dt: time step (s).
        """
        ...


def censored_log_prob(
    z: Tensor, log_scale: Tensor, lower: Tensor | None, upper: Tensor | None
) -> Tensor:
    """Log-density of a normal at the standardised value z, or its log-tail where censored."""
    value = -0.5 * z.square() - log_scale - 0.5 * math.log(2 * math.pi)
    if lower is not None:
        value = torch.where(lower, torch.special.log_ndtr(z), value)
    if upper is not None:
        value = torch.where(upper, torch.special.log_ndtr(-z), value)
    return value


class GaussianResidual:
    """r_t ~ N(0, sigma^2), independent over time; a prefix therefore changes nothing."""

    parameters = ("sigma",)
    scale_powers = (1.0,)

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """Residuals (batch, steps); see `ResidualProcess.sample`."""
        return hyper[:, :1] * standard_normal(rng, hyper.shape[0], steps).to(hyper)

    def correlation(self, shape: Tensor, steps: int, dt: float) -> Tensor:
        """Identity matrices (n, steps, steps)."""
        return torch.eye(steps, dtype=torch.float64).expand(len(shape), -1, -1)

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        """Exact log-density (...), censored entries included, of residuals (..., T)."""
        sigma = hyper[..., :1].to(torch.float64)
        terms = censored_log_prob(residuals.double() / sigma, sigma.log(), lower, upper)
        return terms.sum(-1)


class NoResidual:
    """No residual at all: the law drives alone. Such a trajectory has no density."""

    parameters = ()

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """Zeros (batch, steps)."""
        return hyper.new_zeros(hyper.shape[0], steps)

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        """Raises: without noise a trajectory has no likelihood."""
        raise InputError(
            "residual=none: a law without a residual has no likelihood; choose residual=gaussian "
            "or matern for what needs one (refine, exact posteriors, baselines by NUTS)"
        )
