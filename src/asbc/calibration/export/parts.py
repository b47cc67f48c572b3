"""Chunks of drivers on disk: each written whole or not at all, so that a killed run continues."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from asbc.errors import InputError
from asbc.utils.files import replacing, write_text

# Draws are all different: a dictionary of them costs five times the time and half again the space.
ENCODING: dict[str, Any] = {
    "use_dictionary": ["pair_id", "follower", "draw"],
    "compression": "zstd",
    "compression_level": 1,
}

# Columns of the table of drivers that the closing summary counts.
VERDICTS = (
    *("route", "flagged", "unlike_training", "leak_rate", "at_bound", "k_hat_network", "k_hat"),
    *("effective_draws", "residual_model", "best_model"),
)


@dataclass(frozen=True)
class Part:
    """The result of one chunk.

    Attributes:
        draws: a row per driver and draw.
        drivers: a row per driver; `position` is its place in the data.
        seconds: cost by stage.
        skipped: reason by driver, for those that could not be calibrated.
        predictive: drives, each (draw, driver, step); empty unless asked for.
    """

    draws: pa.Table
    drivers: pd.DataFrame
    seconds: dict[str, float]
    skipped: dict[str, str]
    predictive: dict[str, np.ndarray]

    @classmethod
    def joined(cls, parts: Sequence["Part"]) -> "Part":
        """All chunks as one."""
        names = parts[0].predictive
        return cls(
            draws=pa.concat_tables([part.draws for part in parts]),
            drivers=pd.concat([part.drivers for part in parts], ignore_index=True),
            seconds=total_seconds(part.seconds for part in parts),
            skipped={name: why for part in parts for name, why in part.skipped.items()},
            predictive={
                name: np.concatenate([part.predictive[name] for part in parts], axis=1)
                for name in names
            },
        )


def total_seconds(chunks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Cost by stage, summed over chunks."""
    total: dict[str, float] = {}
    for seconds in chunks:
        for stage, value in seconds.items():
            total[stage] = total.get(stage, 0.0) + value
    return total


class Parts:
    """The folder of finished chunks.

    Args:
        folder: where they are kept until all of them are there.
        identity: everything the result depends on. A folder begun with another identity is
            refused, since its chunks cannot be mixed with new ones.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.manifest = folder / "manifest.json"
        self.identity = json.loads(json.dumps(identity))  # as it will be read back

    def open(self) -> None:
        """Begin, or continue what was begun with the same identity."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.manifest.exists():
            write_text(self.manifest, json.dumps(self.identity, indent=2) + "\n")
            return
        begun = json.loads(self.manifest.read_text())
        changed = [k for k in self.identity if begun.get(k) != self.identity[k]]
        if changed:
            name = changed[0]
            raise InputError(
                f"{self.folder.parent} holds a calibration begun with another {name} "
                f"({begun.get(name)}, now {self.identity[name]}); give another output= or delete "
                "that folder"
            )

    def finished(self, index: int) -> bool:
        """Whether a chunk is there."""
        return self._path(index, "json").exists()

    def write(self, index: int, part: Part) -> None:
        """Store a chunk; its JSON file, renamed into place last, says that it is complete."""
        with replacing(self._path(index, "draws.parquet")) as path:
            pq.write_table(part.draws, path, **ENCODING)
        with replacing(self._path(index, "drivers.parquet")) as path:
            part.drivers.to_parquet(path, index=False)
        if part.predictive:
            arrays: dict[str, Any] = dict(part.predictive)
            with replacing(self._path(index, "predictive.npz")) as path, path.open("wb") as file:
                np.savez(file, **arrays)
        text = json.dumps({"seconds": part.seconds, "skipped": part.skipped})
        write_text(self._path(index, "json"), text)

    def record(self, index: int) -> dict[str, Any]:
        """Seconds by stage and skipped drivers of a chunk."""
        return json.loads(self._path(index, "json").read_text())

    def drivers(self, index: int, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The table of a chunk's drivers, or those of some columns that it has."""
        path = self._path(index, "drivers.parquet")
        if columns is None:
            return pd.read_parquet(path)
        known = pq.read_schema(path).names
        return pd.read_parquet(path, columns=[name for name in columns if name in known])

    def draws(self, index: int) -> pa.Table:
        """The draws of a chunk."""
        return pq.read_table(self._path(index, "draws.parquet"))

    def draws_schema(self, index: int) -> pa.Schema:
        """The columns of the draws of a chunk."""
        return pq.read_schema(self._path(index, "draws.parquet"))

    def verdicts(
        self, chunks: Sequence[int]
    ) -> tuple[pd.DataFrame, dict[str, float], dict[str, str]]:
        """How each driver got its draws and what is said of them, cost by stage, and who was
        skipped and why."""
        drivers = pd.concat([self.drivers(i, VERDICTS) for i in chunks], ignore_index=True)
        records = [self.record(index) for index in chunks]
        skipped = {name: why for record in records for name, why in record["skipped"].items()}
        return drivers, total_seconds(record["seconds"] for record in records), skipped

    def read(self, index: int) -> Part:
        """What `write` stored."""
        predictive: dict[str, np.ndarray] = {}
        if self._path(index, "predictive.npz").exists():
            with np.load(self._path(index, "predictive.npz")) as file:
                predictive = {name: file[name] for name in file.files}
        return Part(
            draws=self.draws(index),
            drivers=self.drivers(index),
            predictive=predictive,
            **self.record(index),
        )

    def remove(self) -> None:
        """Delete all chunks, if there are any: the merged outputs hold everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, index: int, ending: str) -> Path:
        return self.folder / f"{index:06d}.{ending}"
