"""Pictures of a population and of its traffic, and the files of a calibrated one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from asbc.calibration.export.sumo import SUMO_FILE, SumoTypes, write_vtypes
from asbc.population.population import Population
from asbc.population.ring import Cells, RingTraffic
from asbc.reporting.figures.case_study import draw_posterior
from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    LABELS,
    LEADER,
    OBSERVED,
    new_figure,
    save_figure,
    style,
    symbol,
)
from asbc.simulator import Rollout
from asbc.utils.random import stream

# Points per panel of the pair plot; more only make the file larger.
SHOWN_DRAWS = 5000
SERIES = {"gap": "s", "speed": "v", "acceleration": "a"}
# Slow is dark; the map's lightness is monotone, so it survives a black-and-white printer.
SPEED_MAP = "viridis"
SAMPLE_EVERY = 1.0  # s between drawn points


def population_figure(population: Population, rng: np.random.Generator) -> Figure:
    """Pair plot of pooled draws below the diagonal, their correlation matrix above it."""
    units = [unit.replace("^2", "²") for unit in population.units]
    labels = [f"{symbol(n)} ({u})" for n, u in zip(population.names, units, strict=True)]
    pooled = population.theta
    shown = pooled if len(pooled) <= SHOWN_DRAWS else population.sample(SHOWN_DRAWS, rng)
    with style():
        figure = new_figure(DOUBLE, DOUBLE)
        part: Any = figure.subfigures()
        part.suptitle(f"{population.drivers:,} drivers, {len(pooled):,} pooled draws", fontsize=9)
        draw_posterior(part, labels, shown.numpy(), COLOURS[0])
    return figure


def new_drivers_figure(
    rollout: Rollout, leader_speed: Tensor, dt: float, observed: Mapping[str, Tensor]
) -> Figure:
    """Bands of new drivers behind a leader, and the recorded follower.

    Args:
        rollout: drives of new drivers, each series (driver, step).
        leader_speed: (step,).
        dt: time step (s).
        observed: the recorded follower's gap, speed and acceleration, each (step,).
    """
    time = np.arange(len(leader_speed)) * dt
    with style():
        figure = new_figure(DOUBLE, 4.8)
        axes = figure.subplots(3, 1, sharex=True)
        for ax, (name, variable) in zip(axes, SERIES.items(), strict=True):
            series = getattr(rollout, name)
            low, lower, middle, upper, high = torch.quantile(
                series, torch.tensor([0.025, 0.25, 0.5, 0.75, 0.975]), dim=0
            ).numpy()
            fill = {"color": COLOURS[0], "linewidth": 0}
            ax.fill_between(time, low, high, alpha=0.2, **fill, label="95% of new drivers")
            ax.fill_between(time, lower, upper, alpha=0.35, **fill, label="50%")
            ax.plot(time, middle, color=COLOURS[0], label="median")
            ax.plot(time, observed[name], color=OBSERVED, lw=1.0, label="recorded follower")
            if name == "speed":
                ax.plot(time, leader_speed, "--", color=LEADER, label="leader")
            ax.set(ylabel=LABELS[variable], xlim=(time[0], time[-1]))
            _limit(ax, low, high, observed[name].numpy())
        figure.align_ylabels()
        axes[-1].set_xlabel("time (s)")
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def _limit(ax: Axes, low: np.ndarray, high: np.ndarray, observed: np.ndarray) -> None:
    """Room for the recording and 98% of the band: a moment's emergency braking sets no scale."""
    bottom = min(np.quantile(low, 0.01), observed.min())
    top = max(np.quantile(high, 0.99), observed.max())
    margin = 0.08 * max(top - bottom, 1e-6)
    ax.set_ylim(bottom - margin, top + margin)


def time_space_diagram(traffic: RingTraffic, replication: int, seconds: float) -> Figure:
    """Every vehicle's position over the last `seconds`, coloured by its speed."""
    first = max(0, traffic.speed.shape[1] - 1 - round(seconds / traffic.dt))
    every = max(1, round(SAMPLE_EVERY / traffic.dt))
    position = traffic.position[replication, first::every].numpy()
    speed = traffic.speed[replication, first::every].numpy()
    time = (first + np.arange(len(position)) * every) * traffic.dt
    with style():
        figure = new_figure(DOUBLE, 3.0)
        ax = figure.subplots()
        pieces, colour = _pieces(time, position, speed, traffic.ring.length)
        lines = LineCollection(
            pieces, array=colour, cmap=SPEED_MAP, linewidths=0.9, rasterized=True
        )
        lines.set_clim(0, float(np.quantile(speed, 0.999)))
        ax.add_collection(lines)
        ax.set(xlim=(time[0], time[-1]), ylim=(0, traffic.ring.length))
        ax.set(xlabel="time (s)", ylabel="position on the ring (m)")
        ax.grid(False)
        figure.colorbar(lines, ax=ax, label="speed (m/s)", pad=0.01)
    return figure


def fundamental_diagram(
    cells: Sequence[Cells],
    means: tuple[np.ndarray, np.ndarray],
    equilibrium: tuple[Tensor, Tensor],
) -> Figure:
    """Flow and speed over density.

    Args:
        cells: local states, one entry per simulated number of vehicles.
        means: density and flow of whole replications, 1/m and 1/s.
        equilibrium: the relation of identical mean drivers without noise.
    """
    density = np.concatenate([c.density.ravel() for c in cells])
    flow = np.concatenate([c.flow.ravel() for c in cells])
    occupied = density > 0
    density, flow = density[occupied], flow[occupied]
    with style():
        figure = new_figure(DOUBLE, 3.0)
        left, right = figure.subplots(1, 2)
        top = 1050 * float(density.max())
        _relation(left, density, flow, means, equilibrium, lambda k, q: 3600 * q)
        _relation(right, density, flow, means, equilibrium, lambda k, q: 3.6 * q / k)
        left.set(xlim=(0, top), ylim=(0, None), ylabel="flow (vehicles/h)")
        right.set(xlim=(0, top), ylim=(0, 3.9 * float((flow / density).max())))
        right.set(ylabel="speed (km/h)")
        for ax in (left, right):
            ax.set_xlabel("density (vehicles/km)")
        right.legend(loc="upper right", markerscale=1.5)
    return figure


def _relation(
    ax: Axes,
    density: np.ndarray,
    flow: np.ndarray,
    means: tuple[np.ndarray, np.ndarray],
    equilibrium: tuple[Tensor, Tensor],
    measure: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> None:
    """One panel; `measure(k, q)` is what stands on the vertical axis."""
    ax.plot(
        1000 * density,
        measure(density, flow),
        ".",
        ms=1.5,
        color=COLOURS[4],
        alpha=0.25,
        rasterized=True,
        label="cells (Edie)",
    )
    k, q = (np.asarray(value) for value in equilibrium)
    ax.plot(1000 * k, measure(k, q), color=OBSERVED, lw=1.1, label="identical mean drivers")
    k, q = means
    ax.plot(1000 * k, measure(k, q), "o", ms=3.5, color=COLOURS[1], label="whole replications")


def _pieces(
    time: np.ndarray, position: np.ndarray, speed: np.ndarray, length: float
) -> tuple[list[np.ndarray], np.ndarray]:
    """Line pieces between samples with their speeds; one across the origin is drawn twice."""
    step, vehicle = np.indices((len(time) - 1, position.shape[1])).reshape(2, -1)
    start, end = position[step, vehicle], position[step + 1, vehicle]
    across = end < start
    first = np.concatenate([start, start[across] - length])
    last = np.concatenate([np.where(across, end + length, end), end[across]])
    step = np.concatenate([step, step[across]])
    vehicle = np.concatenate([vehicle, vehicle[across]])
    ends = [np.stack([time[step], first], -1), np.stack([time[step + 1], last], -1)]
    return list(np.stack(ends, axis=1)), speed[step, vehicle]


def most_unsteady(traffic: RingTraffic) -> int:
    """The replication in which speeds vary most."""
    return int(torch.argmax(traffic.speed.flatten(1).std(1)))


def write_population(
    population: Population, folder: Path, drivers: int, types: SumoTypes, seed: int
) -> list[str]:
    """Draw the population, and export `drivers` new drivers; returns what was written.

    A law that SUMO does not know has no export.
    """
    rng = stream(seed, "population")
    save_figure(population_figure(population, rng), folder, "population")
    written = ["population.png", "population.pdf"]
    if drivers and set(types.parameters) <= set(population.names):
        theta = population.sample(drivers, rng)
        write_vtypes(folder / SUMO_FILE, theta, population.names, types)
        written.append(SUMO_FILE)
    return written
