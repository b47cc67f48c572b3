"""What to do with a population: on a ring, behind a recorded leader, or in SUMO."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.calibration.export.sumo import SUMO_FILE, sumo_types, write_vtypes
from asbc.data.source import DataSource
from asbc.data.windows import gather
from asbc.errors import InputError
from asbc.population.pictures import (
    SERIES,
    fundamental_diagram,
    most_unsteady,
    new_drivers_figure,
    time_space_diagram,
)
from asbc.population.population import Population, simulate
from asbc.population.ring import (
    Cells,
    Ring,
    RingTraffic,
    edie_cells,
    equilibrium_curve,
    simulate_ring,
    summarise_traffic,
)
from asbc.population.sumo_replay import read_vtypes, replay_in_simulator, replay_in_sumo
from asbc.reporting.figures.style import save_figure
from asbc.simulator import Rollout
from asbc.simulator.black_box import require_likelihood
from asbc.simulator.sumo_models import SumoModel
from asbc.trained_model import Model
from asbc.utils.checks import check_number
from asbc.utils.random import stream


@dataclass(frozen=True)
class World:
    """What a scenario works with.

    Attributes:
        model: law, residual process and kinematics, as trained.
        population: where drivers come from.
        source: recorded leaders, read only if a scenario asks for them.
        folder: where files go.
        seed: all randomness.
    """

    model: Model
    population: Population
    source: DataSource
    folder: Path
    seed: int

    def stream(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose."""
        return stream(self.seed, purpose)

    def pair(self, name: str | int | None) -> int:
        """Position of a recorded pair by its id, with or without the recording; None: longest."""
        pairs = self.source.pairs()
        if name is None:
            return int(pairs.lengths.argmax())
        return pairs.find(name)


class Scenario(Protocol):
    """One thing to do with a population; built from a file of the `scenario` config group."""

    def run(self, world: World) -> str:
        """Write files into the world's folder; returns the closing text."""
        ...


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


@dataclass(frozen=True, kw_only=True)
class RingScenario:
    """Time-space diagram at one number of vehicles, fundamental diagram over several.

    Args:
        ring: the road; its duration is that of the main simulation.
        vehicles: on the ring.
        replications: simulated at once, each with vehicles drawn anew from the population.
        warm_up: seconds that are not measured.
        shown_seconds: the last seconds, shown in the time-space diagram.
        cell_length, cell_duration: m and s of the cells of Edie's measures.
        sweep_vehicles: further numbers of vehicles for the fundamental diagram.
        sweep_duration: seconds that each of them is simulated.
    """

    ring: Ring = field(default_factory=Ring)
    vehicles: int = 32
    replications: int = 8
    warm_up: float = 300.0
    shown_seconds: float = 600.0
    cell_length: float = 50.0
    cell_duration: float = 60.0
    sweep_vehicles: Sequence[int] = (4, 8, 12, 16, 24, 40, 48, 56, 64, 80)
    sweep_duration: float = 900.0

    def __post_init__(self) -> None:
        counts = {"vehicles": self.vehicles, "replications": self.replications}
        for name, value in counts.items():
            if value < 1:
                raise InputError(f"scenario.{name}={value}; expected at least 1")
        check_number("scenario.warm_up", self.warm_up, minimum=0)
        for name in ("shown_seconds", "cell_length", "cell_duration", "sweep_duration"):
            check_number(f"scenario.{name}", getattr(self, name), above=0)
        shortest = min(
            [self.ring.duration, *([self.sweep_duration] if self.sweep_vehicles else [])]
        )
        if self.warm_up + self.cell_duration > shortest:
            raise InputError(
                f"scenario.warm_up={self.warm_up:g} s leaves no cell of "
                f"{self.cell_duration:g} s in a simulation of {shortest:g} s"
            )

    def run(self, world: World) -> str:
        """Write `ring.csv`, `time_space.*` and `fundamental_diagram.*`."""
        require_likelihood(world.model.simulator, "scenario=ring", "law")
        traffic = self._simulate(world, self.vehicles, self.ring)
        shown = time_space_diagram(traffic, most_unsteady(traffic), self.shown_seconds)
        save_figure(shown, world.folder, "time_space")
        shorter = replace(self.ring, duration=self.sweep_duration)
        others = (self._simulate(world, vehicles, shorter) for vehicles in self.sweep_vehicles)
        measured = [self._measure(each) for each in chain([traffic], others)]
        tables, cells = [table for table, _ in measured], [part for _, part in measured]
        table = pd.concat(tables).reset_index().sort_values(["vehicles", "replication"])
        table.to_csv(world.folder / "ring.csv", index=False, float_format="%.6g")
        law, mean = world.model.simulator.law, world.population.mean()
        figure = fundamental_diagram(
            cells,
            (table["density_per_km"].to_numpy() / 1000, table["flow_per_hour"].to_numpy() / 3600),
            equilibrium_curve(law, mean, self.ring.vehicle_length),
        )
        save_figure(figure, world.folder, "fundamental_diagram")
        return self._text(tables[0], table)

    def _simulate(self, world: World, vehicles: int, ring: Ring) -> RingTraffic:
        rng = stream(world.seed, "ring", vehicles)
        theta = world.population.sample(self.replications * vehicles, rng)
        theta = theta.reshape(self.replications, vehicles, -1)
        return simulate_ring(world.model.simulator, theta, ring, rng)

    def _measure(self, traffic: RingTraffic) -> tuple[pd.DataFrame, Cells]:
        measured = traffic.after(self.warm_up)
        cells = edie_cells(measured, self.cell_length, self.cell_duration)
        return summarise_traffic(measured), cells

    def _text(self, main: pd.DataFrame, every: pd.DataFrame) -> str:
        flow, speed = main["flow_per_hour"], main["mean_speed"]
        best = every.groupby("vehicles")["flow_per_hour"].mean()
        return (
            f"{self.vehicles} vehicles on {self.ring.length:.0f} m, {self.replications} "
            f"replications of {self.ring.duration:g} s:\n"
            f"  mean speed {speed.mean():.1f} m/s, flow {flow.mean():.0f} vehicles/h, "
            f"sd of speed {main['speed_sd'].mean():.1f} m/s, "
            f"standing {main['share_standing'].mean():.1%} of the time\n"
            f"  highest flow {best.max():.0f} vehicles/h with {best.idxmax()} vehicles\n"
            f"  vehicles that touched the one ahead: {int(every['collided_vehicles'].sum())} of "
            f"{int(every['vehicles'].sum())}"
        )


@dataclass(frozen=True, kw_only=True)
class SumoScenario:
    """Drivers as vehicle types, some of them driven behind recorded leaders by SUMO and by us.

    Args:
        drivers: exported types.
        replayed: of these, driven behind the first recorded leaders.
        types: settings of the export, see `SumoTypes`.
    """

    drivers: int = 300
    replayed: int = 20
    types: dict[str, Any]

    def __post_init__(self) -> None:
        if not 1 <= self.replayed <= self.drivers:
            raise InputError(
                f"scenario.replayed={self.replayed}; expected 1 to scenario.drivers={self.drivers}"
            )

    def run(self, world: World) -> str:
        """Write `drivers.add.xml`; the text says how closely SUMO agrees."""
        simulator, file = world.model.simulator, world.folder / SUMO_FILE
        theta = world.population.sample(self.drivers, stream(world.seed, "sumo"))
        write_vtypes(file, theta, world.population.names, sumo_types(simulator, **self.types))
        pairs = world.source.pairs()
        count = min(self.replayed, len(pairs))
        steps = int(pairs.lengths[:count].min())
        first, start = torch.arange(count), torch.zeros(count, dtype=torch.int64)
        leader = gather(pairs.leader_speed, pairs.offsets, first, start, steps)
        gap, speed = pairs.gap[pairs.offsets[:count]], pairs.speed[pairs.offsets[:count]]
        theirs = replay_in_sumo(file, leader, gap, speed, simulator.dt)
        law, noise = simulator.law, ""
        if isinstance(law, SumoModel):
            state = (leader.double(), gap, speed, stream(world.seed, "replay"))
            ours = simulator.rollout(theta[:count].double(), *state, check=False).speed
            noise = f", of which {law.name} has its own noise" if law.draws else ""
        else:
            own = read_vtypes(file)[1][:count]
            ours = replay_in_simulator(own, leader, gap, speed, simulator.dt).speed
        difference = float((theirs.speed - ours).abs().max())
        return (
            f"{self.drivers} vehicle types written\n"
            f"  {count} of them driven {steps * simulator.dt:.0f} s behind recorded leaders: "
            f"SUMO and our integrator differ by at most {difference:.1e} m/s{noise}"
        )
