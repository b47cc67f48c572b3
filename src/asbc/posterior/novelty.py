"""How unlike the training simulations a driver's context is.

An amortized posterior is only trained on what the simulator can produce. A real context whose
embedding lies far from all simulated embeddings gets an answer nobody has checked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asbc.errors import InputError

NEIGHBOURS = 5
FLAG_QUANTILE = 0.99


@dataclass(frozen=True)
class Novelty:
    """Distances of new embeddings from simulated ones, with the simulations' own as the yardstick.

    Attributes:
        reference: (n, d) embeddings of simulations, standardised.
        centre, scale: (d,) the standardisation.
        held_out: sorted distances of simulations that are not in the reference.
    """

    reference: Tensor
    centre: Tensor
    scale: Tensor
    held_out: Tensor

    @classmethod
    def fit(cls, embeddings: Tensor) -> "Novelty":
        """Half of the simulated embeddings (n, d) become the reference, half the yardstick."""
        if len(embeddings) < 4 * NEIGHBOURS:
            raise InputError(f"novelty needs at least {4 * NEIGHBOURS} simulated contexts")
        half = len(embeddings) // 2
        centre = embeddings[:half].mean(dim=0)
        # A dead embedding unit has no spread in simulation; any motion of it is then novel.
        scale = embeddings[:half].std(dim=0).clamp(min=1e-6)
        reference = (embeddings[:half] - centre) / scale
        yardstick = _neighbour_distance((embeddings[half:] - centre) / scale, reference)
        return cls(reference, centre, scale, yardstick.sort().values)

    def distance(self, embeddings: Tensor) -> Tensor:
        """Mean distance to the nearest simulated embeddings, (m,) for (m, d)."""
        return _neighbour_distance((embeddings - self.centre) / self.scale, self.reference)

    @property
    def threshold(self) -> float:
        """Distance that 99% of held-out simulations stay below."""
        return float(torch.quantile(self.held_out, FLAG_QUANTILE))

    def flagged(self, embeddings: Tensor) -> Tensor:
        """Whether each context is less like the simulations than 99% of simulations, (m,)."""
        return self.distance(embeddings) > self.threshold


def _neighbour_distance(points: Tensor, reference: Tensor) -> Tensor:
    return torch.cdist(points, reference).topk(NEIGHBOURS, largest=False).values.mean(dim=-1)
