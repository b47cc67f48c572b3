"""Work that the processes of one training share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def shared_map(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The function of each item; of several processes each does its share, and all get all.

    Where processes train together, all of them must call this with the same items.

    Example:
        >>> shared_map(abs, [-1, 2, -3])
        [1, 2, 3]
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [function(item) for item in items]
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    shares: list[Any] = [None] * count
    own = [function(item) for item in items[rank::count]]
    torch.distributed.all_gather_object(shares, own)
    return [shares[i % count][i // count] for i in range(len(items))]
