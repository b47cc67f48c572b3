"""The highD loader on a hand-made recording with known positions."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.highd import HighD
from asbc.errors import InputError


@pytest.fixture
def load(tmp_path):
    def load(root: Path, **settings):
        return HighD(root=str(root), cache_dir=str(tmp_path / "cache"), **settings)

    return load


def test_known_segments_gaps_and_speeds(write_highd, load):
    pairs = load(write_highd()).pairs()
    found = {name: pairs.pair(i) for i, name in enumerate(pairs.pair_id)}
    # Frames 1, 6, ... 1101 of the first leader, then 1106, ... 2146 of the second (at 44.2 s).
    assert {name: len(pair["gap"]) for name, pair in found.items()} == {
        "01/7-11@0.0": 221,
        "01/7-3@44.2": 209,
        "01/11-3@0.0": 221,
        "01/21-20@0.0": 250,
        "01/30-31@0.0": 240,
    }
    t = torch.arange(250, dtype=torch.float64) * 0.2
    expected = {
        "01/7-11@0.0": (100 - 64.5, 10, 10, 0),  # rear of 11 minus front of 7
        "01/7-3@44.2": (180 - 64.5, 10, 10, 0),
        "01/11-3@0.0": (180 - 112, 10, 10, 0),
        # To -x: x is the front and the leader's rear is at x + width. D = -(8 t + 0.05 t^2).
        "01/21-20@0.0": (930 - 9 * t - (900 - 8 * t - 0.05 * t**2 + 4), 9, 8 + 0.1 * t, 0),
        "01/30-31@0.0": (500 - (460 + 4.5), 5, 5, 0),
    }
    for name, values in expected.items():
        for column, value in zip(
            ("gap", "speed", "leader_speed", "acceleration"), values, strict=True
        ):
            wanted = torch.as_tensor(value, dtype=torch.float32).expand_as(found[name][column])
            torch.testing.assert_close(found[name][column], wanted, rtol=0, atol=1e-4)


def test_classes_follow_the_id_not_the_row(write_highd, load):
    pairs = load(write_highd()).pairs()
    classes = dict(zip(pairs.follower, pairs.follower_class, strict=True))
    assert classes == {"01/7": "car", "01/11": "truck", "01/21": "truck", "01/30": "car"}


def test_acceleration_changes_sign_with_direction(write_highd, load, tmp_path):
    root = write_highd()
    path = root / "01_tracks.csv"
    tracks = pd.read_csv(path)
    tracks["precedingId"] = np.where(tracks["id"] == 20, 21, tracks["precedingId"])
    tracks.loc[tracks["id"] == 20, "x"] += 200  # 20 now drives behind 21, speeding up to -x
    tracks.loc[tracks["id"].isin([21, 40]), "precedingId"] = 0
    tracks.to_csv(path, index=False)
    pairs = load(root).pairs()
    pair = pairs.pair(pairs.pair_id.index("01/20-21@0.0"))
    torch.testing.assert_close(pair["acceleration"], torch.full_like(pair["gap"], 0.1))
    torch.testing.assert_close(pair["speed"][:2], torch.tensor([8.0, 8.02]))


def test_drops_are_counted_by_reason(write_highd, load):
    source = load(write_highd())
    drops = source._prepared.drops
    assert drops == {
        # 11 after its lane change, 7 after 3 vanished, 3, 20, 21 after its lane change, 31
        "segments without a leader": 6,
        "segments whose leader is out of view": 1,  # 30 after 31's track ended
        "segments shorter than 40 s": 1,  # 40
    }


def test_order_of_rows_and_files_does_not_matter(write_highd, load, same_pairs):
    first = write_highd("a", "01", shuffle=None)
    write_highd("a", "02", shuffle=None)
    second = write_highd("b", "02", shuffle=1)
    write_highd("b", "01", shuffle=2)
    same_pairs(load(first).pairs(), load(second).pairs())
    assert set(load(first).pairs().recording) == {"01", "02"}


def test_25_hz_and_5_hz_agree(write_highd, load, same_pairs):
    fast, slow = load(write_highd("fast")).pairs(), load(write_highd("slow", every=5)).pairs()
    same_pairs(fast, slow, tolerance=1e-5)


def test_thinned_file_that_keeps_its_frame_numbers_agrees(write_highd, load, same_pairs):
    root = write_highd("thin")
    tracks = pd.read_csv(root / "01_tracks.csv")
    tracks = tracks[(tracks["frame"] - 1) % 5 == 0]
    tracks.to_csv(root / "01_tracks.csv", index=False)
    meta = pd.read_csv(root / "01_tracksMeta.csv")
    meta["numFrames"] = meta["id"].map(tracks["id"].value_counts())
    meta.to_csv(root / "01_tracksMeta.csv", index=False)
    same_pairs(load(root).pairs(), load(write_highd("full")).pairs())


def test_a_gap_in_time_starts_a_new_segment(write_highd, load):
    root = write_highd()
    tracks = pd.read_csv(root / "01_tracks.csv")
    tracks = tracks[~((tracks["id"] == 21) & (tracks["frame"] == 626))]
    tracks.to_csv(root / "01_tracks.csv", index=False)
    meta = pd.read_csv(root / "01_tracksMeta.csv")
    meta.loc[meta["id"] == 21, "numFrames"] -= 1
    meta.to_csv(root / "01_tracksMeta.csv", index=False)
    pairs = load(root, min_duration=15.0).pairs()
    lengths = dict(zip(pairs.pair_id, pairs.lengths.tolist(), strict=True))
    assert (lengths["01/21-20@0.0"], lengths["01/21-20@25.2"]) == (125, 124)


def test_second_load_comes_from_the_cache_until_a_file_changes(write_highd, load, same_pairs):
    root = write_highd()
    first = load(root).pairs()
    path = root / "01_tracks.csv"
    stamp = path.stat()
    # Same size and time: the content is not read again.
    path.write_bytes(b"x" * stamp.st_size)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    same_pairs(load(root).pairs(), first)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    with pytest.raises(InputError, match="missing column"):
        load(root).pairs()


def test_settings_are_part_of_the_cache_key(write_highd, load):
    root = write_highd()
    assert len(load(root).pairs()) == 5
    assert len(load(root, min_duration=44.0).pairs()) == 4
    assert len(load(root, min_duration=18.0).pairs()) == 6
    assert load(root, dt=0.4, context_steps=10).pairs().lengths.max() == 125


def test_standstill_noise_is_raised_to_zero_and_counted(write_highd, load):
    root = write_highd()
    tracks = pd.read_csv(root / "01_tracks.csv")
    away = (tracks["frame"] - 501).abs()  # 7 brakes to a stop in this frame and drives on
    slow = (tracks["id"] == 7) & (away < 50)
    tracks.loc[slow, "xVelocity"] = 0.2 * away[slow]
    tracks.loc[slow & (away == 0), "xVelocity"] = -0.02
    tracks.to_csv(root / "01_tracks.csv", index=False)
    source = load(root)
    pairs = source.pairs()
    assert pairs.pair(pairs.pair_id.index("01/7-11@0.0"))["speed"][100] == 0
    assert source._prepared.drops["speed samples slightly below 0 set to 0"] == 1


@pytest.mark.slow
def test_memory_stays_bounded(write_highd, load, tmp_path):
    """A recording of about 30 MB needs no more than its share of 4 GB for 400 MB."""
    root = write_highd("big", shuffle=None)
    tracks, meta = (pd.read_csv(root / f"01_{kind}.csv") for kind in ("tracks", "tracksMeta"))
    metas = []
    with (root / "01_tracks.csv").open("w") as file:
        for copy in range(40):
            for column in ("id", "precedingId"):
                known = tracks[column] > 0
                tracks.loc[known, column] += 100
            tracks.to_csv(file, index=False, header=copy == 0)
            metas.append(meta.assign(id=meta["id"] + 100 * (copy + 1)))
    pd.concat(metas).to_csv(root / "01_tracksMeta.csv", index=False)
    assert (root / "01_tracks.csv").stat().st_size > 25e6
    program = (
        "import resource; from asbc.data.highd import HighD; start = resource.getrusage"
        "(resource.RUSAGE_SELF).ru_maxrss; "
        f"HighD(root={str(root)!r}, cache_dir={str(tmp_path / 'c')!r}).pairs(); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)"
    )
    used = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(used.stdout) / 1024 < 300, used.stderr  # MB
