"""Pairs, windows and splits against brute-force definitions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.data.source import split_by_follower
from asbc.data.table import check_format
from asbc.data.windows import evaluation_windows, gather, leader_windows
from asbc.errors import InputError


@pytest.fixture
def pairs(make_table) -> Pairs:
    """Seven pairs of different lengths; pairs 0 and 1 share a follower. They only look driven."""
    parts = [
        make_table(pairs=1, samples=60 + 37 * i).assign(
            pair_id=f"p{i}", follower_id=f"f{max(i, 1)}"
        )
        for i in range(7)
    ]
    table = pd.concat(parts, ignore_index=True)
    table["gap"] = 5.0 + np.arange(len(table))  # every row is recognisable
    table["leader_speed"] = 1.0 + np.arange(len(table)) / 1000
    return Pairs.from_table(check_format(table, "test"), 0.2)


def test_acceleration_is_the_forward_difference(pairs):
    for index in range(len(pairs)):
        pair = pairs.pair(index)
        expected = np.diff(pair["speed"].double().numpy()) / 0.2
        np.testing.assert_allclose(pair["acceleration"][:-1], expected, atol=1e-4)
        assert pair["acceleration"][-1] == pair["acceleration"][-2]


def test_given_acceleration_is_kept(make_table):
    table = make_table(acceleration=0.25)
    pairs = Pairs.from_table(check_format(table, "test"), 0.2)
    assert (pairs.acceleration == 0.25).all()


def test_select_takes_whole_pairs_in_order(pairs):
    order = [5, 0, 3]
    chosen = pairs.select(order)
    assert chosen.pair_id == tuple(pairs.pair_id[i] for i in order)
    for new, old in enumerate(order):
        for name, values in pairs.pair(old).items():
            assert torch.equal(chosen.pair(new)[name], values)
    assert len(pairs.select([])) == 0


def test_select_keeps_true_theta(pairs):
    known = replace(pairs, true_theta=torch.arange(14.0).reshape(7, 2), true_names=("a", "b"))
    assert known.select([4, 1]).true_theta.tolist() == [[8, 9], [2, 3]]


def test_contexts_are_the_first_states(pairs):
    contexts = pairs.contexts(50)
    assert contexts.shape == (7, 50, 3)
    pair = pairs.pair(4)
    assert torch.equal(contexts[4, :, 0], pair["gap"][:50])
    assert torch.equal(contexts[4, :, 1], pair["speed"][:50])
    assert torch.equal(contexts[4, :, 2], pair["speed"][:50] - pair["leader_speed"][:50])
    with pytest.raises(InputError, match="data.context_steps=61"):
        pairs.contexts(61)


def test_leader_windows_match_slicing(pairs):
    windows = leader_windows(pairs, steps=75, stride=50)
    expected = [
        (i, start)
        for i in range(len(pairs))
        for start in range(0, int(pairs.lengths[i]) - 75 + 1, 50)
    ]
    found = list(zip(windows.pair.tolist(), windows.start.tolist(), strict=True))
    assert found == expected
    for k, (i, start) in enumerate(expected):
        pair = pairs.pair(i)
        assert torch.equal(windows.leader_speed[k], pair["leader_speed"][start : start + 75])
        assert (windows.gap[k], windows.speed[k]) == (pair["gap"][start], pair["speed"][start])


@pytest.mark.parametrize(("cap", "first"), [(20, 0), (3, 0), (20, 75)])
def test_evaluation_windows_match_the_protocol(pairs, cap, first):
    windows = evaluation_windows(pairs, horizon=50, stride=20, max_windows=cap, first_start=first)
    expected = []
    for i in range(len(pairs)):
        starts = range(first, int(pairs.lengths[i]) - 50, 20)  # samples start .. start + 50
        expected += [(i, start) for start in starts][:cap]
    assert list(zip(windows.pair.tolist(), windows.start.tolist(), strict=True)) == expected
    assert windows.horizon == 50


def test_gather_never_leaves_a_pair(pairs):
    last = int(pairs.lengths[2]) - 10
    inside = gather(pairs.gap, pairs.offsets, torch.tensor([2]), torch.tensor([last]), steps=10)
    assert torch.equal(inside[0], pairs.pair(2)["gap"][-10:])
    for start in (last + 1, -1):
        with pytest.raises(InputError, match="does not fit inside its pair"):
            gather(pairs.gap, pairs.offsets, torch.tensor([2]), torch.tensor([start]), steps=10)


def test_windows_refuse_nonsense(pairs):
    with pytest.raises(InputError, match="stride=0"):
        leader_windows(pairs, steps=75, stride=0)


def test_split_keeps_followers_together_and_ignores_order(make_table):
    second = make_table(pairs=40, samples=5)
    second["pair_id"] += "-again"
    table = pd.concat([make_table(pairs=100, samples=5), second])
    pairs = Pairs.from_table(check_format(table, "test"), 0.2)
    parts = split_by_follower(pairs, (0.6, 0.1, 0.3), seed=0)
    drivers = [set(part.follower) for part in parts]
    assert [len(d) for d in drivers] == [60, 10, 30]
    assert sum(len(part) for part in parts) == 140
    assert len(set.union(*drivers)) == 100
    backwards = pairs.select(range(139, -1, -1))
    again = split_by_follower(backwards, (0.6, 0.1, 0.3), seed=0)
    assert [set(part.follower) for part in again] == drivers
    other = split_by_follower(pairs, (0.6, 0.1, 0.3), seed=1)
    assert [set(part.follower) for part in other] != drivers


def test_too_few_followers_for_a_split(make_table):
    pairs = Pairs.from_table(check_format(make_table(pairs=4, samples=5), "test"), 0.2)
    with pytest.raises(InputError, match="4 followers .4 pairs. are too few.*validation: 0"):
        split_by_follower(pairs, (0.6, 0.1, 0.3), seed=0)


@pytest.mark.parametrize("fractions", [(0.6, 0.4), (0.6, 0.1, 0.2), (1.0, 0.0, 0.0)])
def test_bad_fractions(pairs, fractions):
    with pytest.raises(InputError, match="data.split"):
        split_by_follower(pairs, fractions, seed=0)
