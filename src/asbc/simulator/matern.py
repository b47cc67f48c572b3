"""Matern-5/2 correlated residuals: ASBC-Matern."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.special import erfcx

from asbc.simulator import state_space
from asbc.simulator.residuals import Prefix, censored_log_prob
from asbc.utils.checks import check_number
from asbc.utils.random import standard_normal

# Time steps drawn at once; 3 to 5 cost about the same, smaller and larger ones more.
BLOCK = 4


class MaternResidual:
    """r = f + white noise, f a Gaussian process with the paper's Matern-5/2 kernel.

    All work is linear in the number of steps, by the kernel's exact state-space form.

    Args:
        nugget: variance of the white noise relative to sigma^2. It belongs to the process, in
            sampling as in the likelihood: without it the kernel is close to singular on recorded,
            quantised signals. 0 is the paper's kernel.
    """

    parameters = ("sigma", "ell")
    scale_powers = (1.0, 0.0)

    def __init__(self, nugget: float = 1e-3) -> None:
        check_number("residual.process.nugget", nugget, minimum=0)
        self.nugget = nugget

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """Residuals (batch, steps), given the prefix; see `ResidualProcess.sample`."""
        sigma, ell = hyper.double().unbind(-1)
        step = state_space.transition(ell, dt)
        belief = state_space.stationary(ell)
        if prefix is not None:
            belief = self._filter(belief, step, prefix, sigma)
        start = state_space.cholesky([belief.covariance[j:, j] for j in range(3)])
        response, factor = state_space.block(step, BLOCK, self.nugget)
        # The recursion itself is stable: only its coefficients need double precision.
        start, response, factor = (
            [x.to(hyper.dtype) for x in y] for y in (start, response, factor)
        )

        blocks = math.ceil((steps - 1) / BLOCK)
        normal = standard_normal(rng, hyper.shape[0], 4 + blocks * len(factor)).to(hyper)
        first, white, *others = normal.t().contiguous().split([3, 1] + blocks * [len(factor)])
        state = belief.mean.to(hyper.dtype) + state_space.correlate(start, first)
        values = [state[:1] + white * math.sqrt(self.nugget)]
        for z in others:
            joint = state_space.correlate(factor, z)
            for component, reaction in zip(state, response, strict=True):
                joint.addcmul_(reaction, component)
            values.append(joint[:BLOCK])
            state = joint[BLOCK:]
        return (torch.cat(values)[:steps] * hyper[:, 0]).t()

    def correlation(self, shape: Tensor, steps: int, dt: float) -> Tensor:
        """The kernel with its white noise, (n, steps, steps) for correlation lengths (n, 1)."""
        time = dt * torch.arange(steps, dtype=torch.float64)
        distance = math.sqrt(5) * (time[:, None] - time).abs() / shape.double()[..., None]
        kernel = (1 + distance + distance.square() / 3) * torch.exp(-distance)
        return kernel + self.nugget * torch.eye(steps, dtype=torch.float64)

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        """Log-density (...) of residuals (..., T) by the Kalman filter.

        Exact without censored entries. After a censored entry the state's distribution is no
        longer Gaussian; it is replaced by the Gaussian of the same mean and covariance. For four
        censored entries the error (root mean square) is below 0.1 nat at the last of them, and
        up to 0.35 nat, with a bias of up to -0.15, after four more values were observed.
        """
        sigma, ell = hyper.double().unbind(-1)
        values = (residuals.double() / sigma.unsqueeze(-1)).movedim(-1, 0)
        step = state_space.transition(ell, dt)
        belief = state_space.stationary(values[0] + ell)
        total = torch.zeros_like(belief.mean[0])
        for t, value in enumerate(values):
            below = None if lower is None else lower[..., t]
            above = None if upper is None else upper[..., t]
            variance = belief.covariance[0, 0] + self.nugget
            z = (value - belief.mean[0]) / variance.sqrt()
            total = total + censored_log_prob(z, variance.log() / 2 + sigma.log(), below, above)
            shift, shrink = _innovation(z, below, above)
            belief = state_space.predict(
                state_space.condition(belief, variance, shift, shrink), step
            )
        return total

    def _filter(
        self,
        belief: state_space.Belief,
        step: state_space.Transition,
        prefix: Prefix,
        sigma: Tensor,
    ) -> state_space.Belief:
        """The belief about the first state after the prefix."""
        values = (prefix.residuals.double() / sigma.unsqueeze(-1)).t()
        for value, observed in zip(values, prefix.observed.t(), strict=True):
            variance = belief.covariance[0, 0] + self.nugget + prefix.noise
            # A missing value may be NaN; its expectation says nothing new.
            value = torch.where(observed, value, belief.mean[0])
            z = (value - belief.mean[0]) / variance.sqrt()
            belief = state_space.condition(belief, variance, z, observed.double())
            belief = state_space.predict(belief, step)
        return belief


def _innovation(
    z: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor | float]:
    """Mean of the standardised innovation, and the share of its variance that is known."""
    if lower is None and upper is None:
        return z, 1.0
    lower, upper = (
        torch.zeros_like(z, dtype=torch.bool) if m is None else m for m in (lower, upper)
    )
    # Moments of a normal known to lie below (above) z; `side` mirrors the second case. The ratio
    # of density to probability is written with erfcx, which does not underflow in the tail.
    side = torch.where(upper, -1.0, 1.0).to(z)
    bound = (side * z).clamp_max(30)
    ratio = math.sqrt(2 / math.pi) / erfcx(-bound / math.sqrt(2))
    censored = lower | upper
    shift = torch.where(censored, -side * ratio, z)
    shrink = torch.where(censored, (ratio * (ratio + bound)).clamp(0, 1), torch.ones_like(z))
    return shift, shrink
