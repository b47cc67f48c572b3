"""scenario=sumo: export drivers, and check the export by driving it in SUMO."""

from dataclasses import dataclass
from typing import Any

import torch

from asbc.data.windows import gather
from asbc.population.outputs import SUMO_FILE, sumo_types
from asbc.population.sumo_replay import read_vtypes, replay_in_simulator, replay_in_sumo
from asbc.population.sumo_types import write_vtypes
from asbc.population.world import World
from asbc.utils.checks import InputError
from asbc.utils.random import stream


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
        theta = read_vtypes(file)[1][:count]
        ours = replay_in_simulator(theta, leader, gap, speed, simulator.dt)
        difference = float((theirs.speed - ours.speed).abs().max())
        return (
            f"{self.drivers} vehicle types written\n"
            f"  {count} of them driven {steps * simulator.dt:.0f} s behind recorded leaders: "
            f"SUMO and our integrator differ by at most {difference:.1e} m/s"
        )
