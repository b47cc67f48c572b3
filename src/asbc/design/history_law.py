"""How much is known of a driver in training: how many segments, how long and how old.

At the time of a prediction a driver has been seen for seconds or for minutes, in one drive or in
several. Training draws all of these, so that one posterior serves them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asbc.data.history import UNKNOWN, cut, shortest_steps
from asbc.utils.checks import check_integer, check_number

# Share of single segments that have the full length, as `first` and `latest` contexts have.
FULL = 0.6


@dataclass(frozen=True)
class HistoryLaw:
    """The distribution of segments of a driver.

    Some drivers have a single segment. The others have one drive or several, each of a length that
    is log-uniform from the shortest segment to `max_segments` full ones, cut as
    `asbc.data.history.cut` does. Between drives there is an exponential time, of which half of the
    drivers do not know how long it was.

    Args:
        max_segments: segments of a driver at most.
        shortest: seconds of the shortest segment.
        single: share of drivers with one segment.
        several_drives: share, among the others, of drivers with two drives or more.
        pause: mean seconds between drives.
    """

    max_segments: int = 8
    shortest: float = 3.0
    single: float = 0.35
    several_drives: float = 0.5
    pause: float = 120.0

    def __post_init__(self) -> None:
        check_integer("history.max_segments", self.max_segments, minimum=1)
        check_number("history.shortest", self.shortest, above=0)
        check_number("history.law.pause", self.pause, above=0)
        for name in ("single", "several_drives"):
            check_number(f"history.law.{name}", getattr(self, name), minimum=0)

    def draw(
        self, count: int, steps: int, dt: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Lengths (count, J) in samples, 0 for none, and ages (count, J) in s; newest first."""
        lengths = torch.zeros(count, self.max_segments, dtype=torch.int64)
        age = torch.zeros(count, self.max_segments)
        for row in range(count):
            for slot, (length, seconds) in enumerate(self._driver(steps, dt, rng)):
                lengths[row, slot], age[row, slot] = length, seconds
        return lengths, age

    def _driver(self, steps: int, dt: float, rng: np.random.Generator) -> list[tuple[int, float]]:
        shortest = min(steps, shortest_steps(self.shortest, dt))
        if rng.random() < self.single or self.max_segments == 1:
            full = rng.random() < FULL
            return [(steps if full else int(rng.integers(shortest, steps + 1)), 0.0)]
        drives = 1 + (rng.geometric(0.6) if rng.random() < self.several_drives else 0)
        known = rng.random() < 0.5
        found: list[tuple[int, float]] = []
        since = 0.0  # from the end of a drive to the newest sample
        for _ in range(drives):
            longest = np.log(self.max_segments * steps / shortest)
            samples = int(shortest * np.exp(longest * rng.random()))
            for start, length in cut(samples, steps, shortest):
                old = since + (samples - start - length) * dt
                found.append((length, old if known or since == 0.0 else UNKNOWN))
            since += samples * dt + rng.exponential(self.pause)
        return found[: self.max_segments]
