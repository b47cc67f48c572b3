"""scenario=ring: the population on a ring road, at one density and over many."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from asbc.population.flow import Cells, edie_cells, equilibrium_curve, summarise_traffic
from asbc.population.ring import Ring, RingTraffic, simulate_ring
from asbc.population.ring_figures import fundamental_diagram, most_unsteady, time_space_diagram
from asbc.population.world import World
from asbc.reporting.figures.style import save_figure
from asbc.utils.checks import InputError
from asbc.utils.random import stream


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
        traffic = self._simulate(world, self.vehicles, self.ring)
        shown = time_space_diagram(traffic, most_unsteady(traffic), self.shown_seconds)
        save_figure(shown, world.folder, "time_space")
        tables, cells = [self._measure(traffic)[0]], [self._measure(traffic)[1]]
        shorter = replace(self.ring, duration=self.sweep_duration)
        for vehicles in self.sweep_vehicles:
            table, part = self._measure(self._simulate(world, vehicles, shorter))
            tables.append(table)
            cells.append(part)
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
