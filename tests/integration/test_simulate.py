"""`asbc simulate` as users run it, on a tiny trained run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

FAST = ("samples=10", "hydra/job_logging=none")


@pytest.fixture(scope="module")
def trained(trained, tmp_path_factory) -> Path:
    """A trained run of this module's own, for results go into its folder."""
    shared = trained("residual=gaussian", "transform=bounded", "training.rounds=0")
    return Path(shutil.copytree(shared, tmp_path_factory.mktemp("simulated") / "run"))


@pytest.fixture
def simulate(run_command, tmp_path) -> Callable[..., tuple[int, str]]:
    """Simulate; returns its exit code and everything it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        log = tmp_path / "simulate.log"
        log.unlink(missing_ok=True)
        code = run_command("simulate", [*FAST, *arguments], log=log)
        return code, log.read_text()

    return run


def test_the_ring_draws_both_diagrams(trained, simulate) -> None:
    code, text = simulate(
        f"run={trained}",
        *("scenario.ring.duration=80", "scenario.warm_up=20", "scenario.cell_duration=20"),
        *("scenario.sweep_vehicles=[8]", "scenario.sweep_duration=60", "scenario.replications=2"),
    )
    assert code == 0, text
    folder = trained / "simulation" / "ring"
    assert "32 vehicles on 861 m, 2 replications of 80 s" in text
    for name in ("time_space", "fundamental_diagram"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert (folder / f"{name}.pdf").stat().st_size > 5_000
    table = pd.read_csv(folder / "ring.csv")
    assert table["vehicles"].tolist() == [8, 8, 32, 32]
    flow = table["density_per_km"] * table["mean_speed"] * 3.6
    assert table["flow_per_hour"].to_numpy() == pytest.approx(flow.to_numpy(), rel=1e-4)


def test_new_drivers_follow_a_recorded_leader(trained, simulate) -> None:
    arguments = (f"run={trained}", "scenario=leader", "scenario.drivers=30")
    code, text = simulate(*arguments, "scenario.pair=7")
    assert code == 0, text
    assert "30 new drivers behind the leader of pair r/7 (12 s)" in text
    folder = trained / "simulation" / "leader"
    assert (folder / "new_drivers.png").stat().st_size > 10_000
    drives = pd.read_parquet(folder / "drives.parquet")
    assert len(drives) == 30 * 61 and drives.groupby("driver")["gap"].first().nunique() == 1
    code, text = simulate(*arguments, "scenario.pair=99")
    assert code != 0 and "pair 99 is not in the data (24 pairs: r/0, " in text


def test_a_calibrations_population_is_used(trained, simulate, run_command, monkeypatch) -> None:
    monkeypatch.setattr("asbc.population.pictures.save_figure", lambda *_: None)
    folder = trained / "calibrated"
    small = ["calibration.samples=10", "calibration.novelty=false", f"output={folder}"]
    assert run_command("calibrate", [f"run={trained}", *small]) == 0
    draws = pd.read_parquet(folder / "draws.parquet").assign(T=1.25)
    draws.to_parquet(folder / "draws.parquet")
    arguments = (f"run={trained}", "scenario=leader", f"population={folder}")
    code, text = simulate(*arguments, f"output={folder}/simulated")
    assert code == 0, text
    assert pd.read_csv(folder / "simulated" / "new_drivers.csv")["T"].unique().tolist() == [1.25]


def test_exported_drivers_are_checked_in_sumo(trained, simulate) -> None:
    pytest.importorskip("sumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    pytest.importorskip("traci", reason="TraCI is not installed: pip install 'asbc[sumo]'")
    code, text = simulate(
        f"run={trained}", "scenario=sumo", "scenario.drivers=12", "scenario.replayed=4"
    )
    assert code == 0, text
    difference = float(text.split("at most ")[1].split(" m/s")[0])
    assert difference < 1e-6
    exported = (trained / "simulation" / "sumo" / "drivers.add.xml").read_text()
    assert exported.count("<vType ") == 12


def test_drivers_in_a_network_of_the_users(trained, simulate, tmp_path) -> None:
    pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    from asbc.population.sumo_replay import build_roads

    net, routes = build_roads(tmp_path, 1, 1500.0), tmp_path / "routes.rou.xml"
    routes.write_text(
        '<routes><route id="r" edges="road0"/>'
        '<flow id="f" route="r" begin="0" end="60" number="20" departSpeed="10"/></routes>'
    )
    given = [f"run={trained}", "scenario=sumo_network", f"net={net}", f"routes={routes}"]
    code, text = simulate(*given, "scenario.duration=100")
    assert code == 0, text
    assert "20 vehicles departed, 20 of them drivers of the population" in text
    folder = trained / "simulation" / "sumo_network"
    for name in ("with_noise", "without_noise"):
        assert (folder / name / "fcd.xml.gz").stat().st_size > 1000
        assert (folder / name / "tripinfo.xml").is_file()
    table = pd.read_csv(folder / "network.csv", index_col="simulation")
    spread = table["sd of acceleration (m/s²)"]
    assert spread["with_noise"] > 1.2 * spread["without_noise"]
    assert (table["collisions"] == 0).all()
    assert "what driver noise does to this traffic" in (folder / "network.html").read_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([], "scenario=sumo_network needs net=FILE"),
        (["net=no.net.xml", "routes=no.rou.xml"], "net=no.net.xml: no such file"),
    ],
)
def test_a_network_that_is_not_there_is_one_line(trained, simulate, changed, message) -> None:
    pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    code, text = simulate(f"run={trained}", "scenario=sumo_network", *changed)
    assert code == 2 and message in text
