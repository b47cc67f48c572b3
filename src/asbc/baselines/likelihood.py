"""One-step-ahead log-likelihoods of the residual-augmented IDM, in JAX."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr
from jax.typing import ArrayLike

from asbc.baselines.statistics import COLUMN, ROW, Statistics, chebyshev_basis
from asbc.simulator import Simulator
from asbc.simulator.matern import MaternResidual

LOG_TWO_PI = float(np.log(2 * np.pi))


def weights(theta: Array, delta: float) -> Array:
    """The functions of theta (..., >= 5) that multiply the design's columns, (..., 9)."""
    v0, s0, headway, a_max, b = (theta[..., column] for column in range(5))
    braking = 0.5 / jnp.sqrt(a_max * b)
    terms = [
        jnp.ones_like(a_max),
        -a_max,
        a_max * v0**-delta,
        a_max * s0**2,
        2 * a_max * s0 * headway,
        2 * a_max * s0 * braking,
        a_max * headway**2,
        2 * a_max * headway * braking,
        a_max * braking**2,
    ]
    return jnp.stack(terms, axis=-1)


@dataclass(frozen=True)
class TrajectoryLikelihood:
    """log p(x | theta) of drivers from their `Statistics`.

    The same likelihood as `Simulator.log_likelihood`: exact for both residuals as long as no step
    is clipped, exact for the Gaussian one even then.
    """

    delta: float
    white: float  # variance of the residual's white part beyond the correlated one
    ell_range: tuple[float, float] | None

    @classmethod
    def of(cls, simulator: Simulator) -> "TrajectoryLikelihood":
        """The likelihood of a simulator whose law is the IDM."""
        delta = simulator.law.delta  # type: ignore[attr-defined]
        if isinstance(simulator.residual, MaternResidual):
            ell = simulator.prior.marginals[simulator.parameter_names.index("ell")]
            return cls(delta, simulator.residual.nugget, (ell.low, ell.high))
        return cls(delta, 0.0, None)

    def __call__(self, theta: Array, statistics: Statistics) -> Array:
        """Log-likelihood (...) of theta (..., dim), a row for each driver of the statistics."""
        weight, sigma = weights(theta, self.delta), theta[..., 5]
        basis = jnp.ones(1)
        if self.ell_range is not None:
            basis = chebyshev_basis(jnp, theta[..., 6], *self.ell_range)
        products = weight[..., ROW] * weight[..., COLUMN] * np.where(ROW == COLUMN, 1, 2)
        form = jnp.einsum("...kp,...p->...k", statistics.gram, products)
        squares = jnp.einsum("...k,...k->...", basis, form)
        log_det = jnp.einsum("...k,...k->...", basis, statistics.log_det)
        observed = -0.5 * (
            squares / sigma**2 + log_det + statistics.steps * (2 * jnp.log(sigma) + LOG_TWO_PI)
        )
        if not statistics.side.shape[-1]:
            return observed
        return observed + self.tail(theta, statistics.clipped, statistics.side)

    def tail(self, theta: Array, clipped: ArrayLike, side: ArrayLike) -> Array:
        """Log-probability (...) that the steps (..., c, 9) lie on their side of the bound."""
        spread = theta[..., 5] * np.sqrt(1 + self.white)
        residual = jnp.einsum("...ca,...a->...c", clipped, weights(theta, self.delta))
        side = jnp.asarray(side)
        tails = log_ndtr(side * residual / spread[..., None])
        return jnp.where(side == 0, 0.0, tails).sum(-1)
