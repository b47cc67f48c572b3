"""The SUMO export: valid, loadable, and driven by SUMO exactly as by our own integrator."""

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from asbc.calibration.export.sumo import SumoTypes, sumo_types, write_vtypes
from asbc.config import build, compose
from asbc.errors import InputError
from asbc.population.sumo_replay import (
    build_roads,
    read_vtypes,
    replay_in_simulator,
    replay_in_sumo,
    sumo_binary,
)
from asbc.utils.random import stream

NAMES = ("v0", "s0", "T", "a_max", "b", "sigma", "ell")
LOW = torch.tensor([20.0, 1.0, 0.6, 0.2, 0.4, 0.05, 0.4])
HIGH = torch.tensor([40.0, 6.0, 4.5, 3.5, 4.0, 1.0, 20.0])


def draw(count: int) -> torch.Tensor:
    rng = np.random.default_rng(5)
    return LOW + (HIGH - LOW) * torch.from_numpy(rng.random((count, len(NAMES)))).float()


def needs_sumo() -> None:
    pytest.importorskip("sumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    pytest.importorskip("traci", reason="TraCI is not installed: pip install 'asbc[sumo]'")


def stop_and_go(count: int, steps: int, dt: float) -> torch.Tensor:
    """Leaders that wave, brake to a standstill (-6 m/s^2) and start again."""
    rng = np.random.default_rng(3)
    phase = torch.from_numpy(rng.uniform(0, 6, (count, 1)))
    wave = 12 + 4 * torch.sin(torch.arange(steps) * dt / 4 + phase)
    brake = (12 - 6 * (torch.arange(steps) * dt - 14)).clamp(0, 100)
    start = (1.5 * (torch.arange(steps) * dt - 26)).clamp(0, 100)
    return torch.minimum(wave, torch.maximum(brake, start))


def test_every_parameter_is_written_to_its_attribute(tmp_path: Path) -> None:
    theta = torch.tensor([[31.0, 2.5, 1.25, 1.5, 2.0, 0.3, 4.0], [25, 3, 1, 0.5, 1, 0.2, 2.0]])
    write_vtypes(tmp_path / "d.add.xml", theta, NAMES, SumoTypes(speed_limit=25.0))
    first, second = ET.parse(tmp_path / "d.add.xml").getroot().findall("vTypeDistribution/vType")
    assert first.attrib == {
        "id": "asbc_drivers.0",
        "vClass": "passenger",
        "length": "5",
        "carFollowModel": "IDM",
        "maxSpeed": "31",
        "minGap": "2.5",
        "tau": "1.25",
        "accel": "1.5",
        "decel": "2",
        "speedFactor": "1.24",
        "speedDev": "0",
        "emergencyDecel": "9",
        "delta": "4",
    }
    assert second.attrib["speedFactor"] == "1"
    text = (tmp_path / "d.add.xml").read_text()
    assert "sigma=0.300000012 ell=4" in text and "kept as comments: sigma, ell" in text


def test_types_keep_rows_together(tmp_path: Path) -> None:
    theta = draw(50)
    write_vtypes(tmp_path / "d.add.xml", theta, NAMES)
    names, read = read_vtypes(tmp_path / "d.add.xml")
    assert len(set(names)) == 50
    torch.testing.assert_close(read.float(), theta[:, :5], rtol=1e-7, atol=0)


def test_drivers_without_idm_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no parameter b"):
        write_vtypes(tmp_path / "d.add.xml", draw(2)[:, :4], NAMES[:4])
    with pytest.raises(InputError, match="sumo.length=0"):
        SumoTypes(length=0.0)


def test_sumo_drives_exported_types_as_we_do(tmp_path: Path) -> None:
    needs_sumo()
    drivers, steps, dt = 24, 200, 0.2
    file = tmp_path / "drivers.add.xml"
    write_vtypes(file, draw(drivers), NAMES)
    leader = stop_and_go(drivers, steps, dt)
    gap, speed = torch.linspace(8, 40, drivers), leader[:, 0]
    theirs = replay_in_sumo(file, leader, gap, speed, dt)
    ours = replay_in_simulator(read_vtypes(file)[1], leader, gap, speed, dt)
    assert float((theirs.speed - ours.speed).abs().max()) < 1e-6
    assert float((theirs.gap - ours.gap).abs().max()) < 1e-6
    # The drive is not trivial: followers stop, and react.
    assert float(theirs.speed.min()) == 0 and float(theirs.speed.std(1).min()) > 1


@pytest.mark.parametrize("name", ["idm_box", "eidm", "acc", "idm_action"])
def test_types_of_a_model_without_noise_reproduce_what_was_predicted(
    tmp_path: Path, name: str
) -> None:
    """Exported types, driven by a SUMO of its own as a user's would be, from departure on."""
    needs_sumo()
    pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    simulator = build(compose("train", [f"model=sumo_{name}"]).simulator)
    theta = simulator.prior.sample(12, stream(0, "theta"))
    leader = stop_and_go(12, 150, simulator.dt)
    state = (leader, torch.linspace(8, 40, 12).double(), leader[:, 0])
    predicted = simulator.rollout(theta.double(), *state, stream(0, "noise"), check=False)
    simulator.law.close()
    file = tmp_path / "drivers.add.xml"
    write_vtypes(file, theta, simulator.parameter_names, sumo_types(simulator))
    driven = replay_in_sumo(file, *state, simulator.dt)
    assert float((driven.speed - predicted.speed).abs().max()) < 1e-6
    assert float((driven.gap - predicted.gap).abs().max()) < 1e-6
    assert float(driven.speed.min()) < 1e-3 and float(driven.speed.std(1).min()) > 1


def test_types_of_a_model_have_the_attributes_it_was_simulated_with(tmp_path: Path) -> None:
    simulator = build(compose("train", ["model=sumo_w99"]).simulator)
    theta = simulator.prior.sample(2, stream(0, "theta"))
    write_vtypes(tmp_path / "d.add.xml", theta, simulator.parameter_names, sumo_types(simulator))
    first = ET.parse(tmp_path / "d.add.xml").getroot().findall("vTypeDistribution/vType")[0]
    own = simulator.law.vtype(theta[0].tolist())
    assert own.items() <= first.attrib.items() and float(own["cc3"]) < 0
    with pytest.raises(InputError, match="no parameter cc0"):
        write_vtypes(tmp_path / "d.add.xml", theta[:, :1], ("v0",), sumo_types(simulator))


def test_a_wrong_type_is_noticed_by_the_replay(tmp_path: Path) -> None:
    needs_sumo()
    file = tmp_path / "drivers.add.xml"
    write_vtypes(file, draw(2), NAMES)
    leader = stop_and_go(2, 60, 0.2)
    start = (leader, torch.tensor([20.0, 20.0]), leader[:, 0])
    theirs = replay_in_sumo(file, *start, 0.2)
    theta = read_vtypes(file)[1]
    theta[1, 2] *= 1.001
    difference = (theirs.speed - replay_in_simulator(theta, *start, 0.2).speed).abs().amax(1)
    assert difference[0] < 1e-6 < 1e-5 < difference[1]


def test_export_validates_and_300_vehicles_run_in_sumo(tmp_path: Path) -> None:
    needs_sumo()
    file = tmp_path / "drivers.add.xml"
    write_vtypes(file, draw(300), NAMES)
    network = build_roads(tmp_path, 1, 6000.0)
    routes = tmp_path / "flow.rou.xml"
    routes.write_text(
        '<routes><route id="r" edges="road0"/><flow id="f" type="asbc_drivers" route="r" '
        'begin="0" end="900" number="300" departSpeed="desired" departPos="base"/></routes>'
    )
    statistics = tmp_path / "statistics.xml"
    command = [sumo_binary("sumo"), "--net-file", network, "--route-files", routes]
    command += ["--additional-files", file, "--xml-validation", "always"]
    command += ["--step-length", "0.2", "--no-step-log", "--statistic-output", statistics]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "Error" not in run.stderr, run.stderr
    counts = ET.parse(statistics).getroot()
    vehicles, safety = counts.find("vehicles"), counts.find("safety")
    assert vehicles is not None and safety is not None
    assert vehicles.attrib["inserted"] == "300" and vehicles.attrib["running"] == "0"
    assert safety.attrib["collisions"] == "0"
    # The validation has teeth: an attribute SUMO does not know is an error.
    file.write_text(file.read_text().replace("minGap=", "minGapp="))
    assert subprocess.run(command, capture_output=True, timeout=120).returncode != 0
