"""The amortised posterior q(theta | trajectory): encoder, flow, transform, estimator, members."""

from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.posterior import Posterior, PosteriorSamples

__all__ = ["Posterior", "PosteriorEstimator", "PosteriorSamples"]
