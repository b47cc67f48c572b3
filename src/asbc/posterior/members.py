"""MC-dropout members: the posterior under one fixed set of dropout masks."""

import copy

import numpy as np
from torch import Tensor

from asbc.posterior.dropout import fix_masks
from asbc.posterior.posterior import Posterior, PosteriorSamples


class Member:
    """A frozen copy of a posterior with one dropout mask per layer, held for all passes.

    The mask is the same for every theta, trajectory, time step and pass, in the encoder and in the
    flow, so a member is a proper density. It is a function of `key` and of the weights at the time
    of its creation: later training does not change it.

    Args:
        posterior: The posterior to copy.
        key: Which masks; equal keys give equal masks.
    """

    def __init__(self, posterior: Posterior, key: int) -> None:
        self.key = key
        self._posterior = copy.deepcopy(posterior).eval().requires_grad_(False)
        fix_masks(self._posterior, key)

    def encode(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """This member's context vectors: (B, T, input) -> (B, d)."""
        return self._posterior.encode(states, lengths)

    def log_prob(self, theta: Tensor, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """This member's log-density; as `Posterior.log_prob`."""
        return self._posterior.log_prob(theta, states, lengths)

    def log_prob_grid(
        self, theta: Tensor, states: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """This member's log-density for all pairs; as `Posterior.log_prob_grid`."""
        return self._posterior.log_prob_grid(theta, states, lengths)

    def sample(
        self,
        states: Tensor,
        n: int,
        rng: np.random.Generator,
        lengths: Tensor | None = None,
        max_tries: int = 20,
    ) -> PosteriorSamples:
        """Draws from this member; as `Posterior.sample`."""
        return self._posterior.sample(states, n, rng, lengths, max_tries)
