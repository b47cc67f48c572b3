"""The dashboard without a server: what would be sent, and the picture of the same panels."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from asbc.evaluation.results import averaged
from asbc.reporting.wandb import PANELS, Bars, Images, Lines

SCRIPT = str(Path(__file__).parents[2] / "scripts" / "wandb_dashboard.py")


@pytest.fixture
def run(monkeypatch):
    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [SCRIPT, *arguments])
        runpy.run_path(SCRIPT, run_name="__main__")

    return call


def test_the_workspace_asks_for_what_is_logged(run, tmp_path):
    pytest.importorskip("wandb_workspaces")
    run("--entity", "me", "--project", "p", "--dry-run", str(tmp_path / "w.json"))
    content = json.loads((tmp_path / "w.json").read_text())
    assert (content["entity"], content["project"]) == ("me", "p")
    sections = content["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections][: len(PANELS)] == list(PANELS)
    first = sections[0]["panels"][0]["config"]
    assert first["xAxis"] == "round/round" and first["metrics"] == ["round/loss"]
    assert first["groupBy"] == "method.value" and first["groupAgg"] == "mean"
    text = json.dumps(sections)
    for panel in (panel for panels in PANELS.values() for panel in panels):
        match panel:
            case Lines(metric=metric):
                names = [f"round/{metric}"]
            case Bars(metrics=metrics):
                assert set(metrics) <= set(averaged())
                names = [f"eval/all_windows/{name}" for name in metrics]
            case Images(names=pictures):
                names = [f"eval/{name}" for name in pictures]
        assert all(f'"{name}"' in text for name in names)


def test_the_same_panels_from_run_folders(run, save_run, tmp_path):
    save_run("a")
    save_run("b", acquisition="random")
    picture = tmp_path / "d.png"
    run("--runs", str(tmp_path / "runs" / "*"), "--picture", str(picture))
    pixels = imread(picture)
    assert pixels.shape[0] > 1000 and np.ptp(pixels) > 0.5


def test_neither_account_nor_runs(run, capsys):
    with pytest.raises(SystemExit):
        run()
    assert "--entity" in capsys.readouterr().err
