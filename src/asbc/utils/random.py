"""Random numbers keyed by seed and purpose, and a generator with one stream per row group.

A window's noise, or a pair's posterior draws, then depend on the seed and its own name only: not
on chunks, on which other pairs are evaluated, or on the method under test.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def key(seed: int, *purpose: str | int) -> int:
    """A 63-bit integer that depends on the seed and on every part of the purpose.

    Example:
        >>> key(0, "warm-up", 1) == key(0, "warm-up", 1)
        True
        >>> key(0, "warm-up", 1) == key(0, "warm-up", 2)
        False
    """
    text = repr((int(seed), *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """A fresh generator for one purpose, e.g. `stream(seed, "hold-out")`."""
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


def standard_normal(
    rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Independent N(0, 1) draws as a tensor."""
    return torch.from_numpy(rng.standard_normal(shape, dtype=_numpy_dtype(dtype)))


def uniform(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Independent U[0, 1) draws as a tensor."""
    return torch.from_numpy(rng.random(shape, dtype=_numpy_dtype(dtype)))


def _numpy_dtype(dtype: torch.dtype) -> type[np.float32] | type[np.float64]:
    return np.float64 if dtype == torch.float64 else np.float32


class RowStreams(np.random.Generator):
    """A generator whose draws of (groups * rows, ...) come group by group from own streams.

    It draws normal and uniform numbers only. Whatever else numpy's generator can do raises: it
    would come from the one stream underneath, with the same numbers in every chunk of rows.
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        super().__init__(np.random.PCG64(0))
        self._streams = list(streams)

    def __reduce__(self) -> Any:
        return type(self), (self._streams,)  # numpy's own copies the stream underneath

    def __repr__(self) -> str:
        return f"RowStreams of {len(self._streams)} groups"

    __str__ = __repr__

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """N(0, 1) draws; the first axis is split evenly over the groups."""
        return self._by_group(
            size, dtype, out, lambda rng, part: rng.standard_normal(dtype=dtype, out=part)
        )

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """U[0, 1) draws; the first axis is split evenly over the groups."""
        return self._by_group(
            size, dtype, out, lambda rng, part: rng.random(dtype=dtype, out=part)
        )

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        """Children in order of the groups, each from its group's stream."""
        self._require_whole_groups(n_children)
        each = n_children // len(self._streams)
        return [child for rng in self._streams for child in rng.spawn(each)]

    def _by_group(
        self,
        size: Any,
        dtype: Any,
        out: Any,
        fill: Callable[[np.random.Generator, np.ndarray], Any],
    ) -> np.ndarray:
        if out is not None:
            raise TypeError("RowStreams fills no array of yours; give the size instead")
        shape = (size,) if isinstance(size, int) else tuple(size or (0,))
        self._require_whole_groups(shape[0])
        result = np.empty(shape, dtype=dtype)
        groups = result.reshape(len(self._streams), -1)
        for rng, part in zip(self._streams, groups, strict=True):
            fill(rng, part)
        return result

    def _require_whole_groups(self, rows: int) -> None:
        if not rows or rows % len(self._streams):
            raise ValueError(f"{rows} rows cannot be split over {len(self._streams)} streams")


def _refuse(name: str) -> property:
    def refuse(self: RowStreams) -> Any:
        raise TypeError(
            f"RowStreams has no {name}: it would give every chunk of rows the same numbers; draw "
            "with standard_normal or random and transform, or add the method to RowStreams"
        )

    return property(refuse)


# By introspection, so that what a later numpy adds is refused as well.
for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name not in vars(RowStreams):
        setattr(RowStreams, _name, _refuse(_name))


def keyed(names: Sequence[str], seed: int, purpose: str) -> RowStreams:
    """A stream for each name, whatever other names there are."""
    return RowStreams([stream(seed, purpose, name) for name in names])
