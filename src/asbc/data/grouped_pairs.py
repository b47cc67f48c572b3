"""Pairs with those of one driver side by side: who has enough of them, and where each begins."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from asbc.data.pairs import Pairs


def group_by_driver(pairs: Pairs, shortest: int) -> tuple[Pairs, dict[str, str]]:
    """The pairs in the order of their drivers, and why some drivers are left out.

    Drivers are in the order of recording and follower, a driver's pairs in the order they had.

    Args:
        pairs: in any order.
        shortest: samples that a driver's longest pair must have.
    """
    key = [
        name.removeprefix(f"{r}/") for name, r in zip(pairs.follower, pairs.recording, strict=True)
    ]
    order = sorted(range(len(pairs)), key=lambda i: (pairs.recording[i], key[i], i))
    lengths = pairs.lengths.tolist()
    longest: dict[str, int] = {}
    for i in order:
        longest[pairs.follower[i]] = max(lengths[i], longest.get(pairs.follower[i], 0))
    bad = {
        name: f"recorded for {length * pairs.dt:g} s at a time at the most, but a segment has "
        f"{shortest * pairs.dt:g} s or more; leave this driver out"
        for name, length in longest.items()
        if length < shortest
    }
    return pairs.select([i for i in order if pairs.follower[i] not in bad]), bad


def driver_edges(followers: Sequence[str]) -> np.ndarray:
    """First pair of each driver, and the number of pairs, where those of one are side by side.

    Example:
        >>> driver_edges(["r/1", "r/1", "r/2", "r/3", "r/3"])
        array([0, 2, 3, 5])
    """
    names = np.asarray(followers, dtype=object)
    return np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1], [True]]))


def name_hashes(names: Iterable[str]) -> bytes:
    """A hash of 8 bytes for each name."""
    return b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)


def repeated(hashes: Iterable[bytes]) -> set[bytes]:
    """The hashes, of `name_hashes`, that occur more than once."""
    keys = np.frombuffer(b"".join(hashes), np.uint64)
    found, count = np.unique(keys, return_counts=True)
    return {key.tobytes() for key in found[count > 1]}
