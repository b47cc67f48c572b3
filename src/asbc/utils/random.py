"""Keyed randomness: every draw comes from a generator that is a pure function of its key.

Nothing about randomness has to be saved: a run that is killed and resumed asks for the same keys
and gets the same numbers. NumPy's generators fill arrays in row-major order, one value after the
other, so the first rows of a large draw equal a smaller draw from the same key.
"""

import hashlib

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
