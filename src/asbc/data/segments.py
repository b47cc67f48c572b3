"""What is known of drivers: sets of segments of any length, with how old each is.

A driver may have been recorded several times, and a long recording is cut into pieces that an
encoder can read. A posterior conditions on all of them; their order does not matter, only their
ages do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.utils.checks import require, require_shape


@dataclass(frozen=True)
class Segments:
    """J segments for each of B drivers, padded; slots may be empty.

    Attributes:
        states: (B, J, T, 3) gap, speed and approach rate; anything beyond a segment's length.
        lengths: (B, J) int64, samples of each segment; 0: no segment in this slot.
        age: (B, J) seconds from a segment's last sample to the driver's latest one, so the newest
            segment has age 0; NaN: it is older than the newest, nobody knows by how much.

    Example:
        >>> drive = torch.zeros(2, 100, 3)
        >>> segments = Segments.of(drive, torch.tensor([100, 40]))
        >>> segments.lengths.tolist(), segments.total.tolist(), len(segments)
        ([[100], [40]], [100, 40], 2)
    """

    states: Tensor
    lengths: Tensor
    age: Tensor

    def __post_init__(self) -> None:
        require_shape("segments.states", self.states, (None, None, None, None))
        require_shape("segments.lengths", self.lengths, tuple(self.states.shape[:2]))
        require_shape("segments.age", self.age, tuple(self.states.shape[:2]))

    @classmethod
    def of(cls, states: Tensor, lengths: Tensor | None = None) -> "Segments":
        """One segment per driver from trajectories (B, T, 3), padded at the end if so said."""
        if lengths is None:
            lengths = torch.full((len(states),), states.shape[1], device=states.device)
        return cls(states[:, None], lengths[:, None], states.new_zeros(len(states), 1))

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Tensor | slice) -> "Segments":
        """The drivers at `index`."""
        return Segments(self.states[index], self.lengths[index], self.age[index])

    def to(self, *args: object, **kwargs: object) -> "Segments":
        """All tensors moved as `Tensor.to` moves them; Lightning asks for it."""
        device = torch.zeros(0).to(*args, **kwargs).device  # type: ignore[call-overload]
        return Segments(self.states.to(device), self.lengths.to(device), self.age.to(device))

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.states.device

    @property
    def present(self) -> Tensor:
        """Which slots hold a segment, (B, J) bool."""
        return self.lengths > 0

    @property
    def total(self) -> Tensor:
        """Samples of all segments of each driver, (B,)."""
        return self.lengths.sum(1)

    def rows(self) -> tuple[Tensor, Tensor]:
        """All segments in one batch, drivers in order: states (N, T, 3) and lengths (N,)."""
        present = self.present
        return self.states[present], self.lengths[present]

    def split(self, size: int) -> list["Segments"]:
        """Parts of `size` drivers, the last may be smaller."""
        return [self[i : i + size] for i in range(0, max(len(self), 1), size)]

    def check(self, shortest: int) -> None:
        """Raise unless each driver has a segment, and none is below `shortest` samples."""
        require("segments.lengths", self.lengths, self._sound(shortest), f"0 or >= {shortest}")
        empty = torch.nonzero(~self.present.any(1)).flatten()
        if len(empty):
            raise InputError(f"segments[{int(empty[0])}]: no segment of this driver; give one")

    def _sound(self, shortest: int) -> Tensor:
        return (self.lengths == 0) | (
            (self.lengths >= shortest) & (self.lengths <= self.states.shape[2])
        )


def concatenate_segments(parts: list[Segments]) -> Segments:
    """All drivers of `parts` in order; slots and steps are padded to the most that any has."""
    slots = max(part.states.shape[1] for part in parts)
    steps = max(part.states.shape[2] for part in parts)
    padded = [_pad(part, slots, steps) for part in parts]
    return Segments(
        *(torch.cat([getattr(p, name) for p in padded]) for name in ("states", "lengths", "age"))
    )


def _pad(part: Segments, slots: int, steps: int) -> Segments:
    pad = torch.nn.functional.pad
    more = slots - part.states.shape[1]
    states = pad(part.states, (0, 0, 0, steps - part.states.shape[2], 0, more))
    return Segments(states, pad(part.lengths, (0, more)), pad(part.age, (0, more)))
