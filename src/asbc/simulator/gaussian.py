"""Independent Gaussian residuals: ASBC-Gaussian."""

import numpy as np
import torch
from torch import Tensor

from asbc.simulator.residual import Prefix, censored_log_prob
from asbc.utils.random import standard_normal


class GaussianResidual:
    """r_t ~ N(0, sigma^2), independent over time; a prefix therefore changes nothing."""

    parameters = ("sigma",)

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
