"""Calibrated drivers in a user's network: noise is applied exactly, and goes on where it was."""

import gzip
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from asbc.calibration.export.sumo import write_vtypes
from asbc.engine import LocalEngine
from asbc.engine.local import LocalWorkers
from asbc.errors import InputError
from asbc.population.sumo_network import (
    SEGMENT,
    DriverNoise,
    NetworkDrive,
    Traffic,
    drive_network,
    require_readable,
)
from asbc.population.sumo_replay import build_roads, type_names
from asbc.simulator.matern import MaternResidual
from asbc.simulator.residuals import GaussianResidual

NAMES = ("v0", "s0", "T", "a_max", "b", "sigma")
DRIVER = [30.0, 2.0, 1.5, 1.4, 2.0, 0.4]


def in_a_process(job: NetworkDrive) -> Traffic:
    with LocalWorkers(None, 1, LocalEngine(workers=1, attempts=1, time_limit=120.0)) as pool:
        return pool.gather(drive_network, [("network", job)])[0]


def job_of(folder: Path, **changes) -> NetworkDrive:
    """One driver behind another on a road of 5 km."""
    types = folder / "drivers.add.xml"
    write_vtypes(types, torch.tensor([DRIVER]), NAMES)
    routes = folder / "routes.rou.xml"
    vehicles = "".join(
        f'<vehicle id="{name}" depart="{depart}" route="r" departPos="100" departSpeed="10"/>'
        for name, depart in (("first", 0), ("second", 6))
    )
    routes.write_text(f'<routes><route id="r" edges="road0"/>{vehicles}</routes>')
    values = {
        **{"net": str(build_roads(folder, 1, 5000.0)), "routes": [str(routes)]},
        **{"additional": [], "types": str(types), "names": type_names(types), "replaced": []},
        **{"folder": str(folder / "out"), "dt": 0.2, "duration": 60.0, "seed": 3},
        **{"residual": GaussianResidual(), "hyper": torch.tensor([[0.4]])},
    }
    return NetworkDrive(**{**values, **changes})


def trajectory(job: NetworkDrive, vehicle: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions and speeds in the trajectories that SUMO wrote."""
    with gzip.open(Path(job.folder) / "fcd.xml.gz", "rt") as file:
        rows = [row.attrib for row in ET.parse(file).iter("vehicle") if row.get("id") == vehicle]
    return tuple(np.array([float(row[name]) for row in rows]) for name in ("pos", "speed"))


def test_noise_in_sumo_is_the_residual_of_our_model(tmp_path):
    """Both vehicles against the IDM by hand: speed changed by r dt, then SUMO's own step."""
    pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    job = job_of(tmp_path, duration=26.0)  # nobody has reached v0, which SUMO does not exceed
    traffic = in_a_process(job)
    assert traffic.departed == traffic.drivers == 2 and traffic.collisions == 0
    v0, s0, headway, a_max, b, _ = DRIVER
    first, second = trajectory(job, "first"), trajectory(job, "second")
    late = len(first[0]) - len(second[0])
    ahead = DriverNoise(job.residual, job.hyper, job.dt, job.seed, "first")
    other = [ahead.next() for _ in first[0]]
    for name, (place, speed), lead in (("first", first, None), ("second", second, first)):
        noise = DriverNoise(job.residual, job.hyper, job.dt, job.seed, name)
        for t in range(len(speed) - 1):
            kicked = max(0.0, speed[t] + noise.next() * job.dt)
            a = a_max * (1 - (kicked / v0) ** 4)
            if lead is not None:
                # SUMO sees the leader's speed as changed by its own noise.
                gap = lead[0][t + late] - 5.0 - place[t]
                seen = max(0.0, lead[1][t + late] + other[t + late] * job.dt)
                dynamic = kicked * headway + kicked * (kicked - seen) / (2 * (a_max * b) ** 0.5)
                a -= a_max * ((s0 + max(0.0, dynamic)) / gap) ** 2
            assert speed[t + 1] == pytest.approx(max(0.0, kicked + a * job.dt), abs=2e-5), (
                name,
                t,
            )
    assert (tmp_path / "out" / "tripinfo.xml").is_file()


def test_noise_goes_on_where_a_stretch_ended():
    hyper = torch.tensor([[0.5, 2.0]])
    jumps, steps, far = [], [], []
    for index in range(150):
        noise = DriverNoise(MaternResidual(nugget=0.0), hyper, 0.2, 0, f"vehicle {index}")
        values = np.array([noise.next() for _ in range(SEGMENT + 20)])
        jumps.append(values[SEGMENT] - values[SEGMENT - 1])
        steps.append(values[SEGMENT - 500] - values[SEGMENT - 501])
        far.append(values[SEGMENT + 10])
    # A start afresh would jump by sqrt(2) sigma; a Matern of 2 s moves by 0.064 in a step.
    assert np.std(jumps) == pytest.approx(np.std(steps), rel=0.25)
    assert np.std(far) == pytest.approx(0.5, rel=0.2)


def test_the_same_drive_twice_and_other_types_kept(tmp_path):
    pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    job = job_of(tmp_path, fcd=False, duration=20.0)
    first, again = in_a_process(job), in_a_process(job)
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    kept = in_a_process(job_of(tmp_path, fcd=False, duration=20.0, replaced=["nobody"]))
    assert kept.departed == 2 and kept.drivers == 0


def test_what_sumo_cannot_read_is_one_line(tmp_path):
    pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    bad = tmp_path / "bad.net.xml"
    bad.write_text("<net></wrong>")
    with pytest.raises(InputError, match=r"net=.*bad.net.xml: SUMO cannot .*: is it a .net.xml?"):
        require_readable(job_of(tmp_path, net=str(bad)))
    lost = tmp_path / "lost.rou.xml"
    lost.write_text(
        '<routes><vehicle id="v" depart="0"><route edges="nowhere"/></vehicle></routes>'
    )
    with pytest.raises(
        InputError, match=r"SUMO cannot use it with these routes: Error: .*nowhere"
    ):
        require_readable(job_of(tmp_path, routes=[str(lost)]))
    require_readable(job_of(tmp_path))
