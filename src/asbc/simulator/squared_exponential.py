"""MA-IDM's residual process: a squared-exponential Gaussian process plus white noise."""

import numpy as np
import torch
from torch import Tensor

from asbc.simulator.residuals import Prefix, censored_log_prob
from asbc.utils.random import standard_normal

# Relative to sigma^2: the smooth part alone is singular to working precision.
JITTER = 1e-8


class SquaredExponentialResidual:
    """r = f + e, f with kernel sigma^2 exp(-lag^2 / (2 ell^2)), e white with variance white^2.

    There is no exact state-space form, so the work is dense in the number of steps. Rows that
    share their hyperparameters (a pooled posterior repeats its draws in every window) share one
    factorisation.
    """

    parameters = ("sigma", "ell", "white")

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """Residuals (batch, steps), given the prefix; see `ResidualProcess.sample`."""
        normal = standard_normal(rng, hyper.shape[0], steps, dtype=torch.float64)
        if prefix is None:
            empty = hyper.new_zeros(hyper.shape[0], 0)
            prefix = Prefix(empty, empty.bool(), 0.0)
        case = torch.cat([hyper.double(), prefix.observed.double()], dim=1)
        distinct, member = torch.unique(case, dim=0, return_inverse=True)
        factor, gain = _conditional(distinct, prefix.residuals.shape[1], prefix.noise, steps, dt)
        observed = torch.where(prefix.observed, prefix.residuals, 0.0).double()
        result = torch.empty_like(normal)
        # One product per distinct case: expanding the factors to all rows would not fit memory.
        order = member.argsort(stable=True)
        rows = order.split(torch.bincount(member, minlength=len(distinct)).tolist())
        for row, lower, weight in zip(rows, factor, gain, strict=True):
            result[row] = normal[row] @ lower.T + observed[row] @ weight.T
        return result.to(hyper.dtype)

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        """Log-density (...) of residuals (..., T); censored ones count as observed later on."""
        sigma, ell, white = hyper.double()[..., None, None].unbind(-3)
        steps = residuals.shape[-1]
        time = torch.arange(steps, dtype=torch.float64) * dt
        covariance = _kernel(time, sigma, ell) + _white(sigma, white, steps)
        factor = torch.linalg.cholesky(covariance)
        value = residuals.double().unsqueeze(-1)
        z = torch.linalg.solve_triangular(factor, value, upper=False).squeeze(-1)
        log_scale = factor.diagonal(dim1=-2, dim2=-1).log()
        return censored_log_prob(z, log_scale, lower, upper).sum(-1)


def _conditional(
    case: Tensor, prefix_steps: int, noise: float, steps: int, dt: float
) -> tuple[Tensor, Tensor]:
    """Cholesky factors (case, steps, steps) and gains (case, steps, prefix_steps)."""
    sigma, ell, white = case[:, :3, None, None].unbind(1)
    mask = case[:, 3:]
    time = torch.arange(prefix_steps + steps, dtype=torch.float64) * dt
    smooth = _kernel(time, sigma, ell)
    past, future = smooth[:, :prefix_steps, :prefix_steps], smooth[:, prefix_steps:, prefix_steps:]
    # An entry that was not observed is one with no covariance to anything.
    cross = smooth[:, prefix_steps:, :prefix_steps] * mask[:, None, :]
    error = _white(sigma, white, prefix_steps) + noise * sigma**2 * torch.eye(prefix_steps)
    past = past * mask[:, :, None] * mask[:, None, :] + error
    gain = torch.cholesky_solve(cross.mT, torch.linalg.cholesky(past)).mT
    covariance = future - gain @ cross.mT + _white(sigma, white, steps)
    return torch.linalg.cholesky((covariance + covariance.mT) / 2), gain


def _kernel(time: Tensor, sigma: Tensor, ell: Tensor) -> Tensor:
    lag = time[:, None] - time
    return sigma**2 * torch.exp(-0.5 * (lag / ell).square())


def _white(sigma: Tensor, white: Tensor, steps: int) -> Tensor:
    return (white**2 + JITTER * sigma**2) * torch.eye(steps, dtype=torch.float64)
