"""Macroscopic measures of traffic: Edie's density, flow and speed, and their equilibrium."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.population.ring import RingTraffic
from asbc.simulator.laws import CarFollowingLaw

STANDING = 1.0  # m/s
FASTEST = 50.0  # m/s


class Cells(NamedTuple):
    """Traffic states of space-time cells, each (replication, cell in time, cell in space)."""

    density: np.ndarray  # vehicles / m
    flow: np.ndarray  # vehicles / s

    @property
    def speed(self) -> np.ndarray:
        """Space-mean speed (m/s); NaN in an empty cell."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.flow / self.density


def edie_cells(traffic: RingTraffic, cell_length: float, cell_duration: float) -> Cells:
    """Edie's (1963) definitions: time spent and distance travelled per cell over its area.

    The ring is divided into equal cells of about `cell_length` m; a last, shorter cell in time is
    left out.
    """
    replications, steps, _ = traffic.speed.shape
    across = max(1, round(traffic.ring.length / cell_length))
    per_cell = max(1, round(cell_duration / traffic.dt))
    along = steps // per_cell
    used = slice(0, along * per_cell)
    cell = (traffic.position[:, used] / traffic.ring.length * across).long()
    place = cell.clamp_max(across - 1).numpy()
    time = (np.arange(along * per_cell) // per_cell)[:, None]
    replication = np.arange(replications)[:, None, None]
    index = ((replication * along + time) * across + place).ravel()
    size = replications * along * across
    count = np.bincount(index, minlength=size)
    speed = traffic.speed[:, used].double().numpy().ravel()
    distance = np.bincount(index, weights=speed, minlength=size)
    # Each sample stands for dt seconds; dt cancels in count * dt / (per_cell * dt).
    area = traffic.ring.length / across * per_cell
    shape = (replications, along, across)
    return Cells((count / area).reshape(shape), (distance / area).reshape(shape))


def summarise_traffic(traffic: RingTraffic) -> pd.DataFrame:
    """A row per replication: density, flow, mean speed, its spread, standstill and collisions."""
    speed = traffic.speed.double()
    mean = speed.mean(dim=(1, 2)).numpy()
    return pd.DataFrame(
        {
            "vehicles": speed.shape[-1],
            "density_per_km": 1000 * traffic.density,
            "flow_per_hour": 3600 * traffic.density * mean,
            "mean_speed": mean,
            "speed_sd": speed.flatten(1).std(1).numpy(),
            "share_standing": (speed < STANDING).double().mean(dim=(1, 2)).numpy(),
            "collided_vehicles": traffic.collided.sum(1).numpy(),
        }
    ).rename_axis("replication")


def equilibrium_curve(
    law: CarFollowingLaw, theta: Tensor, vehicle_length: float
) -> tuple[Tensor, Tensor]:
    """Density (1/m) and flow (1/s) of identical drivers `theta` (dim,) that all drive alike."""
    speed = torch.linspace(0, FASTEST, 1000, dtype=torch.float64)
    gap = law.equilibrium_gap(theta.double(), speed)
    reached = torch.isfinite(gap)
    density = 1 / (gap[reached] + vehicle_length)
    return density, density * speed[reached]
