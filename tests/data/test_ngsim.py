"""The NGSIM loader on hand-made files: feet, frames and ids that mean different vehicles."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.signal import savgol_filter

from asbc.data.ngsim import FOOT, NGSIM, TEXT_COLUMNS
from asbc.errors import InputError

PORTAL_COLUMNS = [
    *("Vehicle_ID", "Frame_ID", "Total_Frames", "Global_Time", "Local_X", "Local_Y", "Global_X"),
    *("Global_Y", "v_length", "v_Width", "v_Class", "v_Vel", "v_Acc", "Lane_ID", "O_Zone"),
    *("D_Zone", "Int_ID", "Section_ID", "Direction", "Movement", "Preceding", "Following"),
    *("Space_Headway", "Time_Headway", "Location"),
]
CLOCK = 1_113_433_136_100  # ms


def track(vehicle, y0, speed, preceding, frames=(1, 450), length=15.0, kind=2, wobble=0.0):
    """Feet and feet per second; `wobble` adds a slow swing of the position."""
    frame = np.arange(frames[0], frames[1] + 1)
    t = frame / 10
    rows = pd.DataFrame(0.0, index=range(len(frame)), columns=TEXT_COLUMNS)
    rows["vehicle_id"], rows["frame_id"], rows["preceding"] = vehicle, frame, preceding
    rows["global_time"] = CLOCK + 100 * frame
    rows["local_y"] = y0 + speed * t + wobble * np.sin(t / 3)
    rows["v_vel"] = speed + wobble / 3 * np.cos(t / 3)
    rows["v_acc"] = -wobble / 9 * np.sin(t / 3)
    rows["v_length"], rows["v_class"] = length, kind
    ids = ["vehicle_id", "frame_id", "preceding", "global_time", "v_class"]
    return rows.astype(dict.fromkeys(ids, np.int64))


def scene(shift: float = 0.0) -> pd.DataFrame:
    """Truck 2 leads car 5; car 9 follows 5 until frame 430, then has no leader."""
    last = track(9, 0 + shift, 30, preceding=5, wobble=4.0)
    last.loc[last["frame_id"] > 430, "preceding"] = 0
    return pd.concat(
        [
            track(2, 400, 30, preceding=0, length=60.0, kind=3),
            track(5, 200 + shift, 30, preceding=2),
            last,
        ]
    )


def write_text(path: Path, rows: pd.DataFrame) -> Path:
    path.write_text("\n".join("  ".join(f"{v:.10g}" for v in r) for r in rows.to_numpy()) + "\n")
    return path


def write_portal(path: Path, rows: pd.DataFrame, location: str = "i-80") -> Path:
    named = rows.rename(columns={c.lower(): c for c in PORTAL_COLUMNS}).assign(Location=location)
    named.reindex(columns=PORTAL_COLUMNS).to_csv(path, index=False)
    return path


@pytest.fixture
def load(tmp_path):
    def load(root: Path, **settings) -> NGSIM:
        return NGSIM(root=str(root), cache_dir=str(tmp_path / "cache"), **settings)

    return load


def test_known_gaps_in_metres(load, tmp_path):
    pairs = load(write_text(tmp_path / "trajectories-0400.txt", scene())).pairs()
    found = {name: pairs.pair(i) for i, name in enumerate(pairs.pair_id)}
    lengths = {name.rpartition("/")[2]: len(pair["gap"]) for name, pair in found.items()}
    assert lengths == {"5-2@0.0": 225, "9-5@0.0": 215}
    # Net gap: front of the leader minus its length minus front of the follower.
    first = found["trajectories-0400/5-2@0.0"]
    torch.testing.assert_close(first["gap"], torch.full((225,), (400 - 60 - 200) * FOOT))
    t = torch.arange(215, dtype=torch.float64) * 0.2 + 0.1
    second = found["trajectories-0400/9-5@0.0"]
    gap = (200 - 15 - 4 * torch.sin(t / 3)) * FOOT
    torch.testing.assert_close(second["gap"].double(), gap, rtol=0, atol=1e-4)
    speed = (30 + 4 / 3 * torch.cos(t / 3)) * FOOT
    torch.testing.assert_close(second["speed"].double(), speed, rtol=0, atol=1e-4)
    torch.testing.assert_close(second["leader_speed"], torch.full((215,), 30 * FOOT))
    assert pairs.follower_class == ("car", "car")


def test_two_files_whose_ids_collide(load, tmp_path, same_pairs):
    for order, folder in enumerate(("a", "b")):
        root = tmp_path / folder
        root.mkdir()
        files = [("0400.txt", 0.0), ("0500.txt", 50.0)]
        for name, shift in files if order == 0 else files[::-1]:
            rows = scene(shift).sample(frac=1, random_state=order)
            write_text(root / name, rows)
    pairs = load(tmp_path / "a").pairs()
    assert pairs.follower == ("0400/5", "0400/9", "0500/5", "0500/9")
    gaps = [round(float(pairs.pair(i)["gap"][0]) / FOOT) for i in (0, 2)]
    assert gaps == [140, 90]
    same_pairs(pairs, load(tmp_path / "b").pairs())


def test_portal_csv_and_text_agree(load, tmp_path, same_pairs):
    text = load(write_text(tmp_path / "x.txt", scene())).pairs()
    (tmp_path / "portal").mkdir()
    portal = load(write_portal(tmp_path / "portal" / "x.csv", scene())).pairs()
    assert portal.recording == ("x:i-80",) * 2
    for name in ("gap", "speed", "leader_speed", "acceleration"):
        torch.testing.assert_close(getattr(portal, name), getattr(text, name))


def test_recordings_inside_one_portal_file_are_told_apart(load, tmp_path):
    """Same ids and frames, another site or an hour later on the clock: other vehicles."""
    later = scene(50.0).assign(global_time=lambda rows: rows["global_time"] + 3_600_000)
    here = pd.concat([scene(), later]).assign(Location="i-80")
    there = scene().assign(Location="us-101")
    city = scene().assign(Location="peachtree")
    rows = pd.concat([here, there, city]).rename(columns={c.lower(): c for c in PORTAL_COLUMNS})
    path = tmp_path / "all.csv"
    rows.sample(frac=1, random_state=0).reindex(columns=PORTAL_COLUMNS).to_csv(path, index=False)
    source = load(path)
    pairs = source.pairs()
    assert sorted(set(pairs.recording)) == ["all:i-80:1", "all:i-80:2", "all:us-101"]
    assert len(pairs) == 6
    assert source._prepared.drops["rows at other locations"] == len(city)
    assert len(load(path, locations=None).pairs()) == 8


def test_exact_repetitions_are_dropped_and_counted(load, tmp_path, same_pairs):
    rows = scene()
    once = load(write_text(tmp_path / "x.txt", rows)).pairs()
    (tmp_path / "twice").mkdir()
    twice = load(write_text(tmp_path / "twice" / "x.txt", pd.concat([rows, rows[:100]])))
    same_pairs(once, twice.pairs())
    assert twice._prepared.drops["rows that repeat another exactly"] == 100


def test_smoothing_is_savitzky_golay_on_positions(load, tmp_path):
    rows = scene()
    rng = np.random.default_rng(0)
    rows["local_y"] += rng.normal(0, 0.5, len(rows))
    path = write_text(tmp_path / "x.txt", rows)
    smooth, raw = load(path, smoothing=2.0).pairs(), load(path).pairs()
    position = {v: rows.loc[rows["vehicle_id"] == v, "local_y"].to_numpy() for v in (2, 5)}
    front = {v: savgol_filter(y * FOOT, 21, 3) for v, y in position.items()}
    speed = savgol_filter(position[5] * FOOT, 21, 3, deriv=1, delta=0.1)
    expected = (front[2] - 60 * FOOT - front[5])[::2]
    np.testing.assert_allclose(smooth.pair(0)["gap"], expected, atol=1e-4)
    np.testing.assert_allclose(smooth.pair(0)["speed"], speed[::2], atol=1e-4)
    assert smooth.pair(0)["gap"].std() < 0.6 * raw.pair(0)["gap"].std()
    with pytest.raises(InputError, match="data.smoothing=0.3"):
        load(path, smoothing=0.3).pairs()


def damage(rows: pd.DataFrame, column: str, value: object) -> pd.DataFrame:
    rows = rows.reset_index(drop=True)
    rows[column] = rows[column].astype(object)
    rows.loc[500, column] = value
    return rows


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("preceding", 77, ["vehicle 5 at frame 51", "vehicle 77", "skip_defects"]),
        ("local_y", 5000.0, ["gap <= 0", "pair 5-2@0.0", "skip_defects"]),
        ("frame_id", 50, ["vehicle 5 has frame 50 twice"]),
    ],
)
def test_bad_values_are_named(column, value, expected, load, tmp_path):
    path = write_text(tmp_path / "x.txt", damage(scene(), column, value))
    with pytest.raises(InputError) as error:
        load(path).pairs()
    for part in [str(path), "line 501", *expected]:
        assert part in str(error.value)


def test_damaged_text_files_are_named(load, tmp_path):
    path = write_text(tmp_path / "x.txt", scene())
    lines = path.read_text().splitlines()
    damaged = {
        "empty file": "",
        "17 columns in line 1, expected 18": lines[0].rsplit("  ", 1)[0],
        "v_length is nan at line 2.*truncated": "\n".join([lines[0], lines[1][:40]]),
        "local_y is nan at line 2": "\n".join([lines[0], "  ".join(["1"] * 5 + ["nan"] * 13)]),
        "v_vel is fast at line 2": "\n".join([lines[0], "  ".join(["1"] * 11 + ["fast"] * 7)]),
        "Expected 18 fields in line 3": "\n".join([*lines[:2], lines[2] + "  1", lines[3]]),
    }
    for message, content in damaged.items():
        path.write_text(content)
        with pytest.raises(InputError, match=message) as error:
            load(path).pairs()
        assert str(path) in str(error.value)
    path.write_bytes(b"\n".join([lines[0].encode(), b"\xff\xff"]))
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        load(path).pairs()


def test_damaged_portal_files_are_named(load, tmp_path):
    path = write_portal(tmp_path / "x.csv", scene())
    text = path.read_text()
    damaged = {
        "missing column v_vel": text.replace("v_Vel", "velocity"),
        "Expected 25 columns": text[:-40],
        "column Local_Y: line 2: .*'far.0'": text.replace("403", "far", 1),
    }
    for message, content in damaged.items():
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            load(path).pairs()


def test_no_recordings(load, tmp_path):
    with pytest.raises(InputError, match="no file or folder.*data.root"):
        load(tmp_path / "absent").pairs()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="no recordings in .*txt"):
        load(tmp_path / "folder").pairs()
    for ending in ("csv", "txt"):
        write_text(tmp_path / "folder" / f"x.{ending}", scene())
    with pytest.raises(InputError, match="two files named x"):
        load(tmp_path / "folder").pairs()
    city = write_portal(tmp_path / "city.csv", scene(), location="peachtree")
    with pytest.raises(InputError, match="no usable pair.*rows at other locations"):
        load(city).pairs()
