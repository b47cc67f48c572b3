"""Traffic on a ring road: every vehicle by itself, and Edie's density, flow and speed of all."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.simulator import Simulator
from asbc.simulator.laws import CarFollowingLaw
from asbc.simulator.residual_steps import ResidualSteps
from asbc.simulator.simulator import SMALLEST_GAP
from asbc.utils.checks import require_shape
from asbc.utils.progress import progress

STANDING = 1.0  # m/s, slower counts as standing
FASTEST = 50.0  # m/s, where the equilibrium curve ends


@dataclass(frozen=True, kw_only=True)
class Ring:
    """The road and how it starts.

    Args:
        radius: of the circle (m).
        vehicle_length: of every vehicle (m).
        initial_speed: of every vehicle (m/s); the law lowers it at once where gaps are too small.
        duration: simulated time (s).
    """

    radius: float = 137.0
    vehicle_length: float = 5.0
    initial_speed: float = 11.6
    duration: float = 3000.0

    def __post_init__(self) -> None:
        for name in ("radius", "vehicle_length", "duration"):
            if not getattr(self, name) > 0:
                raise InputError(
                    f"scenario.{name}={getattr(self, name)}; expected a positive number"
                )
        if self.initial_speed < 0:
            raise InputError(f"scenario.initial_speed={self.initial_speed}; expected 0 or more")

    @property
    def length(self) -> float:
        """Circumference (m)."""
        return 2 * math.pi * self.radius


@dataclass(frozen=True)
class RingTraffic:
    """What happened: vehicle i follows vehicle i + 1, the last one the first.

    Attributes:
        ring: the road.
        dt: time step (s).
        position: (replication, step, vehicle) m along the ring, in [0, ring.length).
        speed: (replication, step, vehicle) m/s.
        collided: (replication, vehicle) whether the vehicle ever touched the one ahead.
    """

    ring: Ring
    dt: float
    position: Tensor
    speed: Tensor
    collided: Tensor

    @property
    def density(self) -> float:
        """Vehicles per metre."""
        return self.speed.shape[-1] / self.ring.length

    def after(self, seconds: float) -> "RingTraffic":
        """The same traffic without its first `seconds`."""
        first = round(seconds / self.dt)
        return RingTraffic(
            self.ring, self.dt, self.position[:, first:], self.speed[:, first:], self.collided
        )


@torch.no_grad()
def simulate_ring(
    simulator: Simulator, theta: Tensor, ring: Ring, rng: np.random.Generator
) -> RingTraffic:
    """Drive `theta` (replication, vehicle, dim) around the ring, residuals included."""
    require_shape("theta", theta, (None, None, simulator.dim))
    replications, vehicles, _ = theta.shape
    spacing = ring.length / vehicles
    if spacing <= ring.vehicle_length:
        raise InputError(
            f"{vehicles} vehicles of {ring.vehicle_length:g} m do not fit on a ring of "
            f"{ring.length:.0f} m; lower scenario.vehicles"
        )
    dt, steps = simulator.dt, round(ring.duration / simulator.dt) + 1
    every = theta.flatten(0, 1).float()  # a residual process for each vehicle
    residuals = ResidualSteps(simulator, every, steps, rng)
    theta = theta.double()  # positions add up over kilometres
    position = (torch.arange(vehicles) * spacing).double().expand(replications, -1)
    speed = torch.full_like(position, ring.initial_speed)
    gap = torch.full_like(position, spacing - ring.vehicle_length)
    positions, speeds = [position], [speed]
    collided = torch.zeros_like(position, dtype=torch.bool)
    for step in progress(range(steps - 1), f"ring of {vehicles}", total=steps - 1):
        approach = speed - speed.roll(-1, dims=1)
        law = simulator.law.acceleration(theta, gap.clamp_min(SMALLEST_GAP), speed, approach)
        state = (gap, speed, speed.roll(-1, dims=1), law)
        residual = residuals.at(step, *(series.flatten().float() for series in state))
        acceleration = law + residual.view_as(law).double()
        acceleration = acceleration.clamp(*simulator.acceleration_bounds)
        next_speed = (speed + acceleration * dt).clamp_min(0)
        travelled = simulator.kinematics.follower_distance(speed, next_speed, dt)
        gap = gap + travelled.roll(-1, dims=1) - travelled
        position, speed = position + travelled, next_speed
        collided |= gap <= 0
        positions.append(position % ring.length)
        speeds.append(speed)
    stacked = [torch.stack(series, dim=1).float() for series in (positions, speeds)]
    return RingTraffic(ring, dt, stacked[0], stacked[1], collided)


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
