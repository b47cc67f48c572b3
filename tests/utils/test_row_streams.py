"""Grouped streams draw what each group's own generator would draw."""

import numpy as np
import pytest

from asbc.utils.random import RowStreams, stream


def grouped(*names: str) -> RowStreams:
    return RowStreams([stream(0, name) for name in names])


def test_each_group_draws_from_its_own_stream() -> None:
    together = grouped("a", "b").standard_normal((6, 4), dtype=np.float32)
    np.testing.assert_array_equal(
        together[3:], stream(0, "b").standard_normal((3, 4), dtype=np.float32)
    )
    np.testing.assert_array_equal(grouped("a").random(5), stream(0, "a").random(5))


def test_children_belong_to_their_group() -> None:
    children = grouped("a", "b").spawn(4)
    expected = stream(0, "b").spawn(2)
    for ours, theirs in zip(children[2:], expected, strict=True):
        assert ours.random() == theirs.random()


def test_rows_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot be split over 2 streams"):
        grouped("a", "b").random(3)
