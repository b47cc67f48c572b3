"""A model that SUMO simulates goes through the commands: train, evaluate, calibrate, simulate."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
FAST = (
    *("evaluation.horizon=20", "evaluation.samples=20", "evaluation.bootstrap=9"),
    *("evaluation.simulated_drivers=30", "evaluation.posterior_draws=19"),
)


def test_krauss_goes_through_the_commands(run_command, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", lambda *_: [])
    run = tmp_path / "run"

    def succeeds(name, *arguments):
        log = tmp_path / f"{name}.log"
        assert run_command(name, arguments, log=log) == 0, log.read_text()[-3000:]
        return log.read_text()

    succeeds("train", *tiny, "model=sumo_krauss", "robust=real", f"hydra.run.dir={run}")
    rounds = pd.read_csv(run / "rounds.csv")
    assert len(rounds) == 3 and (rounds["seconds_simulate"] > 0).all()
    assert " simulations, " in (tmp_path / "train.log").read_text()

    succeeds("evaluate", f"run={run}", *FAST)
    metrics = json.loads((run / "evaluation" / "metrics.json").read_text())
    assert metrics["run"]["method"] == "ASBC-SUMO Krauss"
    assert metrics["after_context"]["es_s"] > 0

    succeeds("calibrate", f"run={run}", "calibration.samples=20", f"output={tmp_path / 'fit'}")
    draws = pd.read_parquet(tmp_path / "fit" / "draws.parquet")
    assert list(draws)[2:] == ["v0", "s0", "T", "a_max", "b", "sigma"]
    types = ET.parse(tmp_path / "fit" / "drivers.add.xml").getroot().findall(".//vType")
    assert len(types) == 300 and {t.attrib["carFollowModel"] for t in types} == {"Krauss"}

    population = f"population={tmp_path / 'fit'}"
    text = succeeds("simulate", f"run={run}", population, "scenario=leader", "scenario.drivers=20")
    assert "20 new drivers" in text
    text = succeeds("simulate", f"run={run}", population, "scenario=sumo", "scenario.replayed=4")
    assert "of which SUMO's Krauss has its own noise" in text
    log = tmp_path / "ring.log"
    assert run_command("simulate", [f"run={run}", population, "scenario=ring"], log=log) == 2
    assert "SUMO's Krauss is a black box" in log.read_text()


def test_the_stream_simulates_in_sumo(run_command, tiny_stream, tmp_path):
    log = tmp_path / "log"
    given = [*tiny_stream, "model=sumo_acc", f"hydra.run.dir={tmp_path / 'run'}"]
    assert run_command("train", given, log=log) == 0, log.read_text()[-3000:]
    assert len(pd.read_csv(tmp_path / "run" / "rounds.csv")) == 4


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGKILL"])
def test_nothing_is_left_running(tiny, tmp_path, signal_name):
    """Ctrl-C, or worse, while SUMO simulates."""
    given = [*tiny, "model=sumo_krauss", "training.warmup_simulations=200000"]
    command = [sys.executable, "-m", "asbc", "train", *given, f"hydra.run.dir={tmp_path / 'run'}"]
    with (tmp_path / "log").open("w") as log:
        main = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # What a shell starts in the background ignores Ctrl-C, and its children with it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    until = time.monotonic() + 120
    while len(descendants(main.pid)) < 1 and time.monotonic() < until:
        assert main.poll() is None, (tmp_path / "log").read_text()[-2000:]
        time.sleep(0.2)
    time.sleep(5)
    started = descendants(main.pid)
    assert started
    for _ in range(10):  # Python drops an interrupt that comes while it clears up an object
        main.send_signal(getattr(signal, signal_name))
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert main.wait(timeout=10) != 0
            break
    assert main.poll() is not None
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < until:
        time.sleep(0.2)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
