"""Exported types driven by SUMO itself behind recorded leaders, to check the export.

Every follower gets a road of its own, so all pairs run in one simulation. SUMO runs as a process
of its own, controlled through TraCI: `libsumo` would load a second copy of Arrow beside pyarrow's.
"""

import contextlib
import io
import os
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asbc.calibration.export.sumo import ATTRIBUTES
from asbc.errors import InputError
from asbc.simulator import Prior, Simulator
from asbc.simulator.kinematics import SumoKinematics
from asbc.simulator.laws import SumoIDM
from asbc.simulator.residuals import GaussianResidual
from asbc.utils.random import stream

LEADER_LENGTH = 5.0
START = 100.0  # m, where followers start
ROOM = 500.0  # m of road beyond the fastest vehicle


class Replay(NamedTuple):
    """Followers behind their leaders, each (driver, step) in float64."""

    gap: Tensor
    speed: Tensor


def sumo_binary(name: str) -> str:
    """Path of one of SUMO's programs; the extra `sumo` brings them."""
    try:
        import sumo
    except ImportError as error:
        raise InputError("SUMO is not installed: pip install 'asbc[sumo]'") from error
    return os.path.join(sumo.SUMO_HOME, "bin", name)


def type_names(path: Path) -> list[str]:
    """Ids of the exported types, in their order."""
    return [kind.attrib["id"] for kind in ET.parse(path).getroot().findall(".//vType")]


def read_vtypes(path: Path) -> tuple[list[str], Tensor]:
    """Ids of the exported types and their IDM parameters (n, 5) in float64, as SUMO reads them."""
    types = ET.parse(path).getroot().findall(".//vType")
    rows = [[float(t.attrib[attribute]) for attribute in ATTRIBUTES.values()] for t in types]
    return [t.attrib["id"] for t in types], torch.tensor(rows, dtype=torch.float64)


def replay_in_sumo(
    path: Path, leader_speed: Tensor, gap: Tensor, speed: Tensor, dt: float
) -> Replay:
    """Drive the i-th type of `path` behind leader i in SUMO.

    Args:
        path: file written by `write_vtypes`.
        leader_speed: (driver, step) m/s.
        gap, speed: (driver,) initial net gap and speed of the follower.
        dt: step length (s).
    """
    import traci

    names = type_names(path)
    drivers = len(leader_speed)
    if drivers > len(names):
        raise InputError(f"{path} holds {len(names)} types, fewer than the {drivers} leaders")
    leader = leader_speed.double()
    length = START + float(gap.max()) + float(leader.sum(1).max()) * dt + ROOM
    with tempfile.TemporaryDirectory() as folder:
        network = build_roads(Path(folder), drivers, length)
        routes = Path(folder) / "pairs.rou.xml"
        routes.write_text(_routes(names[:drivers], leader[:, 0], gap.double(), speed.double()))
        files = ["--net-file", str(network), "--additional-files", str(path)]
        files += ["--route-files", str(routes)]
        options = ["--no-step-log", "--no-warnings", "--collision.action", "none"]
        command = [sumo_binary("sumo"), *files, *options, "--step-length", repr(dt)]
        with contextlib.redirect_stdout(io.StringIO()):  # it tells of every attempt to connect
            traci.start(command, label=str(folder), stdout=subprocess.DEVNULL)
        sumo = traci.getConnection(str(folder))
        try:
            sumo.simulationStep()  # inserts the vehicles; they have not moved yet
            for i in range(drivers):
                sumo.vehicle.setSpeedMode(f"l{i}", 0)
            return _drive(sumo, leader)
        finally:
            sumo.close()


def _routes(types: list[str], leader_speed: Tensor, gap: Tensor, speed: Tensor) -> str:
    """Every pair on its road, departing in exactly the given state, as XML."""
    lines = [f'<routes><vType id="leader" length="{LEADER_LENGTH}" maxSpeed="100" speedDev="0"/>']
    states = zip(types, leader_speed.tolist(), gap.tolist(), speed.tolist(), strict=True)
    for i, (name, v_leader, s, v) in enumerate(states):
        lines.append(f'<route id="route{i}" edges="road{i}"/>')
        place = START + LEADER_LENGTH + s
        for vehicle, kind, at, v_now in (("l", "leader", place, v_leader), ("f", name, START, v)):
            depart = (
                f'depart="0" departPos="{at!r}" departSpeed="{v_now!r}" insertionChecks="none"'
            )
            lines.append(f'<vehicle id="{vehicle}{i}" type="{kind}" route="route{i}" {depart}/>')
    return "\n".join([*lines, "</routes>"])


def _drive(sumo: Any, leader_speed: Tensor) -> Replay:
    drivers, steps = leader_speed.shape
    gap, speed = [], []
    for step in range(steps):
        if step:
            for i in range(drivers):
                sumo.vehicle.setSpeed(f"l{i}", float(leader_speed[i, step]))
            sumo.simulationStep()
        places = [
            (sumo.vehicle.getLanePosition(f"l{i}"), sumo.vehicle.getLanePosition(f"f{i}"))
            for i in range(drivers)
        ]
        gap.append([front - LEADER_LENGTH - back for front, back in places])
        speed.append([sumo.vehicle.getSpeed(f"f{i}") for i in range(drivers)])
    return Replay(*(torch.tensor(x, dtype=torch.float64).t() for x in (gap, speed)))


def replay_in_simulator(
    theta: Tensor, leader_speed: Tensor, gap: Tensor, speed: Tensor, dt: float
) -> Replay:
    """The same drive by our own integrator, set to SUMO's scheme and without residuals."""
    marginal = {"unit": "", "centre": 1.0, "log_scale": 1.0, "low": 1e-6, "high": 1e6}
    prior = Prior(dict.fromkeys(SumoIDM.parameters, marginal), {"sigma": marginal})
    simulator = Simulator(SumoIDM(), GaussianResidual(), prior, SumoKinematics(), dt)
    quiet = torch.zeros(len(theta), 1, dtype=torch.float64)
    rollout = simulator.rollout(
        torch.cat([theta.double(), quiet], dim=1),
        leader_speed.double(),
        gap.double(),
        speed.double(),
        stream(0, "replay"),
        check=False,  # sigma = 0 is outside every prior
    )
    return Replay(rollout.gap, rollout.speed)


def build_roads(folder: Path, count: int, length: float) -> Path:
    """A network of `count` straight one-lane roads `road<i>`, by SUMO's netconvert."""
    nodes, edges = ET.Element("nodes"), ET.Element("edges")
    for i in range(count):
        y = str(20 * i)
        ET.SubElement(nodes, "node", id=f"from{i}", x="0", y=y)
        ET.SubElement(nodes, "node", id=f"to{i}", x=f"{length:.1f}", y=y)
        ends = {"from": f"from{i}", "to": f"to{i}"}
        ET.SubElement(edges, "edge", ends | {"id": f"road{i}", "numLanes": "1", "speed": "50"})
    files = {"nodes": folder / "roads.nod.xml", "edges": folder / "roads.edg.xml"}
    ET.ElementTree(nodes).write(files["nodes"])
    ET.ElementTree(edges).write(files["edges"])
    network = folder / "roads.net.xml"
    command = [sumo_binary("netconvert"), "-n", str(files["nodes"]), "-e", str(files["edges"])]
    subprocess.run([*command, "-o", str(network)], check=True, capture_output=True)
    return network
