"""A user's SUMO network with vehicles of a calibrated population, stepped through libsumo.

Vehicles get their type when they depart. Where drivers have a residual acceleration r, which
SUMO's IDM does not know, a vehicle's speed is changed by r dt before SUMO decides on its next
step. All else (junctions, lights, lane changes, braking in time, nobody above his desired speed)
stays SUMO's, and sees the changed speed.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.population.sumo_replay import sumo_binary
from asbc.simulator.residuals import Prefix, ResidualProcess
from asbc.simulator.sumo_batch import load_libsumo
from asbc.utils.random import key, stream

# Steps of noise drawn at once for a vehicle, and the last ones that the next stretch goes on from.
SEGMENT, MEMORY = 1000, 5
# Vehicles are looked at this often (s), leaders for time gaps within SIGHT (m), above SLOW (m/s).
SAMPLE_EVERY, SIGHT, SLOW = 1.0, 150.0, 1.0


@dataclass(frozen=True)
class NetworkDrive:
    """What one simulation of the network needs, ready to be sent to a process.

    Attributes:
        net, routes, additional: the user's files.
        types: file with the drivers' vehicle types; `names` are their ids.
        names: of the types, one per driver.
        replaced: the user's types whose vehicles become drivers; none: all vehicles.
        folder: where `fcd.xml.gz` and `tripinfo.xml` go.
        dt, duration: step and end of the simulation (s).
        seed: which vehicle is which driver, and its noise.
        residual: the drivers' residual process; None: SUMO drives alone.
        hyper: (driver, p) its parameters.
        obey_limits: whether lanes' limits bind, besides the driver's own desired speed.
        fcd: whether to write all trajectories.
    """

    net: str
    routes: Sequence[str]
    additional: Sequence[str]
    types: str
    names: Sequence[str]
    replaced: Sequence[str]
    folder: str
    dt: float
    duration: float
    seed: int
    residual: ResidualProcess | None
    hyper: Tensor
    obey_limits: bool = True
    fcd: bool = True


class Traffic(NamedTuple):
    """What was seen of the traffic."""

    speed: np.ndarray  # of vehicles on their way, every SAMPLE_EVERY seconds (m/s)
    headway: np.ndarray  # time gaps to the vehicle ahead, of those that move (s)
    acceleration: np.ndarray  # (m/s^2), of the same vehicles but those that just departed
    running: np.ndarray  # vehicles in the network, a number for every sample
    arrived: np.ndarray  # vehicles that have arrived, likewise
    departed: int  # vehicles in all
    drivers: int  # of them of the population
    collisions: int


def require_readable(job: NetworkDrive) -> None:
    """Raise with SUMO's own words if it cannot read the files: as a library it would only die."""
    words = options(replace(job, fcd=False))
    place = words.index("--tripinfo-output")
    command = [sumo_binary("sumo"), *words[:place], *words[place + 2 :], "--end", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("Error")), "is it a .net.xml?")
        raise InputError(f"net={job.net}: SUMO cannot use it with these routes: {why}")


def drive_network(_: None, job: NetworkDrive) -> Traffic:
    """Simulate; one per process, for there is one libsumo in each."""
    sumo = load_libsumo()
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    try:
        sumo.start(["sumo", *options(job)])
        try:
            return _Drive(sumo, job).run()
        finally:
            sumo.close()  # not where it did not start: that ends the process
    except (sumo.TraCIException, sumo.FatalTraCIError) as error:
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise InputError(f"net={job.net}: SUMO gives up: {lines[0]}") from error


def options(job: NetworkDrive) -> list[str]:
    """SUMO's command line."""
    out = Path(job.folder)
    given = ["--net-file", job.net, "--route-files", ",".join(job.routes)]
    given += ["--additional-files", ",".join([job.types, *job.additional])]
    given += ["--step-length", repr(job.dt), "--seed", str(key(job.seed, "sumo") % 2**31)]
    given += ["--tripinfo-output", str(out / "tripinfo.xml")]
    given += ["--fcd-output", str(out / "fcd.xml.gz")] if job.fcd else []
    given += ["--precision", "6"]
    return [*given, "--no-step-log", "true", "--no-warnings", "true"]


class DriverNoise:
    """The residual acceleration of one driver, drawn as the trip goes on.

    Args:
        residual: the process.
        hyper: (1, p) its parameters.
        dt: time step (s).
        seed: key of the noise; `name` is the vehicle's.
    """

    def __init__(
        self, residual: ResidualProcess, hyper: Tensor, dt: float, seed: int, name: str
    ) -> None:
        self.residual, self.hyper, self.dt = residual, hyper, dt
        self.seed, self.name = seed, name
        self.values: list[float] = []
        self.place = self.segment = 0

    def next(self) -> float:
        """The residual (m/s^2) of the next step."""
        if self.place == len(self.values):
            self._draw()
        self.place += 1
        return self.values[self.place - 1]

    def _draw(self) -> None:
        """A further stretch, which goes on where the last one ended."""
        prefix = None
        if self.values:
            last = torch.tensor([self.values[-MEMORY:]], dtype=self.hyper.dtype)
            prefix = Prefix(last, torch.ones_like(last, dtype=torch.bool), 0.0)
        rng = stream(self.seed, "residual", self.name, self.segment)
        drawn = self.residual.sample(self.hyper, SEGMENT, self.dt, rng, prefix)
        self.values, self.place, self.segment = drawn[0].tolist(), 0, self.segment + 1


class _Drive:
    """One simulation on its way."""

    def __init__(self, sumo: Any, job: NetworkDrive) -> None:
        self.sumo, self.job = sumo, job
        self.noise: dict[str, DriverNoise] = {}  # of the drivers on their way
        self.drivers = self.departed = self.collisions = 0

    def run(self) -> Traffic:
        simulation, job = self.sumo.simulation, self.job
        every = max(1, round(SAMPLE_EVERY / job.dt))
        samples, running, arrived, gone = [], [], [], 0
        for step in range(round(job.duration / job.dt)):
            before = self._speeds() if step % every == 0 else {}
            self._disturb()
            self.sumo.simulationStep()
            gone += simulation.getArrivedNumber()
            self.collisions += simulation.getCollidingVehiclesNumber()
            for name in simulation.getArrivedIDList():
                self.noise.pop(name, None)
            for name in simulation.getDepartedIDList():
                self._take_over(name)
            if step % every == 0:
                samples.append(self._look(before))
                running.append(self.sumo.vehicle.getIDCount())
                arrived.append(gone)
            if simulation.getMinExpectedNumber() == 0:
                break
        speed, headway, acceleration = (
            np.concatenate(part) for part in zip(*samples, strict=True)
        )
        counts = (np.array(running), np.array(arrived), self.departed, self.drivers)
        return Traffic(speed, headway, acceleration, *counts, self.collisions)

    def _take_over(self, name: str) -> None:
        """A vehicle that departs becomes a driver of the population."""
        self.departed += 1
        vehicle, job = self.sumo.vehicle, self.job
        if job.replaced and vehicle.getTypeID(name) not in job.replaced:
            return
        driver = key(job.seed, "driver", name) % len(job.names)
        vehicle.setType(name, job.names[driver])
        if job.obey_limits:
            vehicle.setSpeedFactor(name, 1.0)
        self.drivers += 1
        if job.residual is not None:
            hyper = job.hyper[driver : driver + 1]
            self.noise[name] = DriverNoise(job.residual, hyper, job.dt, job.seed, name)

    def _disturb(self) -> None:
        """Change speeds by the residual accelerations, before SUMO decides on the step."""
        vehicle, dt = self.sumo.vehicle, self.job.dt
        for name, noise in self.noise.items():
            residual = noise.next()
            if vehicle.getRoadID(name):  # not while it is being teleported
                vehicle.setPreviousSpeed(name, max(0.0, vehicle.getSpeed(name) + residual * dt))

    def _speeds(self) -> dict[str, float]:
        vehicle = self.sumo.vehicle
        return {name: vehicle.getSpeed(name) for name in vehicle.getIDList()}

    def _look(self, before: dict[str, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Speeds, time gaps and accelerations of all vehicles now, a step after `before`."""
        vehicle, now, gaps = self.sumo.vehicle, self._speeds(), []
        # SUMO's own accelerations do not hold what we have added.
        acceleration = [(now[n] - v) / self.job.dt for n, v in before.items() if n in now]
        for name, v in now.items():
            ahead = vehicle.getLeader(name, SIGHT) if v > SLOW else None
            if ahead and ahead[0]:
                gaps.append((ahead[1] + vehicle.getMinGap(name)) / v)  # SUMO subtracts minGap
        return np.array(list(now.values())), np.array(gaps), np.array(acceleration)
