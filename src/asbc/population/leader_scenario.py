"""scenario=leader: new drivers of the population behind a recorded leader."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.population.figures import SERIES, new_drivers_figure
from asbc.population.new_drivers import simulate
from asbc.population.world import World
from asbc.reporting.figures.style import save_figure
from asbc.simulator import Rollout
from asbc.utils.checks import InputError
from asbc.utils.random import stream


@dataclass(frozen=True, kw_only=True)
class LeaderScenario:
    """What the population would have done in a recorded follower's place.

    Args:
        pair: id of the recorded pair; None takes the longest recording.
        drivers: new drivers.
    """

    pair: str | int | None = None
    drivers: int = 500

    def __post_init__(self) -> None:
        if self.drivers < 2:
            raise InputError(f"scenario.drivers={self.drivers}; expected at least 2")

    def run(self, world: World) -> str:
        """Write `new_drivers.csv`, `drives.parquet` and `new_drivers.*`."""
        pairs = world.source.pairs()
        index = world.pair(self.pair)
        recorded, name = pairs.pair(index), pairs.pair_id[index]
        leader = recorded["leader_speed"]
        theta, rollout = simulate(
            world.model.simulator,
            world.population,
            self.drivers,
            leader,
            recorded["gap"][0],
            recorded["speed"][0],
            stream(world.seed, "new drivers", name),
        )
        drivers = pd.DataFrame(theta.numpy(), columns=list(world.population.names))
        drivers.rename_axis("driver").to_csv(world.folder / "new_drivers.csv")
        drives(rollout, pairs.dt).to_parquet(world.folder / "drives.parquet", index=False)
        figure = new_drivers_figure(rollout, leader, pairs.dt, recorded)
        save_figure(figure, world.folder, "new_drivers")
        inside = {n: _inside(recorded[n], getattr(rollout, n)) for n in SERIES}
        shares = ", ".join(f"{n} {share:.0%}" for n, share in inside.items())
        return (
            f"{self.drivers} new drivers behind the leader of pair {name} "
            f"({len(leader) * pairs.dt:.0f} s):\n"
            f"  the recorded follower is among the middle 95% of them in {shares} of the time\n"
            f"  collisions: {int(rollout.collided.sum())}"
        )


def drives(rollout: Rollout, dt: float) -> pd.DataFrame:
    """A row per driver and time: gap, speed, acceleration."""
    drivers, steps = rollout.gap.shape
    return pd.DataFrame(
        {
            "driver": np.repeat(np.arange(drivers), steps),
            "time": np.tile(np.arange(steps) * dt, drivers),
            **{name: getattr(rollout, name).flatten().numpy() for name in SERIES},
        }
    )


def _inside(observed: Tensor, drawn: Tensor) -> float:
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975]), dim=0)
    return float(((observed >= low) & (observed <= high)).float().mean())
