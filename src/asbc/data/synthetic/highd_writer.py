"""A simulated stretch of road, written as a highD recording with the drivers' true theta."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
from scipy.ndimage import uniform_filter1d

from asbc.data.synthetic.road import DT, FRAME_RATE, GONE, Motion, Road, drive
from asbc.data.synthetic.true_drivers import THETA_NAMES

LANE_WIDTH = 3.75  # m
LANE_CHANGE_SECONDS = 3
# Neighbours on other lanes: in the format, but nothing reads them.
_NEIGHBOURS = [
    f"{side}{place}Id"
    for side in ("left", "right")
    for place in ("Preceding", "Alongside", "Following")
]


def write_recording(folder: Path, name: str, road: Road, rng: np.random.Generator) -> None:
    """Simulate both directions of `road` and write the files of recording `name`."""
    parts, metas, truths, next_id = [], [], [], 1
    for direction in (1, 2):
        motion = drive(road, rng)
        ids = _number(motion.visible, next_id)
        tracks, meta, truth = _tables(motion, ids, direction, road)
        next_id += len(meta)
        parts.append(tracks)
        metas.append(meta)
        truths.append(truth)
    meta = pd.concat(metas)
    _write(pd.concat(parts), folder / f"{name}_tracks.csv")
    _write(meta, folder / f"{name}_tracksMeta.csv")
    _write(_recording_meta(meta, name, road), folder / f"{name}_recordingMeta.csv")
    _write(pd.concat(truths), folder / f"{name}_trueTheta.csv")


def _number(visible: np.ndarray, first: int) -> np.ndarray:
    """Track ids in order of appearance; 0 for vehicles that are never seen."""
    seen = np.flatnonzero(visible.any(axis=1))
    ids = np.zeros(len(visible), dtype=np.int64)
    appearance = visible[seen].argmax(axis=1)
    ids[seen[np.argsort(appearance, kind="stable")]] = first + np.arange(len(seen))
    return ids


def _tables(
    motion: Motion, ids: np.ndarray, direction: int, road: Road
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Tracks, tracksMeta and true theta of one direction, in highD's coordinates."""
    vehicle, frame = np.nonzero(motion.visible)
    at = (vehicle, frame)
    ahead = -1.0 if direction == 1 else 1.0
    length, breadth = motion.drivers.length[vehicle], motion.drivers.breadth[vehicle]
    front, speed = motion.front[at], motion.speed[at]
    # Images grow to the right: (x, y) is the upper-left corner of the box.
    x = road.length - front if direction == 1 else front - length
    first_lane = 2 if direction == 1 else road.lanes + 3
    centre = (first_lane + np.where(motion.lane == GONE, 0, motion.lane) - 0.5) * LANE_WIDTH
    centre = uniform_filter1d(centre, LANE_CHANGE_SECONDS * FRAME_RATE, axis=1, mode="nearest")
    leader = motion.leader[at]
    followed = (leader >= 0) & motion.visible[leader, frame]
    gap = motion.front[leader, frame] - motion.drivers.length[leader] - front
    leader_speed = motion.speed[leader, frame]
    following = np.zeros_like(motion.lane)
    following[leader[followed], frame[followed]] = ids[vehicle[followed]]
    with np.errstate(divide="ignore", invalid="ignore"):
        thw, ttc = gap / speed, gap / (speed - leader_speed)
    columns = {
        "frame": frame + 1,
        "id": ids[vehicle],
        "x": x.round(3),
        "y": (centre[at] - breadth / 2).round(2),
        "width": length,
        "height": breadth,
        # Finer than highD's two decimals, which would bury the smooth residuals of true theta.
        "xVelocity": (ahead * speed).round(4),
        "yVelocity": (np.gradient(centre, DT, axis=1)[at]).round(2),
        "xAcceleration": (ahead * motion.acceleration[at]).round(4),
        "yAcceleration": 0,
        "frontSightDistance": (road.length - front).round(2),
        "backSightDistance": (front - length).round(2),
        "dhw": np.where(followed, gap, 0).round(2),
        "thw": np.where(followed & (speed > 0), thw, 0).round(2),
        "ttc": np.where(followed & (np.abs(ttc) < 1e3), ttc, 0).round(2),
        "precedingXVelocity": np.where(followed, ahead * leader_speed, 0).round(2),
        "precedingId": np.where(followed, ids[leader], 0),
        "followingId": following[at],
        **dict.fromkeys(_NEIGHBOURS, 0),
        "laneId": first_lane + motion.lane[at],
    }
    tracks = pd.DataFrame(columns).sort_values(["id", "frame"], kind="stable")
    meta = _tracks_meta(tracks, motion, ids, direction)
    seen = np.flatnonzero(ids)
    truth = pd.DataFrame(motion.drivers.theta[seen], columns=list(THETA_NAMES))
    truth.insert(0, "id", ids[seen])
    return tracks, meta, truth.sort_values("id")


def _tracks_meta(
    tracks: pd.DataFrame, motion: Motion, ids: np.ndarray, direction: int
) -> pd.DataFrame:
    by_id = tracks.groupby("id")
    number = {track: vehicle for vehicle, track in enumerate(ids.tolist()) if track}
    vehicles = [number[track] for track in by_id.groups]
    speed = tracks["xVelocity"].abs().groupby(tracks["id"])
    meta = pd.DataFrame(
        {
            "width": by_id["width"].first(),
            "height": by_id["height"].first(),
            "initialFrame": by_id["frame"].min(),
            "finalFrame": by_id["frame"].max(),
            "numFrames": by_id.size(),
            "class": np.where(motion.drivers.is_truck[vehicles], "Truck", "Car"),
            "drivingDirection": direction,
            "traveledDistance": (by_id["x"].max() - by_id["x"].min()).round(2),
            "minXVelocity": speed.min().round(2),
            "maxXVelocity": speed.max().round(2),
            "meanXVelocity": speed.mean().round(2),
            **{
                f"min{name.upper()}": _smallest_positive(tracks, name)
                for name in ("dhw", "thw", "ttc")
            },
            "numLaneChanges": motion.lane_changes[vehicles],
        }
    )
    return meta.reset_index()


def _smallest_positive(tracks: pd.DataFrame, name: str) -> pd.Series:
    """Per vehicle, -1 where the value is never positive, as highD writes it."""
    return tracks[name].where(tracks[name] > 0).groupby(tracks["id"]).min().fillna(-1)


def _recording_meta(meta: pd.DataFrame, name: str, road: Road) -> pd.DataFrame:
    lanes = np.arange(road.lanes + 1)
    upper, lower = (1 + lanes) * LANE_WIDTH, (road.lanes + 2 + lanes) * LANE_WIDTH
    cars = int((meta["class"] == "Car").sum())
    row = {
        "id": int(name),
        "frameRate": FRAME_RATE,
        "locationId": 1,
        "speedLimit": -1,
        "month": "1.2026",
        "weekDay": "Mon",
        "startTime": "08:00",
        "duration": road.duration,
        "totalDrivingTime": round(float(meta["numFrames"].sum()) * DT, 2),
        "totalDrivingDistance": round(float(meta["traveledDistance"].sum()), 2),
        "numVehicles": len(meta),
        "numCars": cars,
        "numTrucks": len(meta) - cars,
        "upperLaneMarkings": _markings(upper),
        "lowerLaneMarkings": _markings(lower),
    }
    return pd.DataFrame([row])


def _markings(positions: Sequence[float] | np.ndarray) -> str:
    return ";".join(f"{position:.2f}" for position in positions)


def _write(table: pd.DataFrame, path: Path) -> None:
    # The header by hand: pyarrow quotes it, highD does not.
    options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
    with path.open("wb") as file:
        file.write((",".join(table.columns) + "\n").encode())
        pa.csv.write_csv(pa.Table.from_pandas(table, preserve_index=False), file, options)
