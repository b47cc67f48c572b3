"""`scenario=sumo_network`: calibrated drivers in a user's SUMO network, and a page about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from asbc.calibration.export.sumo import SUMO_FILE, sumo_types, write_vtypes
from asbc.engine import LocalEngine
from asbc.engine.local import LocalWorkers
from asbc.errors import InputError
from asbc.population.scenarios import World
from asbc.population.sumo_network import (
    SAMPLE_EVERY,
    NetworkDrive,
    Traffic,
    drive_network,
    require_readable,
)
from asbc.population.sumo_replay import type_names
from asbc.reporting.figures.style import COLOURS, DOUBLE, LINES, new_figure, save_figure, style
from asbc.reporting.html import Page, Picture, Section, write_page
from asbc.reporting.text_tables import TextTable
from asbc.simulator.laws import IDM
from asbc.simulator.sumo_batch import require_sumo
from asbc.simulator.sumo_models import SumoModel
from asbc.utils.checks import check_number

WITH, WITHOUT = "with_noise", "without_noise"
LABELS = {WITH: "with the drivers' noise", WITHOUT: "without noise"}


@dataclass(frozen=True, kw_only=True)
class NetworkScenario:
    """A SUMO network whose vehicles are drivers of the population.

    Args:
        net, routes: the user's files; routes may be several.
        additional: further additional files of the user's.
        replaced: the user's types whose vehicles become drivers; none: all vehicles.
        drivers: different drivers, exported as types.
        duration: of the simulation (s); it ends before if all vehicles have arrived.
        obey_limits: whether lanes' limits bind, besides the drivers' own desired speeds.
        compare: whether to simulate without the residual noise too, where there is one.
        fcd: whether to write all trajectories.
        types: settings of the export, see `SumoTypes`.
    """

    net: str | None = None
    routes: str | Sequence[str] | None = None
    additional: Sequence[str] = ()
    replaced: Sequence[str] = ()
    drivers: int = 300
    duration: float = 3600.0
    obey_limits: bool = True
    compare: bool = True
    fcd: bool = True
    types: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.drivers < 1:
            raise InputError(f"scenario.drivers={self.drivers}; expected at least 1")
        check_number("scenario.duration", self.duration, above=0)

    def run(self, world: World) -> str:
        """Write types, trajectories, trips, `network.csv` and `network.html`."""
        require_sumo()
        files = self._files()
        jobs = self._jobs(world, *files)
        require_readable(next(iter(jobs.values())))
        # Each in a process of its own: SUMO's failures are not ours.
        engine = LocalEngine(workers=len(jobs), attempts=2, time_limit=None)
        with LocalWorkers(None, len(jobs), engine) as pool:
            found = pool.gather(drive_network, [(f"SUMO {name}", j) for name, j in jobs.items()])
        traffic = dict(zip(jobs, found, strict=True))
        table = summarise(traffic)
        table.to_csv(world.folder / "network.csv", float_format="%.6g")
        picture = save_figure(network_figure(traffic), world.folder, "network")
        write_page(self._page(world, table, picture), world.folder / "network.html")
        first = traffic[next(iter(traffic))]
        return (
            f"{first.departed} vehicles departed, {first.drivers} of them drivers of the "
            f"population, {first.arrived[-1]} arrived\n{table.round(3).to_string()}"
        )

    def _files(self) -> tuple[str, list[str]]:
        """The network and the routes, which must be there."""
        routes = [self.routes] if isinstance(self.routes, str) else list(self.routes or ())
        for name, paths in (("net", [self.net] if self.net else []), ("routes", routes)):
            if not paths:
                raise InputError(f"scenario=sumo_network needs {name}=FILE")
            for path in paths:
                if not Path(path).is_file():
                    raise InputError(f"{name}={path}: no such file")
        return str(self.net), routes

    def _jobs(self, world: World, net: str, routes: list[str]) -> dict[str, NetworkDrive]:
        simulator, file = world.model.simulator, world.folder / SUMO_FILE
        law = simulator.law
        if not isinstance(law, (IDM, SumoModel)):
            raise InputError(
                f"scenario=sumo_network: SUMO has no {type(law).__name__}; train with "
                "model=sumo_idm or one of SUMO's own models"
            )
        theta = world.population.sample(self.drivers, world.stream("network"))
        write_vtypes(file, theta, world.population.names, sumo_types(simulator, **self.types))
        noisy = bool(simulator.residual.parameters)
        names = [WITH, WITHOUT] if noisy and self.compare else [WITH if noisy else WITHOUT]
        shared: dict[str, Any] = {
            **{"net": net, "routes": routes, "additional": [str(a) for a in self.additional]},
            **{"types": str(file), "names": type_names(file), "replaced": list(self.replaced)},
            **{"dt": simulator.dt, "duration": self.duration, "seed": world.seed},
            **{"obey_limits": self.obey_limits, "fcd": self.fcd},
            "hyper": theta[:, len(law.parameters) :],
        }
        return {
            name: NetworkDrive(
                **shared,
                folder=str(world.folder / name),
                residual=simulator.residual if name == WITH else None,
            )
            for name in names
        }

    def _page(self, world: World, table: pd.DataFrame, picture: Path) -> Page:
        rows = [[str(name), *(f"{v:.4g}" for v in row)] for name, row in table.T.iterrows()]
        labels = [LABELS[name] for name in table.index]
        text = ["Every vehicle is a driver of the population from its departure on."]
        if len(table) == 2:
            text.append(
                "The same drivers with and without their residual accelerations, which SUMO's own "
                "IDM does not have: the difference is what driver noise does to this traffic."
            )
        if world.model.simulator.learned is not None:
            text.append(
                "In SUMO's network residual accelerations are those of the residual process: the "
                "learned residual of this run needs states that SUMO does not give."
            )
        section = Section(
            title="Traffic",
            text=text,
            tables=[TextTable(header=["", *labels], rows=rows)],
            pictures=[
                Picture(picture, "Time gaps, speeds, accelerations and vehicles on the way.")
            ],
        )
        facts = {
            "network": Path(str(self.net)).name,
            "drivers": f"{world.population.drivers:,} calibrated, {self.drivers:,} drawn",
            "step": f"{world.model.simulator.dt:g} s",
        }
        return Page("Calibrated drivers in a SUMO network", facts, [], [section])


def summarise(traffic: Mapping[str, Traffic]) -> pd.DataFrame:
    """A row per simulation: flow, speeds, time gaps, accelerations, collisions."""
    rows = {}
    for name, each in traffic.items():
        hours = len(each.arrived) * SAMPLE_EVERY / 3600
        gaps = np.quantile(each.headway, [0.1, 0.5, 0.9]) if len(each.headway) else [np.nan] * 3
        rows[name] = {
            "arrived": each.arrived[-1],
            "flow (vehicles/h)": each.arrived[-1] / hours,
            "mean speed (m/s)": each.speed.mean() if len(each.speed) else np.nan,
            "sd of speed (m/s)": each.speed.std() if len(each.speed) else np.nan,
            "standing": (each.speed < 0.1).mean() if len(each.speed) else np.nan,
            "time gap, 10% (s)": gaps[0],
            "time gap, median (s)": gaps[1],
            "time gap, 90% (s)": gaps[2],
            "sd of acceleration (m/s²)": each.acceleration.std()
            if len(each.acceleration)
            else np.nan,
            "collisions": each.collisions,
        }
    return pd.DataFrame(rows).T.rename_axis("simulation")


def network_figure(traffic: Mapping[str, Traffic]) -> Figure:
    """Time gaps, speeds, accelerations, and vehicles on the way."""
    with style():
        figure = new_figure(DOUBLE, 4.2)
        axes = figure.subplots(2, 2).ravel()
        kinds = {"headway": (0, 6), "speed": (0, None), "acceleration": (-4, 4)}
        names = ("time gap (s)", "speed (m/s)", "acceleration (m/s$^2$)")
        for ax, (kind, (low, high)), label in zip(axes, kinds.items(), names, strict=False):
            values = [getattr(each, kind) for each in traffic.values()]
            top = high if high is not None else max([1.0, *(v.max() for v in values if len(v))])
            bins = np.linspace(low, top, 61)
            for i, (name, value) in enumerate(zip(traffic, values, strict=True)):
                given = {"color": COLOURS[i], "ls": LINES[i], "label": LABELS[name]}
                ax.hist(value, bins=bins, density=True, histtype="step", **given)
            ax.set(xlabel=label, ylabel="density")
        for i, (name, each) in enumerate(traffic.items()):
            time = np.arange(len(each.running)) * SAMPLE_EVERY / 60
            axes[3].plot(time, each.running, color=COLOURS[i], ls=LINES[i], label=LABELS[name])
        axes[3].set(xlabel="time (min)", ylabel="vehicles on the way")
        handles, labels = axes[3].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
