"""One driving direction of a road: a line-up of platoons, lane changes, vehicles that leave."""

from dataclasses import dataclass

import numpy as np

from asbc.data.population import Drivers, draw_drivers
from asbc.data.traffic import FRAME_RATE, GONE, Traffic, matern_noise, stop_and_go


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
    profiles = stop_and_go(road.lanes, frames + 1, rng)
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


def _line_up(road: Road, leader_speed: np.ndarray, rng: np.random.Generator) -> Traffic:
    """Each lane's leader part-way down the road, its platoon behind it near equilibrium gaps."""
    size = road.platoon + 1
    drivers = draw_drivers(road.lanes * size, road.truck_share, rng)
    lane = np.repeat(np.arange(road.lanes), size)
    order = np.tile(np.arange(size), road.lanes)
    index = np.arange(len(drivers))
    speed = leader_speed[lane]
    gap = (drivers.theta[:, 1] + speed * drivers.theta[:, 2]) * rng.uniform(0.9, 1.4, len(drivers))
    # The leader's rear and the own gap come off the front of the vehicle ahead.
    spacing = np.where(order > 0, gap + np.roll(drivers.length, 1), 0.0).reshape(road.lanes, size)
    head = rng.uniform(0.1, 0.5, (road.lanes, 1)) * road.length
    front = (head - np.cumsum(spacing, axis=1)).ravel()
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
