"""Batches as slices of whole tensors: no per-sample collation, no worker processes."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Batch = dict[str, Tensor]


class Batches:
    """An iterable of batches; nothing is read or drawn before the first batch is taken.

    Lightning asks for an iterator several times before an epoch, and when resuming before the
    epoch is known. So data and order are looked up as late as possible.

    Args:
        data: returns the tensors to slice, all with the same number of rows.
        order: given the number of rows, returns the order in which to take them.
        batch_size: rows per batch; the last batch may be smaller.
    """

    def __init__(
        self,
        data: Callable[[], Batch],
        batch_size: int,
        order: Callable[[int], Tensor] = torch.arange,
    ) -> None:
        self._data = data
        self._batch_size = batch_size
        self._order = order

    def __len__(self) -> int:
        return -(-_rows(self._data()) // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        data = self._data()
        for index in self._order(_rows(data)).split(self._batch_size):
            yield {name: values[index] for name, values in data.items()}


def _rows(data: Batch) -> int:
    return len(next(iter(data.values())))
