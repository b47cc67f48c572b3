"""Other time steps: what is kept, what is interpolated, and that it is said."""

import numpy as np
import pandas as pd
import pytest

from asbc.data.pairs_file import PairsFrame
from asbc.data.resampling import resample
from asbc.errors import InputError


def smooth_table(step: float, seconds: float = 60.0, pair: str = "a") -> pd.DataFrame:
    """A pair whose motion is known at any time."""
    time = np.arange(0, seconds + 1e-9, step)
    return pd.DataFrame(
        {
            "recording": "r",
            "pair_id": pair,
            "follower_id": pair,
            "time": time,
            "gap": 20 + 5 * np.sin(0.3 * time),
            "speed": 10 + 3 * np.sin(0.4 * time),
            "leader_speed": 10 + 3 * np.sin(0.4 * time) + 1.5 * np.cos(0.3 * time),
        }
    )


@pytest.mark.parametrize("step", [0.04, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5])
def test_steps_from_004_to_05_come_to_02(step):
    resampled, done = resample(smooth_table(step), 0.2, "mine")
    truth = smooth_table(0.2)
    assert abs(len(resampled) - len(truth)) <= 2
    truth = truth[: len(resampled)]
    np.testing.assert_allclose(resampled["time"], truth["time"], atol=1e-9)
    for name, tolerance in (("gap", 0.02), ("speed", 0.02), ("leader_speed", 0.03)):
        np.testing.assert_allclose(resampled[name], truth[name], atol=tolerance)
    if step == 0.2:
        assert done == {}
    else:
        how = "thinned" if (0.2 / step) % 1 < 1e-6 or step == 0.04 else "interpolated"
        assert done == {f"pairs of {step:g} s {how} to 0.2 s": 1}


def test_nothing_is_invented_between_samples():
    """Monotone cubics: a standing car stands, and no gap closes."""
    table = smooth_table(0.5).assign(speed=0.0)
    table["gap"] = np.where(np.arange(len(table)) % 2, 0.05, 9.0)
    resampled, _ = resample(table, 0.2, "mine")
    assert (resampled["speed"] == 0).all() and resampled["gap"].min() >= 0.05
    assert resampled["gap"].max() <= 9.0


def test_pairs_of_different_steps_share_a_table():
    parts = [smooth_table(0.2, pair="b"), smooth_table(0.5, pair="a"), smooth_table(0.1, pair="c")]
    source = PairsFrame(frame=pd.concat(parts))
    pairs = source.pairs()
    assert pairs.pair_id == ("r/a", "r/b", "r/c") and pairs.lengths.tolist() == [301, 301, 301]
    assert source.drops == {
        "pairs of 0.5 s interpolated to 0.2 s": 1,
        "pairs of 0.1 s thinned to 0.2 s": 1,
    }


def test_too_coarse_is_refused_with_its_name():
    with pytest.raises(InputError, match="pair a: the recorded time step is 1 s, too coarse"):
        resample(smooth_table(1.0), 0.2, "mine")
