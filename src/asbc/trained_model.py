"""What calibrates: a posterior, its simulator, and what of a driver the posterior is from.

Importing it imports nothing heavy, as importing a run does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asbc.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from asbc.data.history import Places
    from asbc.data.pairs import Pairs
    from asbc.data.segments import Segments
    from asbc.posterior import Posterior, PosteriorSamples
    from asbc.simulator import Simulator

PREDICTIVE = "predictive"  # the objective of a posterior that is not the simulator's
PREDICTIVE_NOTE = (
    "A predictive posterior: it was trained so that its draws predict recorded drivers, and is "
    "not the Bayesian posterior of the simulator."
)


@dataclass(frozen=True)
class Model:
    """What calibrates: network, simulator, and the context the network reads.

    Attributes:
        posterior: q(theta | context).
        simulator: prior and likelihood that q stands for.
        context_steps: samples of each pair that the posterior is conditioned on.
        residual: name of the residual model, e.g. "matern".
        robust: whether training allowed for drivers unlike the simulator, so that the simulator's
            likelihood is not what the posterior stands for.
        objective: what the posterior was trained for: simulated, or predictive.
        context: what it is conditioned on. `first`: a posterior for each pair, from its first
            `context_steps` samples. `all`: one for each driver, from all of its pairs.
    """

    posterior: Posterior
    simulator: Simulator
    context_steps: int
    residual: str
    robust: bool = False
    objective: str = "simulated"
    context: str = "first"

    def __post_init__(self) -> None:
        if self.context not in ("first", "all"):
            raise InputError(f"calibration.context={self.context}; expected first or all")
        if not self.by_driver:
            return
        if self.posterior.pool is None:
            raise InputError(
                "calibration.context=all: the run reads one segment of each driver; train with "
                "history=segments, or use calibration.context=first"
            )
        longest, shortest = self.posterior.pool.context_steps, self.posterior.pool.shortest
        if not shortest <= self.context_steps <= longest:
            raise InputError(
                f"data.context_steps={self.context_steps}: the run reads segments of {shortest} "
                f"to {longest} samples"
            )

    @property
    def predictive(self) -> bool:
        """Whether it was trained to predict recorded drivers: it has no likelihood of its own."""
        return self.objective == PREDICTIVE

    @property
    def by_driver(self) -> bool:
        """Whether a posterior is that of a driver with all of its pairs."""
        return self.context == "all"

    @property
    def shortest(self) -> int | None:
        """Samples that a segment must have, where there is a posterior for each driver."""
        pool = self.posterior.pool
        return pool.shortest if pool is not None and self.by_driver else None

    @property
    def id_column(self) -> str:
        """What tables call whom a posterior belongs to."""
        return "follower" if self.by_driver else "pair_id"

    def names(self, pairs: Pairs) -> tuple[str, ...]:
        """Whom the posteriors belong to: pairs, or drivers in the order of their first pairs."""
        return tuple(dict.fromkeys(pairs.follower)) if self.by_driver else pairs.pair_id

    def select(self, pairs: Pairs, rows: Sequence[int] | np.ndarray | Tensor) -> Pairs:
        """The pairs of the posteriors at `rows`, in that order."""
        if not self.by_driver:
            return pairs.select(rows)
        own: dict[str, list[int]] = {}
        for place, name in enumerate(pairs.follower):
            own.setdefault(name, []).append(place)
        drivers = list(own.values())
        return pairs.select([place for row in rows for place in drivers[int(row)]])

    def places(self, pairs: Pairs) -> Places:
        """Where the segments lie that each driver's posterior is conditioned on."""
        from asbc.data.history import driver_places

        pool = self.posterior.pool
        assert pool is not None
        return driver_places(pairs, self.context_steps, pool.shortest, pool.max_segments)

    def contexts(self, pairs: Pairs) -> Tensor | Segments:
        """What each posterior is conditioned on: (pair, step, 3), or a driver's segments."""
        if self.by_driver:
            return self.places(pairs).segments(pairs, self.context_steps)
        return pairs.contexts(self.context_steps)

    def sample(self, pairs: Pairs, n: int, seed: int) -> PosteriorSamples:
        """n draws for each pair or driver; those of an evaluation with the same seed."""
        from asbc.utils.random import RowStreams, stream

        kind = "driver" if self.by_driver else "pair"
        streams = [stream(seed, "posterior", f"{kind} {name}") for name in self.names(pairs)]
        return self.posterior.sample(self.contexts(pairs), n, RowStreams(streams))

    def fingerprint(self) -> str:
        """A short hash of the weights."""
        import torch

        # The names of a state dict are those of the estimator that holds the posterior.
        digest = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.posterior.state_dict(prefix="posterior.").items()):
            digest.update(name.encode())
            digest.update(value.detach().to(torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()
