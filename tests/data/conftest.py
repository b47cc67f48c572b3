"""Hand-made recordings and tables, written to files the way users have them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.pairs import Pairs

HIGHD_TRACKS = [
    *("frame", "id", "x", "y", "width", "height", "xVelocity", "yVelocity", "xAcceleration"),
    *("yAcceleration", "frontSightDistance", "backSightDistance", "dhw", "thw", "ttc"),
    *("precedingXVelocity", "precedingId", "followingId", "leftPrecedingId", "leftAlongsideId"),
    *("leftFollowingId", "rightPrecedingId", "rightAlongsideId", "rightFollowingId", "laneId"),
]


@dataclass
class Vehicle:
    """x(t) = x0 + v t + a t^2 / 2 of the upper-left corner, for frames first..last at 25 Hz."""

    id: int
    direction: int
    x0: float
    v: float
    a: float = 0.0
    width: float = 4.5
    kind: str = "Car"
    first: int = 1
    last: int = 1300
    preceding: Callable[[int], int] = lambda frame: 0


def scene() -> list[Vehicle]:
    """A recording with every event the loader must handle; expected segments are in test_highd."""
    return [
        # Direction 2. Truck 11 changes lanes at frame 1103: car 7 behind it then follows 3.
        Vehicle(
            11, 2, 100, 10, width=12, kind="Truck", last=2200,
            preceding=lambda f: 3 if f < 1103 else 0,
        ),
        Vehicle(7, 2, 60, 10, last=2200, preceding=lambda f: 11 if f < 1103 else 3 * (f <= 2150)),
        Vehicle(3, 2, 180, 10, width=5, last=2150),  # vanishes while 7 is still in view
        # Direction 1. Truck 21 closes in on car 20 and falls back again, then changes lanes.
        Vehicle(20, 1, 900, -8, a=-0.1, width=4),
        Vehicle(
            21, 1, 930, -9, width=15, kind="Truck", preceding=lambda f: 20 if f <= 1250 else 0
        ),
        # 30 still names its leader 31 for 100 frames after that one's track has ended.
        Vehicle(30, 1, 500, -5, preceding=lambda f: 31),
        Vehicle(31, 1, 460, -5, last=1200),
        # 40 is in view for 20 s only.
        Vehicle(40, 1, 960, -8, first=201, last=700, preceding=lambda f: 20),
    ]  # fmt: skip


def tracks_of(vehicles: list[Vehicle], every: int) -> pd.DataFrame:
    """All 25 columns at 25 / every Hz, frames numbered from 1."""
    parts = []
    for car in vehicles:
        frame = np.arange(car.first, car.last + 1)
        frame = frame[(frame - 1) % every == 0]
        t = (frame - 1) / 25
        part = pd.DataFrame(0.0, index=range(len(frame)), columns=HIGHD_TRACKS)
        part["frame"], part["id"] = (frame - 1) // every + 1, car.id
        part["x"] = car.x0 + car.v * t + car.a * t**2 / 2
        part["width"], part["height"] = car.width, 2.0
        part["xVelocity"], part["xAcceleration"] = car.v + car.a * t, car.a
        part["precedingId"] = [car.preceding(int(f)) for f in frame]
        parts.append(part)
    table = pd.concat(parts)
    ids = [name for name in HIGHD_TRACKS if name.endswith("Id") or name in ("frame", "id")]
    return table.astype(dict.fromkeys(ids, int))


def meta_of(vehicles: list[Vehicle], tracks: pd.DataFrame) -> pd.DataFrame:
    rows = tracks.groupby("id")["frame"]
    meta = pd.DataFrame([vars(car) for car in vehicles])[["id", "width", "kind", "direction"]]
    meta = meta.rename(columns={"kind": "class", "direction": "drivingDirection"})
    meta["initialFrame"], meta["finalFrame"] = (
        meta["id"].map(rows.min()),
        meta["id"].map(rows.max()),
    )
    meta["numFrames"] = meta["id"].map(rows.size())
    return meta


@lru_cache
def scene_text(every: int, shuffle: int | None) -> tuple[str, str]:
    """Tracks and tracksMeta of the scene as CSV."""
    vehicles = scene()
    tracks = tracks_of(vehicles, every)
    meta = meta_of(vehicles, tracks)
    if shuffle is not None:
        tracks = tracks.sample(frac=1, random_state=shuffle)
        meta = meta.sample(frac=1, random_state=shuffle)
    return tracks.to_csv(index=False), meta.to_csv(index=False)


@pytest.fixture
def write_highd(tmp_path: Path) -> Callable[..., Path]:
    """Write the scene as recording `name` into a folder; `every` thins it to 25 / every Hz."""

    def write(
        folder: str = "highd", name: str = "01", every: int = 1, shuffle: int | None = 0
    ) -> Path:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        tracks, meta = scene_text(every, shuffle)
        (root / f"{name}_tracks.csv").write_text(tracks)
        (root / f"{name}_tracksMeta.csv").write_text(meta)
        rate = pd.DataFrame({"id": [int(name)], "frameRate": [25 // every]})
        rate.to_csv(root / f"{name}_recordingMeta.csv", index=False)
        return root

    return write


@pytest.fixture
def make_table() -> Callable[..., pd.DataFrame]:
    """A valid pairs table: `pairs` pairs of `samples` rows, one per follower."""

    def make(pairs: int = 3, samples: int = 250, step: float = 0.2, **columns: object):
        time = np.arange(samples) * step
        parts = []
        for index in range(pairs):
            speed = 8 + index + np.sin(time / 5)
            part = pd.DataFrame({"recording": "r", "pair_id": f"p{index}", "time": time})
            part["follower_id"] = f"f{index}"
            part["gap"] = 20 + np.cos(time / 5)
            part["speed"], part["leader_speed"] = speed, speed + 0.5
            parts.append(part.assign(**columns))
        return pd.concat(parts, ignore_index=True)

    return make


def assert_same_pairs(first: Pairs, second: Pairs, tolerance: float = 0.0) -> None:
    assert first.pair_id == second.pair_id
    assert first.follower == second.follower
    assert first.follower_class == second.follower_class
    assert torch.equal(first.offsets, second.offsets)
    for name in ("gap", "speed", "leader_speed", "acceleration"):
        torch.testing.assert_close(
            getattr(first, name), getattr(second, name), rtol=0, atol=tolerance
        )


@pytest.fixture
def same_pairs() -> Callable[..., None]:
    """Asserts that two `Pairs` hold the same pairs in the same order."""
    return assert_same_pairs
