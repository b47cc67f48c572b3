"""The README's first run: what it trains passes its own checks."""

import json

import pytest


@pytest.mark.slow
def test_the_first_run_ends_without_a_warning(run_command, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    train = ["experiment=quick", f"hydra.run.dir={folder}"]
    assert run_command("train", train, log=log) == 0, log.read_text()
    assert run_command("evaluate", [f"run={folder}"], log=log) == 0, log.read_text()
    metrics = json.loads((folder / "evaluation" / "metrics.json").read_text())
    assert metrics["warnings"] == []
    checks = metrics["simulated_drivers"]["parameters"].values()
    assert all(check["sbc_inside_band"] for check in checks)
