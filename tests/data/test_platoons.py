"""Simulated roads: every regime is there, physics holds, and truth is what was driven by."""

import numpy as np
import pytest
import torch

from asbc.data.synthetic.platoons import FARTHEST, Roads
from asbc.data.synthetic.regimes import REGIMES
from asbc.errors import InputError


@pytest.fixture(scope="module")
def pairs():
    return Roads(platoons=dict.fromkeys(REGIMES, 12)).pairs()


def of(pairs, regime):
    return pairs.select([i for i, r in enumerate(pairs.recording) if r == regime])


def test_all_regimes_are_there_and_reach_from_standing_to_40(pairs):
    assert set(pairs.recording) == set(REGIMES)
    assert pairs.leader_speed.min() == 0 and 37 < pairs.leader_speed.max() < 44
    standing = {r: float((of(pairs, r).leader_speed < 0.1).float().mean()) for r in REGIMES}
    assert standing["queue"] > 0.2 and standing["lights"] > 0.1 and standing["free"] == 0
    assert of(pairs, "free").leader_speed.mean() > 25 > of(pairs, "congested").leader_speed.mean()
    assert pairs.gap.min() > 0 and pairs.gap.max() < FARTHEST


def test_gaps_are_what_speeds_make_of_them(pairs):
    """25 Hz motion sampled at 5 Hz: the trapezoid of relative speed is the change of the gap."""
    for i in range(0, len(pairs), 7):
        gap, v, lead = (pairs.pair(i)[k].double() for k in ("gap", "speed", "leader_speed"))
        closing = lead - v
        moved = gap[0] + torch.cumsum((closing[1:] + closing[:-1]) / 2 * pairs.dt, 0)
        assert float((moved - gap[1:]).abs().max()) < 0.15


def test_it_is_a_function_of_its_seed_and_a_regime_of_itself(pairs):
    again = Roads(platoons={"lights": 12}).pairs()
    same = of(pairs, "lights")
    assert torch.equal(again.gap, same.gap) and torch.equal(again.true_theta, same.true_theta)
    other = Roads(platoons={"lights": 12}, seed=1).pairs()
    assert len(other) != len(same) or not torch.equal(other.gap, same.gap)


def test_standing_followers_keep_their_own_distance(pairs):
    """In a queue the gap at rest is about s0, whoever the driver is."""
    queue = of(pairs, "queue")
    s0 = queue.true_theta[:, queue.true_names.index("s0")]
    rest = []
    for i in range(len(queue)):
        rows = queue.pair(i)
        still = (rows["speed"] < 0.05) & (rows["leader_speed"] < 0.05)
        rest.append(float(rows["gap"][still].median()) if still.sum() > 25 else np.nan)
    known = ~np.isnan(rest)
    assert known.sum() > 15
    assert np.corrcoef(np.array(rest)[known], s0.numpy()[known])[0, 1] > 0.8


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"platoons": {"moon": 1}}, "data.platoons.moon: no such regime; expected some of queue"),
        ({"platoons": {"free": -1}}, "data.platoons.free"),
        ({"platoons": {"free": 0}}, "no regime has a platoon"),
        ({"followers": 0}, "data.followers"),
        ({"spread": 0.0}, "data.spread"),
        ({"dt": 0.3}, "expected a multiple of 0.04 s"),
    ],
)
def test_bad_settings_are_named(bad, message):
    with pytest.raises(InputError, match=message):
        Roads(**bad)
