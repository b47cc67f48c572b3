"""Arguments that evaluate.py takes from a run, and the overrides that make a variant."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from asbc.arguments import override_text, with_data_of_run
from asbc.evaluation.protocol import EvaluationSettings
from asbc.run import RunFolder, TrainedRun, open_run

CONF = Path(__file__).parents[2] / "conf"
DATA = {
    "_target_": "asbc.data.pairs_file.PairsFile",
    "path": "it's, a=file.csv",
    "dt": 0.1,
    "context_steps": 30,
    "split": [0.5, 0.2, 0.3],
}


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished run in a folder named as Hydra names a sweep's jobs."""
    folder = RunFolder(tmp_path / "residual=matern,seed=0")
    folder.best.parent.mkdir(parents=True)
    folder.write(yaml.safe_dump({"data": DATA}), 0, ["residual=matern", "seed=0"])
    folder.best.touch()
    return folder.path


def composed(run: Path, *arguments: str) -> dict:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("evaluate", with_data_of_run([f"run={run}", *arguments], CONF / "data"))


def test_the_runs_own_data_are_the_default(run) -> None:
    cfg = composed(run)
    assert {name: cfg.data[name] for name in DATA} == DATA
    assert cfg.run == str(run) and cfg.output == f"{run}/evaluation"


def test_one_setting_of_the_data_can_be_changed(run) -> None:
    cfg = composed(run, "data.path=other.csv")
    assert (cfg.data.path, cfg.data.dt, cfg.data.context_steps) == ("other.csv", 0.1, 30)


def test_another_source_keeps_what_belongs_to_the_model(run) -> None:
    cfg = composed(run, "data=highd", "data.root=DIR", "data.dt=0.2")
    assert cfg.data._target_.endswith("HighD") and cfg.data.root == "DIR"
    assert (cfg.data.dt, cfg.data.context_steps) == (0.2, 30)
    assert list(cfg.data.split) == [0.6, 0.1, 0.3]


def test_several_runs_at_once_are_refused(run) -> None:
    with pytest.raises(SystemExit, match="one run at a time"):
        with_data_of_run(["-m", f"run={run}"], CONF / "data")


@pytest.mark.parametrize("value", [None, True, 0.5, "a b", "x'y", [1, "z"], {"k": [None, 2]}, []])
def test_override_text_survives_hydra(value) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("report", [f"+x={override_text(value)}"])
    assert cfg.x == value


def test_variants_leave_out_what_does_not_change_the_method(run) -> None:
    overrides = (
        *("experiment=quick", "residual=matern", "acquisition=joint", "seed=3", "logger=wandb"),
        *("data=pairs", "data.path=x", "data.context_steps=25", "acquisition.gamma=0.2"),
        *("flow=nsf", "hydra/launcher=joblib", "callbacks.monitor.pairs=3", "threads=2"),
    )
    trained = replace(open_run(run), overrides=overrides)
    assert trained.variant == (
        *("experiment=quick", "data.context_steps=25", "acquisition.gamma=0.2", "flow=nsf"),
    )


def test_a_patch_release_may_read_older_runs(run) -> None:
    record = json.loads((run / "run.json").read_text())
    major, minor, *_ = record["versions"]["asbc"].split(".")
    record["versions"]["asbc"] = f"{major}.{minor}.99"
    (run / "run.json").write_text(json.dumps(record))
    assert isinstance(open_run(run), TrainedRun)


def test_the_paper_protocol_is_the_default_of_the_settings() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        paper = instantiate(compose("evaluate", ["run=x"]).evaluation)
        fast = instantiate(compose("evaluate", ["run=x", "evaluation=fast"]).evaluation)
    assert paper == replace(EvaluationSettings(), pairs=[])
    assert fast.horizon == paper.horizon and fast.samples < paper.samples
    assert (paper.horizon, paper.stride, paper.max_windows, paper.samples) == (50, 20, 20, 500)


@pytest.mark.parametrize("group", ["acquisition", "residual"])
def test_every_choice_that_labels_a_method_carries_its_name(group: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for file in (CONF / group).glob("*.yaml"):
            assert compose("train", [f"{group}={file.stem}"])[group].name == file.stem
