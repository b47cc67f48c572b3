"""Synthetic recordings: what they look like, and that true theta is what the drivers drove by."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asbc.data.synthetic.dataset import Synthetic
from asbc.data.synthetic.regimes import STOP_AND_GO, leader_speeds
from asbc.data.synthetic.road import DT, matern_noise
from asbc.data.synthetic.true_drivers import THETA_NAMES, draw_drivers
from asbc.data.windows import leader_windows
from asbc.errors import InputError

PRIOR = {"v0": (20, 40), "s0": (1, 6), "T": (0.6, 4.5), "a_max": (0.2, 3.5), "b": (0.4, 4)}
SMALL = {"recordings": 1, "platoon": 6, "duration": 90.0, "lanes": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Synthetic:
    return Synthetic(cache_dir=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def tracks(source) -> pd.DataFrame:
    parts = []
    for path in sorted(source.folder.glob("*_tracks.csv")):
        meta = pd.read_csv(path.with_name(path.name.replace("tracks", "tracksMeta")))
        parts.append(pd.read_csv(path).merge(meta, on="id", suffixes=("", "_meta")))
    return pd.concat(parts, keys=range(len(parts)), names=["recording"]).reset_index("recording")


def matern(lag: np.ndarray, ell: np.ndarray) -> np.ndarray:
    z = np.sqrt(5) * lag / ell
    return (1 + z + z**2 / 3) * np.exp(-z)


def test_default_size_and_splits(source):
    splits = source.splits()
    assert 250 <= len(set(source.pairs().follower)) <= 400
    assert min(len(splits.train), len(splits.validation), len(splits.test)) >= 20
    assert splits.summary.drops["segments shorter than 40 s"] > 10
    assert splits.test.true_theta.shape == (len(splits.test), len(THETA_NAMES))


def test_files_are_shaped_like_highd(source):
    names = {path.name for path in source.folder.iterdir()}
    kinds = ("tracks", "tracksMeta", "recordingMeta", "trueTheta")
    assert names == {f"{n}_{kind}.csv" for n in ("01", "02") for kind in kinds}
    header = (source.folder / "01_tracks.csv").open().readline().strip().split(",")
    assert header == [
        *("frame", "id", "x", "y", "width", "height", "xVelocity", "yVelocity", "xAcceleration"),
        *("yAcceleration", "frontSightDistance", "backSightDistance", "dhw", "thw", "ttc"),
        *("precedingXVelocity", "precedingId", "followingId", "leftPrecedingId"),
        *("leftAlongsideId", "leftFollowingId", "rightPrecedingId", "rightAlongsideId"),
        *("rightFollowingId", "laneId"),
    ]
    meta = (source.folder / "01_tracksMeta.csv").open().readline().strip().split(",")
    assert meta == [
        *("id", "width", "height", "initialFrame", "finalFrame", "numFrames", "class"),
        *("drivingDirection", "traveledDistance", "minXVelocity", "maxXVelocity"),
        *("meanXVelocity", "minDHW", "minTHW", "minTTC", "numLaneChanges"),
    ]
    recording = pd.read_csv(source.folder / "01_recordingMeta.csv")
    assert recording.shape == (1, 15)
    assert recording["frameRate"][0] == 25


def test_traffic_has_what_real_traffic_has(tracks):
    vehicles = tracks.groupby(["recording", "id"])
    first = vehicles.first()
    assert set(first["class"]) == {"Car", "Truck"}
    assert first.groupby("class")["width"].median()["Truck"] > 8
    assert set(first["drivingDirection"]) == {1, 2}
    # Direction 1 drives to -x in the upper lanes, direction 2 to +x in the lower ones.
    assert (tracks.loc[tracks["drivingDirection"] == 1, "xVelocity"] <= 0).all()
    assert (tracks.loc[tracks["drivingDirection"] == 2, "xVelocity"] >= 0).all()
    assert set(tracks.loc[tracks["drivingDirection"] == 1, "laneId"]) == {2, 3}
    assert set(tracks.loc[tracks["drivingDirection"] == 2, "laneId"]) == {5, 6}
    changed = vehicles["laneId"].nunique() > 1
    assert changed.sum() >= 5
    assert (first.loc[changed, "numLaneChanges"] >= 1).all()
    # Some leave before the end of the road and of the recording: their followers lose a leader.
    last = vehicles.last()
    ended = (last["frontSightDistance"] > 30) & (last["frame"] < tracks["frame"].max())
    assert ended.sum() >= 3
    assert (first["numFrames"] < 1000).sum() >= 10


def test_boxes_never_overlap_in_a_lane(tracks):
    for _, lane in tracks.groupby(["recording", "laneId"]):
        lane = lane.sort_values(["frame", "x"])
        same = lane["frame"].diff() == 0
        room = lane["x"] - (lane["x"] + lane["width"]).shift()
        assert room[same].min() > 0


def test_leader_and_follower_columns_agree(tracks):
    """precedingId names the nearest box ahead in the lane, followingId is its inverse."""
    some = tracks[(tracks["frame"] % 500 == 0)]
    for (_, _, lane), group in some.groupby(["recording", "frame", "laneId"]):
        group = group.sort_values("x", ascending=lane >= 5)  # last is the farthest ahead
        ahead = [*group["id"].tolist()[1:], 0]
        assert group["precedingId"].tolist() == ahead
        assert group["followingId"].tolist() == [0, *group["id"].tolist()[:-1]]


def test_congested_driving_within_physics_limits(source):
    pairs = source.pairs()
    assert 4 < pairs.speed.mean() < 10.5
    assert 0.005 < (pairs.leader_speed < 0.5).float().mean() < 0.3  # stop and go
    assert pairs.leader_speed.max() < 25
    speed = leader_windows(pairs, 75, 50).leader_speed.double().numpy()
    acceleration = np.diff(speed, axis=1) / 0.2
    assert np.abs(acceleration).max() <= 10
    assert np.abs(np.diff(acceleration, axis=1) / 0.2).max() <= 20
    assert pairs.gap.min() > 0.3


def test_drivers_drove_by_their_true_theta(source):
    """What IDM with true theta leaves unexplained is noise of the stated size and length."""
    pairs = source.pairs()
    ratios, correlations, expected = [], [], []
    for index in range(len(pairs)):
        state = {k: v.double().numpy() for k, v in pairs.pair(index).items()}
        v0, s0, headway, a_max, b, sigma, ell = pairs.true_theta[index].double().numpy()
        v, dv = state["speed"], state["speed"] - state["leader_speed"]
        wish = s0 + np.maximum(0, v * headway + v * dv / (2 * np.sqrt(a_max * b)))
        law = a_max * (1 - (v / v0) ** 4 - (wish / state["gap"]) ** 2)
        noise = np.where(v > 0.3, state["acceleration"] - law, np.nan)  # free of the floor at 0
        if np.isnan(noise).mean() > 0.3:
            continue
        ratios.append(np.nanmean(noise**2) / sigma**2)
        correlations.append(np.nanmean(noise[5:] * noise[:-5]) / sigma**2)  # 1 s apart
        expected.append(matern(1.0, ell))
    assert len(ratios) > 150
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.1)
    assert np.mean(correlations) == pytest.approx(np.mean(expected), abs=0.1)


def test_true_theta_belongs_to_the_follower(source):
    pairs = source.pairs()
    recording, track = pairs.follower[17].split("/")
    table = pd.read_csv(source.folder / f"{recording}_trueTheta.csv").set_index("id")
    np.testing.assert_allclose(pairs.true_theta[17], table.loc[int(track), list(THETA_NAMES)])
    assert pairs.true_names == THETA_NAMES


def test_population_is_inside_the_prior_and_not_flat():
    drivers = draw_drivers(4000, 0.2, np.random.default_rng(0))
    theta = pd.DataFrame(drivers.theta, columns=THETA_NAMES)
    for name, (low, high) in PRIOR.items():
        assert low <= theta[name].min() and theta[name].max() <= high
        assert theta[name].std() < 0.65 * (high - low) / np.sqrt(12)
    cars, trucks = theta[~drivers.is_truck], theta[drivers.is_truck]
    assert np.corrcoef(np.log(cars["T"]), np.log(cars["a_max"]))[0, 1] < -0.25
    assert trucks["a_max"].median() < cars["a_max"].median()
    assert trucks["v0"].median() < cars["v0"].median()


def test_noise_has_the_matern_covariance():
    ell = np.full(4000, 1.3)
    noise = matern_noise(np.full(4000, 0.2), ell, 200, np.random.default_rng(0))
    for lag in (0, 5, 25, 75):
        found = np.mean(noise[:, 50] * noise[:, 50 + lag]) / 0.2**2
        assert found == pytest.approx(matern(lag * DT, 1.3), abs=0.06)


def test_leader_profiles_are_smooth():
    speed = leader_speeds(STOP_AND_GO, 20, 5000, np.random.default_rng(0))
    acceleration = np.diff(speed, axis=1) / DT
    assert speed.min() >= 0 and speed.max() <= 14
    assert np.abs(acceleration).max() < 1.7  # m/s^2
    assert np.abs(np.diff(acceleration, axis=1)).max() / DT < 25  # where a ramp meets a hold


def test_same_seed_same_files_and_written_once(tmp_path, same_pairs):
    first = Synthetic(cache_dir=str(tmp_path / "a"), **SMALL, seed=3)
    second = Synthetic(cache_dir=str(tmp_path / "b"), **SMALL, seed=3)
    other = Synthetic(cache_dir=str(tmp_path / "a"), **SMALL, seed=4)
    assert first.folder.name == second.folder.name != other.folder.name
    for path in first.folder.iterdir():
        assert path.read_bytes() == (second.folder / path.name).read_bytes()
    assert (first.folder / "01_tracks.csv").read_bytes() != (
        other.folder / "01_tracks.csv"
    ).read_bytes()
    stamp = (first.folder / "01_tracks.csv").stat().st_mtime_ns
    again = Synthetic(cache_dir=str(tmp_path / "a"), **SMALL, seed=3)
    same_pairs(again.pairs(), first.pairs())
    assert (again.folder / "01_tracks.csv").stat().st_mtime_ns == stamp


def test_context_and_split_settings_share_the_files(tmp_path):
    folders = {
        Synthetic(cache_dir=str(tmp_path), **SMALL, context_steps=steps, split_seed=steps).folder
        for steps in (10, 75)
    }
    assert len(folders) == 1


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asbc.data.synthetic.dataset.write_recording", fail)
    with pytest.raises(KeyboardInterrupt):
        _ = Synthetic(cache_dir=str(tmp_path), **SMALL).folder
    assert not list(Path(tmp_path).iterdir())


def test_bad_settings():
    with pytest.raises(InputError, match="data.platoon=0"):
        Synthetic(platoon=0)
