"""The amortised posterior q(theta | trajectory): encoder, flow, transform, estimator, members.

What trains it is `asbc.posterior.estimator`; not here, so that who only draws from it, as every
worker of a calibration does, need not load Lightning.
"""

from asbc.posterior.posterior import Posterior, PosteriorSamples

__all__ = ["Posterior", "PosteriorSamples"]
