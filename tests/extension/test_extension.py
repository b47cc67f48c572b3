"""New parts from this folder alone, used through the commands: no list anywhere turns red."""

import json
from pathlib import Path

import pandas as pd
import pytest

HERE = Path(__file__).parent
PARTS = ["model=helly", "residual=double_exponential", "encoder=moments", "data=spaced_text"]


@pytest.fixture
def plugin(monkeypatch, tmp_path, tiny_pairs) -> list[str]:
    """The folder is on the path and trusted; returns the overrides that choose its parts."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("ASBC_PLUGINS", "extension")
    table = pd.read_csv(tiny_pairs).rename(columns={"speed": "v", "leader_speed": "vl"})
    table.to_csv(tmp_path / "drivers.txt", sep=";", index=False)
    return [*PARTS, f"data.file={tmp_path / 'drivers.txt'}"]


def test_a_users_parts_go_through_train_evaluate_and_calibrate(
    plugin, run_command, tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", lambda *_: [])
    run, log = tmp_path / "run", tmp_path / "log"
    small = [t for t in tiny if not t.startswith(("encoder.", "data"))]
    small += ["data.context_steps=20", "data.min_duration=8", "acquisition=random"]
    small = [t for t in small if not t.startswith("acquisition.")]
    arguments = ["--config-dir", str(HERE / "conf"), *small, *plugin, f"hydra.run.dir={run}"]
    assert run_command("train", arguments, log=log) == 0, log.read_text()[-3000:]

    metric = "evaluation.extra_scores=[{_target_: extension.median_error}]"
    fast = ["evaluation.horizon=20", "evaluation.samples=20", "evaluation.simulated_drivers=0"]
    log = tmp_path / "evaluated"
    assert run_command("evaluate", [f"run={run}", metric, *fast], log=log) == 0, log.read_text()
    metrics = json.loads((run / "evaluation" / "metrics.json").read_text())
    windows = pd.read_parquet(run / "evaluation" / "windows.parquet")
    for x in "sva":
        mean = windows.loc[windows["after_context"], f"median_error_{x}"].mean()
        assert metrics["after_context"][f"median_error_{x}"] == pytest.approx(mean)
    assert metrics["run"]["method"] == "ASBC-Laplace, random"
    assert "MedAE s" in log.read_text()
    assert "MedAE s" in (run / "evaluation" / "report.html").read_text()

    log = tmp_path / "calibrated"
    arguments = [f"run={run}", "calibration.samples=20", "refine=psis"]
    weighting = ["refine.weighting.proposals=200", "refine.weighting.effective_draws=20"]
    assert run_command("calibrate", [*arguments, *weighting], log=log) == 0, log.read_text()
    draws = pd.read_parquet(run / "calibration" / "own" / "draws.parquet")
    names = ["pair_id", "draw", "c1", "c2", "distance", "headway", "sigma"]
    assert list(draws) == names and len(draws) == 24 * 20


def test_a_run_of_untrusted_parts_is_refused(plugin, run_command, tiny, tmp_path, monkeypatch):
    run, log = tmp_path / "run", tmp_path / "log"
    arguments = ["--config-dir", str(HERE / "conf"), *tiny, "residual=double_exponential"]
    assert run_command("train", [*arguments, f"hydra.run.dir={run}"], log=log) == 0
    monkeypatch.setenv("ASBC_PLUGINS", "")
    log = tmp_path / "refused"
    assert run_command("evaluate", [f"run={run}"], log=log) == 2
    assert "names extension.DoubleExponential" in log.read_text()
    assert "set ASBC_PLUGINS=extension" in log.read_text()
