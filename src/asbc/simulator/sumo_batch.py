"""Many leader-follower pairs in one step loop of SUMO, in this process.

Every pair has a road of its own, so pairs do not see each other. Before a loop, SUMO loads a state
that we write: vehicle types, positions, speeds, and the state of each road's random number
generator. That resets everything exactly, whatever the models remember from step to step, and it
makes the noise of a pair a function of the numbers given for it. Leaders get their speeds imposed.

A process can hold one libsumo, and what it does cannot be interrupted: this runs in worker
processes (`asbc.simulator.sumo_models`).
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asbc.errors import InputError

ROAD_LENGTH = 100_000.0  # m
START = 100.0  # m, where followers start
LEADER_LENGTH = 5.0  # m
# Words of a Mersenne twister, and a count of used numbers from which SUMO expects all of them.
TWISTER, COUNTED = 624, 2_000_000
# The state's words are its next numbers where the standard library keeps them in order, as GNU's
# does: then only those that will be used need be written.
IN_ORDER = sys.platform.startswith("linux")
# SUMO's own "never" in a vehicle's state.
NEVER = "9223372036854774807"
OPTIONS = (
    *("--no-step-log", "true", "--no-warnings", "true", "--duration-log.disable", "true"),
    *("--collision.action", "none", "--time-to-teleport", "-1", "--save-state.rng", "true"),
)


class Batch(NamedTuple):
    """Pairs to simulate, one row each."""

    types: Sequence[str]  # attributes of each follower's vType, as XML
    leader_speed: np.ndarray  # (pair, step) m/s
    gap: np.ndarray  # (pair,) m
    speed: np.ndarray  # (pair,) m/s
    noise: np.ndarray  # (pair, number) uint32: what each follower draws, in this order


class SumoBatch:
    """SUMO with a road for each of `pairs` pairs.

    Args:
        pairs: simulated in one loop at most.
        dt: time step (s).
        ballistic: whether vehicles move by the mean of two speeds and not by the second one. SUMO
            does so, for all vehicles, when one type has an actionStepLength.
    """

    def __init__(self, pairs: int, dt: float, ballistic: bool = False) -> None:
        self.pairs, self.dt, self.ballistic = pairs, dt, ballistic
        self._sumo = load_libsumo()
        self._followers = [f"f{i}" for i in range(pairs)]
        self._leaders = [f"l{i}" for i in range(pairs)]
        with _written(network(pairs)) as path:
            options = ["--net-file", str(path), "--step-length", repr(dt)]
            options += ["--step-method.ballistic", str(ballistic).lower()]
            options += ["--thread-rngs", str(pairs), *OPTIONS]
            self._sumo.start(["sumo", *options])

    def run(self, batch: Batch) -> np.ndarray:
        """Gaps and speeds of the followers (2, pair, step)."""
        count, steps = batch.leader_speed.shape
        if count > self.pairs:
            raise InputError(f"{count} pairs for {self.pairs} roads")
        _require_room(batch, self.dt)
        with _written(snapshot(batch)) as path:
            self._sumo.simulation.loadState(str(path))
        leaders, followers = self._leaders[:count], self._followers[:count]
        vehicle, step = self._sumo.vehicle, self._sumo.simulationStep
        set_speed, get_speed = vehicle.setSpeed, vehicle.getSpeed
        for name in leaders:
            vehicle.setSpeedMode(name, 0)  # nothing but what it is told
        gaps, speeds = np.empty((2, steps, count))
        gaps[0], speeds[0] = batch.gap, batch.speed
        for t, imposed in enumerate(batch.leader_speed.T[1:].tolist(), start=1):
            for name, value in zip(leaders, imposed, strict=True):
                set_speed(name, value)
            step()
            speeds[t] = [get_speed(name) for name in followers]
            if self.ballistic:
                gaps[t] = self._gaps(leaders, followers)
        if not self.ballistic:  # positions follow from speeds, and need not be asked for
            change = self.dt * (batch.leader_speed.T[1:] - speeds[1:])
            gaps[1:] = batch.gap + np.cumsum(change, axis=0)
        return np.stack([gaps.T, speeds.T])

    def _gaps(self, leaders: list[str], followers: list[str]) -> list[float]:
        place = self._sumo.vehicle.getLanePosition
        pairs = zip(leaders, followers, strict=True)
        return [place(leader) - LEADER_LENGTH - place(follower) for leader, follower in pairs]

    def close(self) -> None:
        """End the simulation."""
        self._sumo.close()


def require_sumo() -> None:
    """Raise if libsumo is not installed."""
    if importlib.util.find_spec("libsumo") is None:
        raise InputError("SUMO's models need libsumo, which is missing: pip install 'asbc[sumo]'")


def load_libsumo() -> Any:
    """The module, without its warning of a pyarrow that it does not use here."""
    require_sumo()
    with _silenced():
        import libsumo
    return libsumo


def network(roads: int) -> str:
    """A network of straight one-lane roads without a limit of speed, as XML."""
    lines = ['<net version="1.20">', '<location netOffset="0,0" convBoundary="0,0,1,1" ']
    lines[-1] += 'origBoundary="0,0,1,1" projParameter="!"/>'
    ends = []
    for i in range(roads):
        y = 10 * i
        lane = f'id="r{i}_0" index="0" speed="1000" length="{ROAD_LENGTH}"'
        shape = f'shape="0,{y} {ROAD_LENGTH},{y}"'
        lines.append(f'<edge id="r{i}" from="a{i}" to="b{i}"><lane {lane} {shape}/></edge>')
        for name, x, lanes in ((f"a{i}", 0.0, ""), (f"b{i}", ROAD_LENGTH, f"r{i}_0")):
            place = f'x="{x}" y="{y}" shape="{x},{y} {x},{y + 1}"'
            ends.append(
                f'<junction id="{name}" type="dead_end" {place} incLanes="{lanes}" intLanes=""/>'
            )
    return "\n".join([*lines, *ends, "</net>"])


def snapshot(batch: Batch) -> str:
    """The state of SUMO in which every pair of the batch is at its start, as XML."""
    count = len(batch.types)
    rows = range(count)
    zero = 'routeHandler="0" insertionControl="0" device="0" device.btreceiver="0"'
    parts = ['<snapshot type="micro" version="0" time="0.000">']
    parts.append(f'<rngState default="0" {zero} driverState="0" device.toc="0">')
    if batch.noise.shape[1]:
        parts += [f'<rngLane index="{i}" state="{twister(batch.noise[i])}"/>' for i in rows]
    lanes = " ".join(f"r{i}_0" for i in rows)
    parts.append(f'</rngState><edgeControl lanes="{lanes}"/>')
    parts += [f'<route id="p{i}" state="1" edges="r{i}"/>' for i in rows]
    parts.append(
        f'<delay number="{2 * count}" begin="{2 * count}" end="0" depart="0" time="0" '
        'speedFactor="1" decel="4.5"/>'
    )
    kind = f'length="{LEADER_LENGTH}" maxSpeed="1000" speedDev="0" carFollowModel="IDM"'
    parts.append(f'<vType id="leader" {kind}/>')
    parts += [f'<vType id="t{i}" {batch.types[i]}/>' for i in rows]
    places = (START + LEADER_LENGTH + batch.gap).tolist()
    leader, own = batch.leader_speed[:, 0].tolist(), batch.speed.tolist()
    for i in rows:
        parts.append(_vehicle(f"l{i}", "leader", i, places[i], leader[i]))
        parts.append(_vehicle(f"f{i}", f"t{i}", i, START, own[i]))
    parts += [f'<lane id="r{i}_0"><vehicles value="f{i} l{i}"/></lane>' for i in rows]
    return "\n".join([*parts, "</snapshot>"])


def _vehicle(name: str, kind: str, road: int, place: float, speed: float) -> str:
    """A vehicle's state, which is about to decide on its first step."""
    state = f"0 0 0 {place!r} 0 0 0 0 0 0 {NEVER} {NEVER} {NEVER}"
    return (
        f'<vehicle id="{name}" type="{kind}" depart="0" route="p{road}" distance="0 0" '
        f'speedFactor="1" state="{state}" pos="{place!r} {place - LEADER_LENGTH!r} 0" '
        f'speed="{speed!r} {speed!r}" angle="90" posLat="0" waitingTime="100000 0" '
        'lcStateBase="0" lcState2="0 0 0 0 0"/>'
    )


def twister(numbers: np.ndarray) -> str:
    """The state of a Mersenne twister that goes on with these numbers, tempered, as SUMO reads it.

    With all 624 it is a seeded generator, which may be used for any number of draws.
    """
    unused = TWISTER - len(numbers)
    return f"{COUNTED} {'0 ' * unused}{repr(numbers.tolist())[1:-1].replace(',', '')} {unused}"


def numbers_for(draws: int) -> int:
    """How many random numbers a follower has to be given for so many draws at the most."""
    if not draws:
        return 0
    return draws if draws <= TWISTER and IN_ORDER else TWISTER


def _require_room(batch: Batch, dt: float) -> None:
    farthest = float((batch.gap + batch.leader_speed.sum(1) * dt).max())
    if farthest > ROAD_LENGTH - 2 * START:
        raise InputError(
            f"a leader drives {farthest / 1000:.0f} km, and the road of a simulated pair in SUMO "
            f"has {ROAD_LENGTH / 1000:.0f}; simulate shorter recordings"
        )


@contextlib.contextmanager
def _written(text: str) -> Iterator[Path]:
    """A file with this text that SUMO can read, gone afterwards."""
    handle, name = tempfile.mkstemp(suffix=".xml", prefix="asbc")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        yield Path(name)
    finally:
        os.unlink(name)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield
