"""Leader-follower pairs as flat tensors: the form in which all later code reads data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.errors import InputError

STATE_COLUMNS = ("gap", "speed", "leader_speed", "acceleration")


@dataclass(frozen=True)
class Pairs:
    """Pairs of one leader and one follower, all sampled every `dt` seconds.

    Rows of pair i are `offsets[i]:offsets[i + 1]` of the flat columns. Speeds are in m/s, the net
    gap in m. `follower` is unique over recordings, so one driver is one key.

    Example:
        >>> table = pd.DataFrame({
        ...     "recording": "r", "pair_id": ["7", "7", "8"], "follower_id": ["1", "1", "2"],
        ...     "follower_class": "car", "gap": [20.0, 20.5, 12.0], "speed": [10.0, 10.0, 8.0],
        ...     "leader_speed": [12.5, 12.5, 8.0]})
        >>> pairs = Pairs.from_table(table, dt=0.2)
        >>> pairs.pair_id, pairs.lengths.tolist(), pairs.find("8")
        (('r/7', 'r/8'), [2, 1], 1)
    """

    pair_id: tuple[str, ...]
    follower: tuple[str, ...]
    recording: tuple[str, ...]
    follower_class: tuple[str, ...]
    dt: float
    offsets: Tensor  # (pairs + 1,) int64
    gap: Tensor  # (rows,) float32, as the three below
    speed: Tensor
    leader_speed: Tensor
    acceleration: Tensor
    true_theta: Tensor | None = None  # (pairs, dim), known for synthetic data only
    true_names: tuple[str, ...] = ()
    # (pairs,) float64, the recording's time at each first sample (s); None: not known
    begin: Tensor | None = None

    def __len__(self) -> int:
        return len(self.pair_id)

    @property
    def lengths(self) -> Tensor:
        """Number of samples of each pair, (pairs,) int64."""
        return self.offsets.diff()

    @classmethod
    def from_table(cls, table: pd.DataFrame, dt: float) -> Pairs:
        """Pack a validated pairs table, sorted by pair and time, whose time step is `dt`."""
        starts = pair_starts(table)
        first = table.iloc[starts]
        recording = tuple(first["recording"])
        acceleration = forward_difference(table["speed"].to_numpy(np.float64), starts, dt)
        if "acceleration" in table:  # of several data sets, maybe of some only
            given = table["acceleration"].to_numpy(np.float64)
            acceleration = np.where(np.isnan(given), acceleration, given)
        time = first["time"].to_numpy(np.float64, copy=True) if "time" in table else None
        return cls(
            pair_id=tuple(_join(recording, first["pair_id"])),
            follower=tuple(_join(recording, first["follower_id"])),
            recording=recording,
            follower_class=tuple(first["follower_class"]),
            dt=dt,
            offsets=torch.from_numpy(np.append(starts, len(table)).astype(np.int64)),
            gap=_flat(table["gap"]),
            speed=_flat(table["speed"]),
            leader_speed=_flat(table["leader_speed"]),
            acceleration=torch.from_numpy(acceleration.astype(np.float32)),
            begin=torch.from_numpy(time) if time is not None else None,
        )

    @classmethod
    def from_series(
        cls,
        gap: Tensor,
        speed: Tensor,
        leader_speed: Tensor,
        dt: float,
        acceleration: Tensor | None = None,
        recording: str = "simulated",
    ) -> Pairs:
        """Pairs of equal length, one per row of the series, with ids that count from 0.

        Args:
            gap, speed, leader_speed: (pair, step).
            dt: time step (s).
            acceleration: (pair, step); None takes it from the speeds.
            recording: the first part of every id.

        Example:
            >>> series = torch.full((2, 5), 10.0)
            >>> Pairs.from_series(2 * series, series, series, dt=0.2).pair_id
            ('simulated/0', 'simulated/1')
        """
        count, steps = gap.shape
        names = tuple(f"{recording}/{i}" for i in range(count))
        offsets = torch.arange(count + 1) * steps
        if acceleration is None:
            flat = speed.double().flatten().numpy()
            change = forward_difference(flat, offsets[:-1].numpy(), dt)
            acceleration = torch.from_numpy(change).to(speed.dtype)
        return cls(
            pair_id=names,
            follower=names,
            recording=(recording,) * count,
            follower_class=("car",) * count,
            dt=dt,
            offsets=offsets,
            gap=gap.flatten(),
            speed=speed.flatten(),
            leader_speed=leader_speed.flatten(),
            acceleration=acceleration.flatten(),
        )

    def to_table(self) -> pd.DataFrame:
        """A row per sample, with the columns of `asbc.data.table`: what `read_pairs` reads.

        Example:
            >>> series = torch.full((2, 5), 10.0)
            >>> pairs = Pairs.from_series(2 * series, series, series, dt=0.2)
            >>> pairs.to_table()[["recording", "pair_id", "time", "gap"]].tail(2)
               recording pair_id  time   gap
            8  simulated       1   0.6  20.0
            9  simulated       1   0.8  20.0
        """
        lengths = self.lengths.numpy()
        labels = {
            "recording": self.recording,
            "pair_id": _part(self.pair_id, self.recording),
            "follower_id": _part(self.follower, self.recording),
            "follower_class": self.follower_class,
        }
        step = np.arange(lengths.sum()) - np.repeat(self.offsets[:-1].numpy(), lengths)
        begin = 0.0 if self.begin is None else np.repeat(self.begin.numpy(), lengths)
        columns = {name: np.repeat(np.array(label), lengths) for name, label in labels.items()}
        return pd.DataFrame(
            {
                **columns,
                "time": begin + step * self.dt,
                **{name: getattr(self, name).numpy() for name in STATE_COLUMNS},
            }
        )

    def pair(self, index: int) -> dict[str, Tensor]:
        """The columns of one pair, each (samples,)."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {name: getattr(self, name)[rows] for name in STATE_COLUMNS}

    def select(self, indices: Sequence[int] | np.ndarray | Tensor) -> Pairs:
        """The pairs at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        lengths = self.lengths[chosen]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        # Row r of the selection is row r - (its pair's new start) + (its pair's old start).
        shift = torch.repeat_interleave(self.offsets[chosen] - offsets[:-1], lengths)
        rows = torch.arange(int(offsets[-1])) + shift
        order = chosen.tolist()
        return replace(
            self,
            pair_id=tuple(self.pair_id[i] for i in order),
            follower=tuple(self.follower[i] for i in order),
            recording=tuple(self.recording[i] for i in order),
            follower_class=tuple(self.follower_class[i] for i in order),
            offsets=offsets,
            true_theta=None if self.true_theta is None else self.true_theta[chosen],
            begin=None if self.begin is None else self.begin[chosen],
            **{name: getattr(self, name)[rows] for name in STATE_COLUMNS},
        )

    def find(self, name: str | int) -> int:
        """Position of a pair by its id, with or without the recording."""
        return find_pair(self.pair_id, name)

    def contexts(self, steps: int) -> Tensor:
        """The first `steps` states (gap, speed, approach rate) of each pair, (pairs, steps, 3)."""
        shortest = int(self.lengths.min()) if len(self) else 0
        if steps > shortest:
            raise InputError(
                f"data.context_steps={steps} is longer than the shortest pair ({shortest} samples "
                f"of {self.dt:g} s); lower data.context_steps or raise data.min_duration"
            )
        rows = self.offsets[:-1, None] + torch.arange(steps)
        speed = self.speed[rows]
        return torch.stack([self.gap[rows], speed, speed - self.leader_speed[rows]], dim=-1)


def find_pair(ids: Sequence[str], name: str | int) -> int:
    """Position of a pair among `recording/pair_id`, by the whole or by the second part."""
    wanted = str(name)
    found = [i for i, p in enumerate(ids) if wanted in (p, p.partition("/")[2])]
    if len(found) == 1:
        return found[0]
    problem = "matches several pairs" if found else "is not in the data"
    raise InputError(
        f"pair {wanted} {problem} ({len(ids)} pairs: {', '.join(map(str, ids[:5]))}, ...); give "
        "its id as recording/pair_id"
    )


def pair_starts(table: pd.DataFrame) -> np.ndarray:
    """Row positions at which a new pair begins, in a table sorted by pair."""
    if table.empty:
        return np.zeros(0, dtype=np.int64)
    key = table[["recording", "pair_id"]]
    changed = (key != key.shift()).any(axis=1).to_numpy()
    return np.flatnonzero(changed)


def forward_difference(speed: np.ndarray, starts: np.ndarray, dt: float) -> np.ndarray:
    """Acceleration from each sample to the next; a pair's last repeats the one before.

    This is the simulator's own convention: v[t + 1] = v[t] + a[t] dt.
    """
    acceleration = np.zeros_like(speed)
    acceleration[:-1] = np.diff(speed) / dt
    last = np.append(starts[1:], len(speed)) - 1
    acceleration[last] = np.where(last > starts, acceleration[np.maximum(last - 1, 0)], 0.0)
    return acceleration


def _join(recording: Sequence[str], key: Sequence[str] | pd.Series) -> list[str]:
    return [f"{r}/{k}" for r, k in zip(recording, key, strict=True)]


def _part(keys: Sequence[str], recording: Sequence[str]) -> list[str]:
    """What follows the recording in keys that `_join` made."""
    return [key.removeprefix(f"{r}/") for r, key in zip(recording, keys, strict=True)]


def _flat(column: pd.Series) -> Tensor:
    return torch.from_numpy(column.to_numpy(np.float32, copy=True))
