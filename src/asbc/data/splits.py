"""Train, validation and test pairs, split so that no driver is in two of them."""

from collections.abc import Sequence

import numpy as np

from asbc.data.pairset import PairSet
from asbc.utils.checks import InputError
from asbc.utils.random import stream

SPLIT_NAMES = ("train", "validation", "test")


def split_by_follower(
    pairs: PairSet, fractions: Sequence[float], seed: int
) -> tuple[PairSet, PairSet, PairSet]:
    """Divide followers by `fractions`; a follower's pairs stay together.

    The division depends on the set of follower keys and the seed only, not on the order of pairs.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"data.split={list(fractions)}; expected three positive fractions that sum to 1"
        )
    followers = sorted(set(pairs.follower))
    sizes = split_sizes(len(followers), fractions)
    if min(sizes) < 1:
        counted = ", ".join(f"{n}: {s}" for n, s in zip(SPLIT_NAMES, sizes, strict=True))
        raise InputError(
            f"{len(followers)} followers ({len(pairs)} pairs) are too few for "
            f"data.split={list(fractions)} ({counted}); add data, lower data.min_duration or "
            "change data.split"
        )
    order = stream(seed, "split").permutation(len(followers))
    part = np.empty(len(followers), dtype=np.int64)
    part[order] = np.repeat(np.arange(3), sizes)
    part_of = dict(zip(followers, part.tolist(), strict=True))
    member = np.array([part_of[follower] for follower in pairs.follower])
    train, validation, test = (pairs.select(np.flatnonzero(member == p)) for p in range(3))
    return train, validation, test


def split_sizes(count: int, fractions: Sequence[float]) -> tuple[int, int, int]:
    """Followers per split: validation and test rounded to nearest, training takes the rest.

    Example:
        >>> split_sizes(200, (0.6, 0.1, 0.3))
        (120, 20, 60)
        >>> split_sizes(3, (0.6, 0.1, 0.3))
        (2, 0, 1)
    """
    validation, test = (int(count * fraction + 0.5) for fraction in fractions[1:])
    return count - validation - test, validation, test
