"""Draws from a posterior in small portions of work, for those who have little time at once."""

import numpy as np
import torch
from torch import Tensor

from asbc.posterior.posterior import Posterior, PosteriorSamples
from asbc.utils.random import standard_normal


class GradualDraws:
    """The draws of `Posterior.sample_context`, bit for bit, a layer of the flow at a time.

    Args:
        posterior: to draw from.
        context: (B, d), what `encode` gave.
        n: draws of each.
        rng: source of all noise.
    """

    def __init__(
        self, posterior: Posterior, context: Tensor, n: int, rng: np.random.Generator
    ) -> None:
        self._posterior, self._context, self._rng = posterior, context, rng
        noise = standard_normal(rng, len(context), n, posterior.prior.dim)
        self._values = noise.to(context.device)
        self._left = posterior.flow.layers

    @property
    def over(self) -> bool:
        """Whether the flow's layers are all done."""
        return self._left == 0

    def go_on(self) -> None:
        """Do the next layer."""
        self._left -= 1
        flow = self._posterior.flow
        self._values = flow.inverse_layer(self._left, self._values, self._context)

    @torch.no_grad()
    def samples(self) -> PosteriorSamples:
        """The draws, after the layers that are left."""
        while not self.over:
            self.go_on()
        return self._posterior.accepted(self._values, self._context, self._rng)
