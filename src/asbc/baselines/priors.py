"""Priors over theta as NumPyro programs: ASBC's own, and those published with B-IDM and MA-IDM."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import ndtr, ndtri
from scipy import stats

from asbc.simulator.prior import Marginal

ThetaPrior = Callable[[], Array]

# Zhang & Sun (2024): log theta ~ N(mean, sd^2) for v0, s0, T, a_max, b.
REFERENCE_MEAN = (2.0, 0.69, 0.47, -0.3, 0.51)
REFERENCE_SD = (0.3, 1.0, 1.0, 0.01, 0.5)
# Rates of their exponential priors: on the sd of B-IDM, and on MA-IDM's two variances.
REFERENCE_SIGMA_RATE = 1e4
REFERENCE_KERNEL_RATE = 8e4
REFERENCE_WHITE_RATE = 1e5
# Their N(1 s, 1 s) on the kernel length; only positive lengths mean anything.
REFERENCE_ELL = (1.0, 1.0)


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
