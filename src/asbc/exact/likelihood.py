"""The IDM's one-step-ahead log-likelihood and the priors over theta, in JAX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jax.typing import ArrayLike
from scipy import stats

from asbc.exact.statistics import COLUMN, ROW, Statistics, chebyshev_basis
from asbc.simulator import Simulator
from asbc.simulator.matern import MaternResidual
from asbc.simulator.prior import Marginal

LOG_TWO_PI = float(np.log(2 * np.pi))
# Zhang & Sun (2024): log theta ~ N(mean, sd^2) for v0, s0, T, a_max, b.
REFERENCE_MEAN = (2.0, 0.69, 0.47, -0.3, 0.51)
REFERENCE_SD = (0.3, 1.0, 1.0, 0.01, 0.5)
# Rates of their exponential priors: on the sd of B-IDM, and on MA-IDM's two variances.
REFERENCE_SIGMA_RATE = 1e4
REFERENCE_KERNEL_RATE = 8e4
REFERENCE_WHITE_RATE = 1e5
# Their N(1 s, 1 s) on the kernel length; only positive lengths mean anything.
REFERENCE_ELL = (1.0, 1.0)

ThetaPrior = Callable[[], Array]  # samples its sites and returns theta
Model = Callable[[Any], None]  # a NumPyro program of the data


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


def asbc_prior(marginals: Sequence[Marginal]) -> ThetaPrior:
    """The truncated log-normals ASBC simulates from, sampled on the log scale."""
    fields = np.array([(m.centre, m.low, m.high) for m in marginals])
    centre, low, high = np.log(fields).T
    scale = np.array([m.log_scale for m in marginals])

    def sample() -> Array:
        law = dist.TruncatedNormal(centre, scale, low=low, high=high).to_event(1)
        return jnp.exp(numpyro.sample("log_theta", law))

    return sample


def theta_of_normal(marginals: Sequence[Marginal]) -> Callable[[Array], Array]:
    """The theta (..., dim) that follows ASBC's prior where z (..., dim) is standard normal."""
    fields = np.array([(m.centre, m.low, m.high) for m in marginals])
    centre, low, high = np.log(fields).T
    scale = np.array([m.log_scale for m in marginals])
    below, above = stats.norm.cdf((np.stack([low, high]) - centre) / scale)

    @jax.custom_jvp
    def standardised(z: Array) -> Array:
        # Further out theta is at its bound, up to rounding.
        return ndtri(below + ndtr(jnp.clip(z, -7.0, 7.0)) * (above - below))

    @standardised.defjvp
    def slope(at: tuple[Array], towards: tuple[Array]) -> tuple[Array, Array]:
        (z,), (direction,) = at, towards
        x = standardised(z)
        rate = (above - below) * jnp.exp((jnp.square(x) - jnp.square(z)) / 2)
        return x, jnp.where(jnp.abs(z) < 7.0, rate, 0.0) * direction

    return lambda z: jnp.exp(centre + scale * standardised(z))


def reference_prior(residual_parameters: Sequence[str]) -> ThetaPrior:
    """The published prior of B-IDM (sigma), or of MA-IDM (sigma, ell and maybe white)."""

    def sample() -> Array:
        law = dist.Normal(jnp.array(REFERENCE_MEAN), jnp.array(REFERENCE_SD)).to_event(1)
        theta = [*jnp.exp(numpyro.sample("log_theta", law))]
        if len(residual_parameters) == 1:
            theta.append(numpyro.sample("sigma", dist.Exponential(REFERENCE_SIGMA_RATE)))
            return jnp.stack(theta)
        variance = numpyro.sample("kernel_variance", dist.Exponential(REFERENCE_KERNEL_RATE))
        theta.append(jnp.sqrt(variance))
        theta.append(numpyro.sample("ell", dist.TruncatedNormal(*REFERENCE_ELL, low=0.0)))
        if "white" in residual_parameters:
            variance = numpyro.sample("white_variance", dist.Exponential(REFERENCE_WHITE_RATE))
            theta.append(jnp.sqrt(variance))
        return jnp.stack(theta)

    return sample


def theta_model(prior: ThetaPrior, log_likelihood: Callable[[Array, Any], Array]) -> Model:
    """theta from the prior, data through `log_likelihood(theta, statistics)`."""

    def model(data: Any) -> None:
        theta = numpyro.deterministic("theta", prior())
        numpyro.factor("trajectories", log_likelihood(theta, data))

    return model
