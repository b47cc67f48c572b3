"""Grouped streams draw what each group's own generator would draw, and nothing else."""

import pickle
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from asbc.utils.random import RowStreams, stream

DRAWN = {"standard_normal", "random", "spawn"}
OTHERS = [n for n in dir(np.random.Generator) if not n.startswith("_") and n not in DRAWN]


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


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_split_is_refused(name: str) -> None:
    """numpy's own methods would draw from one stream, the same in every chunk of rows."""
    assert len(OTHERS) > 40  # not an empty list after a change of numpy
    with pytest.raises(TypeError, match=f"no {name}: .*standard_normal or random"):
        getattr(grouped("a", "b"), name)


def test_an_array_to_fill_is_never_ignored() -> None:
    for draw in (grouped("a").standard_normal, grouped("a").random):
        with pytest.raises(TypeError, match="fills no array"):
            draw(out=np.zeros(3))


@pytest.mark.parametrize("copy", [deepcopy, lambda rng: pickle.loads(pickle.dumps(rng))])
def test_copies_draw_the_same(copy: Callable[[RowStreams], RowStreams]) -> None:
    rng = grouped("a", "b")
    other = copy(rng)
    assert isinstance(other, RowStreams) and str(other) == str(rng) == "RowStreams of 2 groups"
    np.testing.assert_array_equal(other.random((4, 3)), rng.random((4, 3)))
