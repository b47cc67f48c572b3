"""Synthetic recordings: `data=synthetic`, the embedded default.

highD-shaped CSVs of congested traffic are written once and then read like any other recording, so
the default run exercises the real path. The drivers' true theta lies beside them.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch

from asbc.data.cache import cached_folder
from asbc.data.highd import HighD, find_recordings
from asbc.data.pairs import Pairs
from asbc.data.source import DataSource, Loaded
from asbc.data.synthetic.highd_writer import write_recording
from asbc.data.synthetic.road import Road
from asbc.data.synthetic.true_drivers import THETA_NAMES
from asbc.errors import InputError
from asbc.utils.progress import progress
from asbc.utils.random import stream


@dataclass(frozen=True, kw_only=True)
class Synthetic(DataSource):
    """Generated highway traffic with known driver parameters.

    Real highD shows 420 m of road; this shows a little more, so that drivers in flowing traffic
    stay in view for `min_duration` as well.

    Args:
        seed: of the traffic.
        recordings: number of recordings, each with both driving directions.
        road_length, lanes, platoon, duration, truck_share, lane_change_chance, exit_chance: see
            `asbc.data.synthetic.road.Road`.
    """

    seed: int = 0
    recordings: int = 2
    road_length: float = 500.0
    lanes: int = 2
    platoon: int = 46
    duration: float = 210.0
    truck_share: float = 0.15
    lane_change_chance: float = 0.15
    exit_chance: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.recordings, self.lanes, self.platoon) < 1:
            raise InputError(
                f"data.recordings={self.recordings}, data.lanes={self.lanes} and "
                f"data.platoon={self.platoon} must be at least 1"
            )

    @property
    def description(self) -> str:
        return f"synthetic: seed {self.seed}, {self.recordings} recordings"

    @cached_property
    def folder(self) -> Path:
        """Where the recordings are; written on first use."""
        shared = {field.name for field in fields(DataSource)}
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared}
        return cached_folder(self.cache_dir, "synthetic", settings, self._write)

    def load(self) -> Loaded:
        source = HighD(
            root=str(self.folder),
            dt=self.dt,
            min_duration=self.min_duration,
            cache_dir=self.cache_dir,
        )
        return source.load()

    @cached_property
    def _with_truth(self) -> Pairs:
        pairs = super().pairs()
        truth: dict[str, list[float]] = {}
        for files in find_recordings(self.folder):
            table = pd.read_csv(self.folder / f"{files.name}_trueTheta.csv").set_index("id")
            rows = zip(table.index, table[list(THETA_NAMES)].to_numpy().tolist(), strict=True)
            truth |= {f"{files.name}/{track}": theta for track, theta in rows}
        theta = torch.tensor([truth[follower] for follower in pairs.follower])
        return replace(pairs, true_theta=theta, true_names=THETA_NAMES)

    def pairs(self) -> Pairs:
        """All usable pairs, with the true theta of each follower."""
        return self._with_truth

    def _write(self, folder: Path) -> None:
        road = Road(
            length=self.road_length,
            lanes=self.lanes,
            platoon=self.platoon,
            duration=self.duration,
            truck_share=self.truck_share,
            lane_change_chance=self.lane_change_chance,
            exit_chance=self.exit_chance,
        )
        for number in progress(range(1, self.recordings + 1), "synthetic recordings"):
            rng = stream(self.seed, "traffic", number)
            write_recording(folder, f"{number:02d}", road, rng)
