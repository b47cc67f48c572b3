"""The fixed-capacity first-in first-out buffer of simulated training pairs."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from asbc.utils.checks import InputError


@dataclass(frozen=True)
class Simulations:
    """Simulated training pairs; every field has one row per simulation, oldest first.

    The trajectory is kept, not its embedding: the encoder that makes the embedding still trains.
    """

    theta: Tensor  # (n, dim)
    states: Tensor  # (n, steps, 3)
    window_id: Tensor  # (n,) int64, index into the leader bank
    round: Tensor  # (n,) int64, the round that asked for the simulation
    log_ratio: Tensor  # (n,) log prior density - log proposal density of theta

    def __post_init__(self) -> None:
        for field in fields(self):
            if len(getattr(self, field.name)) != len(self.theta):
                raise InputError(
                    f"simulations.{field.name} has {len(getattr(self, field.name))} rows, "
                    f"expected {len(self.theta)} as in theta"
                )

    def __len__(self) -> int:
        return len(self.theta)

    def last(self, n: int) -> "Simulations":
        """The newest `n` simulations."""
        newest = {f.name: getattr(self, f.name)[max(len(self) - n, 0) :] for f in fields(self)}
        # A view would keep the discarded rows alive, and checkpoints save whole storages.
        return replace(self, **{name: value.clone() for name, value in newest.items()})


def concatenate(parts: list[Simulations]) -> Simulations:
    """All simulations of `parts` in order."""
    names = [field.name for field in fields(Simulations)]
    return Simulations(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


class FifoBuffer:
    """Keeps the newest `capacity` simulations.

    Example:
        >>> buffer = FifoBuffer(capacity=3)
        >>> for round in range(2):
        ...     buffer.push(Simulations(
        ...         theta=torch.full((2, 1), float(round)), states=torch.zeros(2, 5, 3),
        ...         window_id=torch.zeros(2, dtype=torch.int64),
        ...         round=torch.full((2,), round), log_ratio=torch.zeros(2)))
        >>> buffer.content.round.tolist()
        [0, 1, 1]
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InputError(f"buffer capacity is {capacity}, expected at least 1")
        self.capacity = capacity
        self._content: Simulations | None = None

    def __len__(self) -> int:
        return 0 if self._content is None else len(self._content)

    @property
    def content(self) -> Simulations:
        """Everything in the buffer, oldest first."""
        if self._content is None:
            raise InputError("the simulation buffer is empty; push simulations first")
        return self._content

    def push(self, simulations: Simulations) -> None:
        """Append simulations and discard the oldest beyond the capacity."""
        parts = [simulations] if self._content is None else [self._content, simulations]
        self._content = concatenate(parts).last(self.capacity)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors of the buffer, empty when nothing was pushed."""
        if self._content is None:
            return {}
        return {field.name: getattr(self._content, field.name) for field in fields(Simulations)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace the content by a saved one."""
        self._content = Simulations(**state) if state else None
