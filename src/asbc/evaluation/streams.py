"""One stream of random numbers per window, behind the interface of a single generator.

A window's noise then depends on the seed, its pair and its start only: not on how windows are
chunked, on which other pairs are evaluated, or on the method under test.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asbc.utils.random import stream


class WindowStreams(np.random.Generator):
    """A generator whose draws of (window * rows, ...) come window by window from own streams."""

    def __init__(self, seed: int, windows: Sequence[tuple[str, int]]) -> None:
        super().__init__(np.random.PCG64(0))
        self._streams = [stream(seed, "rollout", pair_id, start) for pair_id, start in windows]

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """N(0, 1) draws; the first axis is split evenly over the windows."""
        return self._per_window(
            size, dtype, lambda rng, part: rng.standard_normal(dtype=dtype, out=part)
        )

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """U[0, 1) draws; the first axis is split evenly over the windows."""
        return self._per_window(size, dtype, lambda rng, part: rng.random(dtype=dtype, out=part))

    def _per_window(
        self, size: Any, dtype: Any, fill: Callable[[np.random.Generator, np.ndarray], Any]
    ) -> np.ndarray:
        shape = (size,) if isinstance(size, int) else tuple(size or ())
        if not shape or shape[0] % len(self._streams):
            raise ValueError(f"size {size}: first axis must hold {len(self._streams)} windows")
        result = np.empty(shape, dtype=dtype)
        parts = result.reshape(len(self._streams), -1)
        for rng, part in zip(self._streams, parts, strict=True):
            fill(rng, part)
        return result
