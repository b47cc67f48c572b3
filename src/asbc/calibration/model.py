"""A trained posterior together with what it was trained on."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from asbc.data.pairset import PairSet
from asbc.evaluation.streams import RowStreams
from asbc.posterior import PosteriorEstimator, PosteriorSamples
from asbc.simulator import Simulator
from asbc.utils.random import stream


@dataclass(frozen=True)
class Model:
    """What calibrates: network, simulator, and the context the network reads.

    Attributes:
        posterior: q(theta | context).
        simulator: prior and likelihood that q stands for.
        context_steps: samples of each pair that the posterior is conditioned on.
        residual: name of the residual model, e.g. "matern".
    """

    posterior: PosteriorEstimator
    simulator: Simulator
    context_steps: int
    residual: str

    def contexts(self, pairs: PairSet) -> Tensor:
        """What the posterior of each pair is conditioned on, (pair, step, 3)."""
        return pairs.contexts(self.context_steps)

    def sample(self, pairs: PairSet, n: int, seed: int) -> PosteriorSamples:
        """n draws for each pair; those of `evaluate.py` with the same seed."""
        streams = [stream(seed, "posterior", f"pair {name}") for name in pairs.pair_id]
        return self.posterior.sample(self.contexts(pairs), n, RowStreams(streams))

    def fingerprint(self) -> str:
        """A short hash of the weights."""
        digest = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.posterior.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().to(torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()
