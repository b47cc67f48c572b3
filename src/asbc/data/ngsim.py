"""NGSIM recordings: `data=ngsim data.root=FILE_OR_DIR`.

Reads the portal's CSV (with a header, possibly many recordings in one file) and the older text
files of 18 columns without one. Units are feet and 0.1 s frames; Local_Y is a vehicle's front.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from asbc.data.cache import cached_table, file_stamps
from asbc.data.columns import header, read_csv_columns, read_spaced_columns
from asbc.data.recordings import Following, combine, extract_pairs, savitzky_golay
from asbc.data.source import DataSource, Loaded
from asbc.data.table import require_numbers
from asbc.errors import InputError
from asbc.utils.progress import progress

FOOT = 0.3048  # m
FRAME_RATE = 10.0  # Hz
# Recordings of one file start minutes apart; clocks within a recording agree to the frame.
CLOCK_TOLERANCE = 60_000  # ms
TEXT_COLUMNS = (
    *("vehicle_id", "frame_id", "total_frames", "global_time", "local_x", "local_y"),
    *("global_x", "global_y", "v_length", "v_width", "v_class", "v_vel", "v_acc", "lane_id"),
    *("preceding", "following", "space_headway", "time_headway"),
)
NEEDED = (
    *("vehicle_id", "frame_id", "global_time", "local_y", "v_length"),
    *("v_class", "v_vel", "v_acc", "preceding"),
)
REPEATED = "rows that repeat another exactly"
CLASSES = {1: "motorcycle", 2: "car", 3: "truck"}


@dataclass(frozen=True, kw_only=True)
class NGSIM(DataSource):
    """Pairs from NGSIM trajectories.

    Args:
        root: a file, or a folder whose *.csv and *.txt files are all read.
        locations: sites to read from a file with a Location column; None for all. The default
            leaves out the two city streets, where Local_Y does not run along the traffic.
        smoothing: length in seconds of a Savitzky-Golay window for positions, from which speed and
            acceleration follow; None to use the recorded signals.
        skip_defects: leave out, and count, segments with overlapping vehicles, an unknown leader
            or backward motion instead of stopping with an error.
    """

    root: str
    locations: Sequence[str] | None = ("i-80", "us-101")
    smoothing: float | None = None
    skip_defects: bool = False

    @property
    def description(self) -> str:
        return f"ngsim: {self.root}"

    def load(self) -> Loaded:
        files = find_files(self.root)
        key = {
            "files": file_stamps(files),
            "dt": self.dt,
            "min_duration": self.min_duration,
            "locations": None if self.locations is None else list(self.locations),
            "smoothing": self.smoothing,
            "skip_defects": self.skip_defects,
        }
        return cached_table(self.cache_dir, "ngsim", key, lambda: self._read(files))

    def _read(self, files: Sequence[Path]) -> Loaded:
        parts = []
        for path in progress(files, "NGSIM files"):
            rows, elsewhere = _at_sites(read_file(path), self.locations)
            parts.append(Loaded(pd.DataFrame(), elsewhere))
            for name, part in split_recordings(rows, path.stem):
                # The portal's file repeats some rows exactly; that is no conflict.
                repeated = part.duplicated()
                recording = _following(part[~repeated], name, path)
                if self.smoothing is not None:
                    recording = savitzky_golay(recording, self.smoothing)
                pairs = extract_pairs(recording, self.dt, self.min_duration, self.skip_defects)
                parts += [pairs, Loaded(pd.DataFrame(), {REPEATED: int(repeated.sum())})]
        return combine(parts, self.description)


def find_files(root: str | Path) -> list[Path]:
    """The file itself, or the trajectory files of a folder, by name."""
    path = Path(root)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"ngsim: no file or folder {path}; give data.root=FILE_OR_DIR")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".csv", ".txt"))
    if not files:
        raise InputError(f"ngsim: no recordings in {path}; expected *.csv or *.txt files")
    stems = [file.stem for file in files]
    for stem in stems:
        if stems.count(stem) > 1:
            raise InputError(f"ngsim: two files named {stem} in {path}; rename or remove one")
    return files


def read_file(path: Path) -> pd.DataFrame:
    """The needed columns in lower case, still in feet; `location` is "" where not given."""
    names = {name.lower(): name for name in header(path)}
    if "vehicle_id" not in names:
        return read_spaced_columns(path, TEXT_COLUMNS, NEEDED).assign(location="")
    types = {names.get(name, name): pa.float64() for name in NEEDED}
    if "location" in names:
        # Encoded: the portal's file holds millions of rows and four names.
        types[names["location"]] = pa.dictionary(pa.int32(), pa.string())
    rows = read_csv_columns(path, types).rename(columns=str.lower)
    require_numbers(rows[list(NEEDED)], str(path))
    return rows if "location" in names else rows.assign(location="")


def split_recordings(rows: pd.DataFrame, stem: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and rows of each recording, one per site and camera clock: ids start again in each."""
    for location in sorted(rows["location"].unique()):
        site = rows[rows["location"] == location]
        clock = site["global_time"] - site["frame_id"] * 1000 / FRAME_RATE
        ordered = np.unique(clock)
        starts = ordered[np.diff(ordered, prepend=-np.inf) > CLOCK_TOLERANCE]
        number = np.searchsorted(starts, clock.to_numpy(), side="right")
        name = stem + (f":{location}" if location else "")
        for recording, part in site.groupby(number):
            yield name + (f":{recording}" if len(starts) > 1 else ""), part


def _following(rows: pd.DataFrame, name: str, path: Path) -> Following:
    vehicle = rows["vehicle_id"].to_numpy(np.int64)
    known = dict(zip(vehicle.tolist(), rows["v_class"].tolist(), strict=True))
    return Following(
        source=str(path),
        recording=name,
        line=rows.index.to_numpy(),
        vehicle=vehicle,
        leader=rows["preceding"].to_numpy(np.int64),
        frame=rows["frame_id"].to_numpy(np.int64),
        frame_rate=FRAME_RATE,
        front=rows["local_y"].to_numpy() * FOOT,
        length=rows["v_length"].to_numpy() * FOOT,
        speed=rows["v_vel"].to_numpy() * FOOT,
        acceleration=rows["v_acc"].to_numpy() * FOOT,
        classes={track: CLASSES.get(int(code), "unknown") for track, code in known.items()},
    )


def _at_sites(
    rows: pd.DataFrame, locations: Sequence[str] | None
) -> tuple[pd.DataFrame, dict[str, int]]:
    if locations is None:
        return rows, {}
    wanted = rows["location"].isin(["", *locations])
    return rows[wanted], {"rows at other locations": int((~wanted).sum())}
