"""highD recordings: `data=highd data.root=DIR`, a folder of NN_tracks.csv with its meta files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from asbc.data.cache import cached_table, file_stamps
from asbc.data.columns import read_csv_columns
from asbc.data.recordings import Following, combine, extract_pairs
from asbc.data.source import DataSource, Loaded
from asbc.data.table import require_numbers
from asbc.errors import InputError
from asbc.utils.progress import progress

_TRACKS = {
    "frame": pa.int64(),
    "id": pa.int64(),
    "x": pa.float64(),
    "xVelocity": pa.float64(),
    "xAcceleration": pa.float64(),
    "precedingId": pa.int64(),
}
_TRACKS_META = {
    "id": pa.int64(),
    "width": pa.float64(),
    "numFrames": pa.int64(),
    "class": pa.string(),
    "drivingDirection": pa.int64(),
}
_RECORDING_META = {"frameRate": pa.float64()}


class RecordingFiles(NamedTuple):
    """The three files of one recording."""

    name: str
    tracks: Path
    tracks_meta: Path
    recording_meta: Path


@dataclass(frozen=True, kw_only=True)
class HighD(DataSource):
    """Pairs from highD recordings, both driving directions.

    Args:
        root: folder with NN_tracks.csv, NN_tracksMeta.csv and NN_recordingMeta.csv.
        skip_defects: leave out, and count, segments with overlapping boxes, an unknown leader or
            backward motion instead of stopping with an error.
    """

    root: str
    skip_defects: bool = False

    @property
    def description(self) -> str:
        return f"highd: {self.root}"

    def load(self) -> Loaded:
        recordings = find_recordings(self.root)
        key = {
            "files": file_stamps(path for files in recordings for path in files[1:]),
            "dt": self.dt,
            "min_duration": self.min_duration,
            "skip_defects": self.skip_defects,
        }
        return cached_table(self.cache_dir, "highd", key, lambda: self._read(recordings))

    def _read(self, recordings: Sequence[RecordingFiles]) -> Loaded:
        # One recording in memory at a time; what stays is the few segments long enough to keep.
        parts = [
            extract_pairs(read_recording(files), self.dt, self.min_duration, self.skip_defects)
            for files in progress(recordings, "highD recordings")
        ]
        return combine(parts, self.description)


def find_recordings(root: str | Path) -> list[RecordingFiles]:
    """The recordings of a folder, by name; each must have its three files."""
    folder = Path(root)
    if not folder.is_dir():
        raise InputError(f"highd: {folder} is not a folder; give data.root=DIR")
    kinds = ("tracks", "tracksMeta", "recordingMeta")
    names = {
        path.name.rpartition("_")[0] for kind in kinds for path in folder.glob(f"*_{kind}.csv")
    }
    if not names:
        raise InputError(
            f"highd: no recordings in {folder}; expected files NN_tracks.csv, NN_tracksMeta.csv "
            "and NN_recordingMeta.csv"
        )
    recordings = []
    for name in sorted(names):
        files = RecordingFiles(name, *(folder / f"{name}_{kind}.csv" for kind in kinds))
        for path in files[1:]:
            if not path.is_file():
                raise InputError(
                    f"highd: recording {name} has no {path.name} in {folder}; expected "
                    f"{name}_tracks.csv, {name}_tracksMeta.csv and {name}_recordingMeta.csv"
                )
        recordings.append(files)
    return recordings


def read_recording(files: RecordingFiles) -> Following:
    """Tracks in the driving direction's own coordinate: position of the front, speed >= 0 ahead.

    (x, y) is the upper-left corner of a box and `width` its length; direction 1 drives to -x.
    """
    meta = _read_meta(files.tracks_meta)
    frame_rate = _read_frame_rate(files.recording_meta)
    tracks = require_numbers(read_csv_columns(files.tracks, _TRACKS), str(files.tracks))
    _check_counts(tracks["id"], meta, files)
    vehicle = meta.loc[tracks["id"]]
    ahead = np.where(vehicle["drivingDirection"] == 1, -1.0, 1.0)
    length = vehicle["width"].to_numpy()
    x = tracks["x"].to_numpy()
    return Following(
        source=str(files.tracks),
        recording=files.name,
        line=tracks.index.to_numpy(),
        vehicle=tracks["id"].to_numpy(),
        leader=tracks["precedingId"].to_numpy(),
        frame=tracks["frame"].to_numpy(),
        frame_rate=frame_rate,
        front=np.where(ahead < 0, -x, x + length),
        length=length,
        speed=ahead * tracks["xVelocity"].to_numpy(),
        acceleration=ahead * tracks["xAcceleration"].to_numpy(),
        classes=dict(zip(meta.index.tolist(), meta["class"].str.lower(), strict=True)),
    )


def _read_meta(path: Path) -> pd.DataFrame:
    """Vehicles by id: never by row position, the rows come in any order."""
    meta = read_csv_columns(path, _TRACKS_META)
    require_numbers(meta.drop(columns="class"), str(path))
    repeated = meta["id"].duplicated()
    if repeated.any():
        raise InputError(
            f"{path}: vehicle {meta['id'][repeated].iloc[0]} appears twice (line "
            f"{meta.index[repeated][0]}); keep one row per vehicle"
        )
    unknown = ~meta["drivingDirection"].isin([1, 2])
    if unknown.any():
        raise InputError(
            f"{path}: drivingDirection is {meta['drivingDirection'][unknown].iloc[0]} at line "
            f"{meta.index[unknown][0]}, expected 1 (to -x) or 2 (to +x)"
        )
    meta["class"] = meta["class"].fillna("unknown")
    return meta.set_index("id")


def _read_frame_rate(path: Path) -> float:
    rates = require_numbers(read_csv_columns(path, _RECORDING_META), str(path))["frameRate"]
    if len(rates) != 1 or not rates.iloc[0] > 0:
        raise InputError(
            f"{path}: frameRate is {rates.tolist()}, expected one positive number (Hz)"
        )
    return float(rates.iloc[0])


def _check_counts(ids: pd.Series, meta: pd.DataFrame, files: RecordingFiles) -> None:
    """Every vehicle of one file is in the other, with as many rows as it has frames."""
    rows = ids.value_counts()
    strangers = rows.index.difference(meta.index)
    if len(strangers):
        stranger = int(strangers[0])
        line = ids.index[ids == stranger][0]
        raise InputError(
            f"{files.tracks}: vehicle {stranger} (line {line}) is not in "
            f"{files.tracks_meta.name}; both files must come from the same recording"
        )
    short = rows.reindex(meta.index, fill_value=0) != meta["numFrames"]
    if short.any():
        vehicle = meta.index[short][0]
        raise InputError(
            f"{files.tracks}: vehicle {vehicle} has {rows.get(vehicle, 0)} rows but "
            f"{files.tracks_meta.name} says numFrames={meta['numFrames'][vehicle]}; the tracks "
            "file is incomplete, copy it again"
        )
