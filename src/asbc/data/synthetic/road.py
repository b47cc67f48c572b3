"""One driving direction of a road: platoons of stochastic IDM drivers behind stop-and-go leaders.

This writes recordings; it is not the simulator that inference uses. It runs at the camera's 25 Hz
with its own ballistic update, so inference on its output is as honest as on a recorded road.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from asbc.data.synthetic.regimes import FRAME_RATE, STOP_AND_GO, leader_speeds
from asbc.data.synthetic.true_drivers import Drivers, draw_drivers

DT = 1 / FRAME_RATE
HARDEST_BRAKING, HARDEST_ACCELERATION = -9.0, 5.0
SAFE_BRAKING = -3.0  # nobody may have to brake harder because of a lane change
GONE = -1  # lane of a vehicle that has left the road


@dataclass(frozen=True)
class Road:
    """What is built and driven in one recording.

    Args:
        length: observed stretch, m.
        lanes: per direction.
        platoon: followers per lane.
        duration: of the recording, s.
        truck_share: share of trucks among all vehicles.
        lane_change_chance: per direction and second, that some vehicle tries to change lanes.
        exit_chance: per direction and second, that some vehicle leaves the road.
    """

    length: float
    lanes: int
    platoon: int
    duration: float
    truck_share: float
    lane_change_chance: float
    exit_chance: float


@dataclass(frozen=True)
class Motion:
    """What all vehicles of one direction did; arrays are (vehicles, frames)."""

    drivers: Drivers
    front: np.ndarray
    speed: np.ndarray
    acceleration: np.ndarray
    lane: np.ndarray
    leader: np.ndarray
    visible: np.ndarray
    lane_changes: np.ndarray  # (vehicles,)


def drive(road: Road, rng: np.random.Generator) -> Motion:
    """Simulate one direction of the road, with lane changes and vehicles that leave."""
    frames = int(road.duration * FRAME_RATE)
    profiles = leader_speeds(STOP_AND_GO, road.lanes, frames + 1, rng)
    traffic = _line_up(road, profiles[:, 0], rng)
    theta = traffic.drivers.theta
    residual = matern_noise(theta[:, 5], theta[:, 6], frames, rng)
    history: dict[str, list[np.ndarray]] = {"front": [], "speed": [], "lane": [], "leader": []}
    accelerations = []
    for frame in range(frames):
        if frame % FRAME_RATE == 0:
            _manoeuvre(traffic, road, rng)
        for name, values in history.items():
            values.append(getattr(traffic, name).copy())
        accelerations.append(traffic.step(residual[:, frame], profiles[:, frame + 1]))
    states = {name: np.stack(values, axis=1) for name, values in history.items()}
    rear = states["front"] - traffic.drivers.length[:, None]
    visible = (rear >= 0) & (states["front"] <= road.length) & (states["lane"] != GONE)
    return Motion(
        drivers=traffic.drivers,
        acceleration=np.stack(accelerations, axis=1),
        visible=visible,
        lane_changes=traffic.lane_changes,
        **states,
    )


@dataclass
class Traffic:
    """One driving direction: the state of all vehicles, and who follows whom.

    Vehicles are numbered from 0; the first of each lane drives a given speed profile.
    """

    drivers: Drivers
    lane: np.ndarray  # (vehicles,)
    leader: np.ndarray  # (vehicles,) vehicle ahead, -1 for lane leaders
    front: np.ndarray  # (vehicles,) m
    speed: np.ndarray  # (vehicles,) m/s
    lane_changes: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.lane_changes = np.zeros(len(self.lane), dtype=np.int64)

    def gap(self) -> np.ndarray:
        """Net gap to the vehicle ahead; meaningless for lane leaders."""
        return self.front[self.leader] - self.drivers.length[self.leader] - self.front

    def step(self, residual: np.ndarray, profile: np.ndarray) -> np.ndarray:
        """Advance one frame; returns accelerations. `profile` is each lane leader's next speed."""
        approach = self.speed - self.speed[self.leader]
        wanted = idm(self.drivers.theta, self.gap(), self.speed, approach) + residual
        wanted = np.where(self.leader < 0, (profile[self.lane] - self.speed) / DT, wanted)
        wanted = wanted.clip(HARDEST_BRAKING, HARDEST_ACCELERATION)
        acceleration = np.maximum(wanted, -self.speed / DT)
        self.front = self.front + self.speed * DT + acceleration * DT**2 / 2
        self.speed = (self.speed + acceleration * DT).clip(min=0.0)
        return acceleration

    def leave(self, vehicle: int) -> None:
        """Take a vehicle off the road; the one behind closes up."""
        self.leader[self.leader == vehicle] = self.leader[vehicle]
        self.lane[vehicle] = GONE

    def change_lane(self, vehicle: int, lane: int) -> bool:
        """Move into `lane` if nobody has to brake hard for it; says whether it happened."""
        others = np.flatnonzero(self.lane == lane)
        ahead = others[self.front[others] > self.front[vehicle]]
        behind = others[self.front[others] <= self.front[vehicle]]
        if not len(ahead) or not len(behind):
            return False
        new_leader = ahead[np.argmin(self.front[ahead])]
        new_follower = behind[np.argmax(self.front[behind])]
        if not (self._safe(vehicle, new_leader) and self._safe(new_follower, vehicle)):
            return False
        self.leader[self.leader == vehicle] = self.leader[vehicle]
        self.leader[vehicle], self.leader[new_follower] = new_leader, vehicle
        self.lane[vehicle] = lane
        self.lane_changes[vehicle] += 1
        return True

    def _safe(self, follower: int, leader: int) -> bool:
        gap = self.front[leader] - self.drivers.length[leader] - self.front[follower]
        theta = self.drivers.theta[follower]
        approach = self.speed[follower] - self.speed[leader]
        return bool(
            gap > theta[1] and idm(theta, gap, self.speed[follower], approach) > SAFE_BRAKING
        )


def idm(theta: np.ndarray, gap: np.ndarray, speed: np.ndarray, approach: np.ndarray) -> np.ndarray:
    """Intelligent-driver acceleration; `theta` (..., 7) in the order of THETA_NAMES."""
    v0, s0, headway, a_max, b = (theta[..., i] for i in range(5))
    desired = s0 + np.maximum(0, speed * headway + speed * approach / (2 * np.sqrt(a_max * b)))
    return a_max * (1 - (speed / v0) ** 4 - (desired / np.maximum(gap, 0.1)) ** 2)


def matern_noise(
    sigma: np.ndarray, ell: np.ndarray, frames: int, rng: np.random.Generator
) -> np.ndarray:
    """Matern-5/2 residual accelerations (drivers, frames), by circulant embedding."""
    period = 2 * frames
    lag = np.minimum(np.arange(period), period - np.arange(period)) * DT
    scaled = np.sqrt(5) * lag / ell[:, None]
    covariance = (1 + scaled + scaled**2 / 3) * np.exp(-scaled)
    power = np.fft.rfft(covariance).real.clip(min=0.0)  # rounding leaves tiny negatives
    white = np.fft.rfft(rng.standard_normal((len(sigma), period)))
    return sigma[:, None] * np.fft.irfft(np.sqrt(power) * white, n=period)[:, :frames]


def _line_up(road: Road, leader_speed: np.ndarray, rng: np.random.Generator) -> Traffic:
    """Each lane's leader part-way down the road, its platoon behind it."""
    drivers = draw_drivers(road.lanes * (road.platoon + 1), road.truck_share, rng)
    return near_equilibrium(drivers, leader_speed, (0.1 * road.length, 0.5 * road.length), rng)


def near_equilibrium(
    drivers: Drivers,
    leader_speed: np.ndarray,
    head: tuple[float, float],
    rng: np.random.Generator,
) -> Traffic:
    """Platoons of equal size, one per lane, all at their leader's speed and near its gap.

    Args:
        drivers: lane by lane, from the first vehicle to the last.
        leader_speed: of each lane (lanes,).
        head: where the first vehicles are, at random between these (m).
        rng: random numbers.
    """
    lanes = len(leader_speed)
    size = len(drivers) // lanes
    lane = np.repeat(np.arange(lanes), size)
    order = np.tile(np.arange(size), lanes)
    index = np.arange(len(drivers))
    speed = leader_speed[lane]
    gap = (drivers.theta[:, 1] + speed * drivers.theta[:, 2]) * rng.uniform(0.9, 1.4, len(drivers))
    # The leader's rear and the own gap come off the front of the vehicle ahead.
    spacing = np.where(order > 0, gap + np.roll(drivers.length, 1), 0.0).reshape(lanes, size)
    front = (rng.uniform(*head, (lanes, 1)) - np.cumsum(spacing, axis=1)).ravel()
    return Traffic(drivers, lane, np.where(order > 0, index - 1, -1), front, speed.copy())


def _manoeuvre(traffic: Traffic, road: Road, rng: np.random.Generator) -> None:
    """Perhaps one lane change and one exit among the followers on the road."""
    on_road = (traffic.front > 0) & (traffic.front < road.length)
    movable = rng.permutation(
        np.flatnonzero(on_road & (traffic.leader >= 0) & (traffic.lane >= 0))
    )
    if road.lanes > 1 and rng.random() < road.lane_change_chance:
        for vehicle in movable:
            lane = traffic.lane[vehicle] + (1 if traffic.lane[vehicle] == 0 else -1)
            if traffic.change_lane(int(vehicle), int(lane)):
                break
    if len(movable) and rng.random() < road.exit_chance:
        traffic.leave(int(movable[-1]))
