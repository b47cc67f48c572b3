"""Pictures of traffic on a ring: trajectories in space and time, and the fundamental diagram."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from asbc.population.flow import Cells
from asbc.population.ring import RingTraffic
from asbc.reporting.figures.style import COLOURS, DOUBLE, OBSERVED, new_figure, style

# Slow is dark; the map's lightness is monotone, so it survives a black-and-white printer.
SPEED_MAP = "viridis"
SAMPLE_EVERY = 1.0  # s between drawn points


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
