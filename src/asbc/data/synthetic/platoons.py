"""Platoons on roads of every kind: `data=roads`, what models that are shipped are trained behind.

Standing queues, streets with lights, stop-and-go, congested and free motorways, 0 to 40 m/s: a
model meets its user's recordings unprepared, so that it must have seen leaders of all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch

from asbc.data.pairs import Pairs
from asbc.data.source import DataSource, Loaded
from asbc.data.synthetic.regimes import FRAME_RATE, REGIMES, leader_speeds
from asbc.data.synthetic.road import matern_noise, near_equilibrium
from asbc.data.synthetic.true_drivers import THETA_NAMES, draw_drivers
from asbc.data.table import validate_pairs
from asbc.errors import InputError
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import stream

# Seconds before anything is recorded, in which platoons find their gaps.
SETTLING = 20.0
# A vehicle farther behind (m) follows nobody.
FARTHEST = 150.0
# Who wants to drive slower than this times the fastest moment of the platoon would lose it.
PACE = 1.1


@dataclass(frozen=True, kw_only=True)
class Roads(DataSource):
    """Leaders of all regimes, and drivers with known parameters behind them.

    Args:
        seed: of the traffic.
        platoons: platoons by regime, see `asbc.data.synthetic.regimes`.
        followers: drivers of each platoon.
        duration: of the recording, s.
        truck_share: share of trucks among all vehicles.
        spread: of the drivers, in units of that of `data=synthetic`.

    Example:
        >>> source = Roads(platoons={"free": 2}, followers=3, duration=40.0)
        >>> pairs = source.pairs()
        >>> pairs.pair_id[0], pairs.true_theta.shape[1], bool(pairs.speed.min() > 15)
        ('free/0-1', 7, True)
    """

    seed: int = 0
    platoons: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REGIMES, 50))
    followers: int = 5
    duration: float = 60.0
    truck_share: float = 0.15
    spread: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.platoons if name not in REGIMES]
        if unknown:
            known = ", ".join(REGIMES)
            raise InputError(
                f"data.platoons.{unknown[0]}: no such regime; expected some of {known}"
            )
        for name, count in self.platoons.items():
            check_integer(f"data.platoons.{name}", count, minimum=0)
        check_integer("data.followers", self.followers, minimum=1)
        check_number("data.spread", self.spread, above=0)
        if not any(self.platoons.values()):
            raise InputError("data.platoons: no regime has a platoon; give one of them some")
        if abs(self.dt * FRAME_RATE - round(self.dt * FRAME_RATE)) > 1e-6:
            raise InputError(
                f"data.dt={self.dt:g}; expected a multiple of {1 / FRAME_RATE:g} s, the time "
                "step of the traffic"
            )

    @property
    def description(self) -> str:
        mix = ", ".join(f"{count} {name}" for name, count in self.platoons.items() if count)
        return f"simulated roads: seed {self.seed}, platoons of {self.followers}: {mix}"

    @cached_property
    def _driven(self) -> tuple[Loaded, dict[str, np.ndarray]]:
        """A pairs table of all regimes, and the true theta of each pair."""
        parts = {name: self._drive(name, n) for name, n in self.platoons.items() if n}
        table = pd.concat([part for part, _, _ in parts.values()], ignore_index=True)
        truth = {key: theta for _, each, _ in parts.values() for key, theta in each.items()}
        far = {"pairs that met or lost each other": sum(lost for _, _, lost in parts.values())}
        return Loaded(validate_pairs(table, self.description), far), truth

    def load(self) -> Loaded:
        return self._driven[0]

    @cached_property
    def _with_truth(self) -> Pairs:
        pairs, (_, truth) = super().pairs(), self._driven
        theta = torch.from_numpy(np.stack([truth[name] for name in pairs.pair_id])).float()
        return replace(pairs, true_theta=theta, true_names=THETA_NAMES)

    def pairs(self) -> Pairs:
        """All usable pairs, with the true theta of each follower."""
        return self._with_truth

    def _drive(self, name: str, count: int) -> tuple[pd.DataFrame, dict[str, np.ndarray], int]:
        """The pairs of one regime, their true theta, and how many were left out."""
        rng = stream(self.seed, "roads", name)
        settling, frames = (round(s * FRAME_RATE) for s in (SETTLING, self.duration))
        profiles = leader_speeds(REGIMES[name], count, settling + frames + 1, rng)
        size = self.followers + 1
        drivers = draw_drivers(count * size, self.truck_share, rng, self.spread)
        fastest = np.repeat(profiles.max(axis=1), size)
        drivers.theta[:, 0] = np.maximum(drivers.theta[:, 0], PACE * fastest)
        traffic = near_equilibrium(drivers, profiles[:, 0], (0.0, 0.0), rng)
        sigma, ell = drivers.theta[:, 5], drivers.theta[:, 6]
        residual = matern_noise(sigma, ell, settling + frames, rng)
        every = round(self.dt * FRAME_RATE)
        series = []
        for frame in range(settling + frames):
            if frame >= settling and (frame - settling) % every == 0:
                series.append((traffic.gap(), traffic.speed.copy()))
            traffic.step(residual[:, frame], profiles[:, frame + 1])
        gap, speed = (np.stack(values, axis=1) for values in zip(*series, strict=True))
        followers = np.flatnonzero(traffic.leader >= 0)
        near = (gap[followers].min(axis=1) > 0) & (gap[followers].max(axis=1) < FARTHEST)
        kept = followers[near]
        ids = [f"{i // size}-{i % size}" for i in kept]
        table = _table(name, ids, gap[kept], speed[kept], speed[kept - 1], self.dt)
        truth = {f"{name}/{key}": drivers.theta[i] for key, i in zip(ids, kept, strict=True)}
        return table, truth, int((~near).sum())


def _table(
    recording: str,
    ids: list[str],
    gap: np.ndarray,
    speed: np.ndarray,
    leader_speed: np.ndarray,
    dt: float,
) -> pd.DataFrame:
    """Pairs table of series (pair, step)."""
    pairs, steps = gap.shape
    name = np.repeat(np.array(ids, dtype=object), steps)
    return pd.DataFrame(
        {
            "recording": recording,
            "pair_id": name,
            "follower_id": name,
            "time": np.tile(np.arange(steps) * dt, pairs),
            "gap": gap.ravel(),
            "speed": speed.ravel(),
            "leader_speed": leader_speed.ravel(),
            "follower_class": "unknown",
        }
    )
