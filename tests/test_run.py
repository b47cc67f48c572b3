"""A run folder: what is recorded in it, who may write to it, and what it can be opened as."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from asbc.config import CONF, compose
from asbc.errors import InputError
from asbc.run import Run, git_commit
from asbc.utils.files import load_tensors


@pytest.fixture
def run(tmp_path) -> Run:
    """A run that was started."""
    run = Run(tmp_path / "a run")
    run.path.mkdir()
    run.write("seed: 7\n", 7, ["residual=matern", "data.path='x y.csv'", "seed=null"])
    run.last.parent.mkdir()
    run.last.write_bytes(b"")
    return run


def test_the_record_says_what_the_run_was_made_with(run):
    record = json.loads(run.record_file.read_text())
    assert record["seed"] == run.seed == 7
    assert record["overrides"] == list(run.overrides) == ["residual=matern", "data.path='x y.csv'"]
    assert {"torch", "pytorch-lightning", "asbc"} <= set(record["versions"])
    assert record["git_commit"] == git_commit()


def test_a_resumed_run_keeps_the_record_of_its_beginning(run):
    beginning = json.loads(run.record_file.read_text())
    run.write("seed: 7\n", 8, ["residual=matern", "logger=wandb"])
    record = json.loads(run.record_file.read_text())
    assert record == {**beginning, "overrides": ["residual=matern", "logger=wandb"]}


def test_last_means_the_folders_own_checkpoint(run, tmp_path):
    assert run.checkpoint("last") == str(run.last)
    assert Run(tmp_path / "new").checkpoint("last") is None
    assert run.checkpoint("else.ckpt") == "else.ckpt" and run.checkpoint(None) is None


def test_a_folder_with_a_run_is_refused_unless_resuming(run):
    with pytest.raises(InputError, match="already holds a run; continue it with ckpt_path="):
        run.claim(resuming=False).__enter__()
    with run.claim(resuming=True):
        pass


def test_leftovers_of_a_killed_process_are_removed(run):
    leftover = run.path / "checkpoints" / ".last.ckpt.123.partial"
    leftover.touch()
    with run.claim(resuming=True):
        assert not leftover.exists()


def test_two_processes_never_share_a_folder(tmp_path):
    code = "import sys; from asbc.run import Run\nwith Run(sys.argv[1]).claim(False): pass"
    with Run(tmp_path).claim(resuming=False):
        other = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True
        )
    assert "another process is writing to this run" in other.stderr
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == 0


def test_the_folder_is_shown_as_the_user_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Run(tmp_path / "outputs" / "x").shown == "outputs/x"
    assert Run("/elsewhere/x").shown == "/elsewhere/x"


@pytest.fixture
def finished(run) -> Run:
    """A run that can be opened, though not used."""
    config = {"data": {}, "robust": {}, "estimator": {}, "tags": []}
    run.write(yaml.safe_dump(config), 7, ["residual=matern"])
    run.best.touch()
    return run


def test_only_a_finished_run_is_opened(finished, tmp_path):
    assert Run.open(finished.path).config == finished.config
    with pytest.raises(InputError, match=f"run={tmp_path}/none: no such folder"):
        Run.open(tmp_path / "none")
    with pytest.raises(InputError, match="not a run folder; expected run.json and config.yaml"):
        Run.open(tmp_path)
    finished.best.unlink()
    with pytest.raises(InputError, match=r"no round was finished; continue the run with asbc tr"):
        Run.open(finished.path)


def other_version(run: Run, *parts: int) -> None:
    """Let the record say that another version made the run: these numbers are added to ours."""
    record = json.loads(run.record_file.read_text())
    own = map(int, record["versions"]["asbc"].split("."))
    record["versions"]["asbc"] = ".".join(str(a + b) for a, b in zip(own, parts, strict=True))
    run.record_file.write_text(json.dumps(record))


def test_a_patch_release_may_read_older_runs(finished):
    other_version(finished, 0, 0, 99)
    assert isinstance(Run.open(finished.path), Run)


def test_a_run_of_another_minor_version_is_refused(finished):
    other_version(finished, 0, 1, 0)
    with pytest.raises(InputError, match=r"trained with asbc .* or train again"):
        Run.open(finished.path)


def test_code_that_came_with_a_folder_is_not_run(finished, monkeypatch):
    config = {**finished.config, "data": {"_target_": "os.system", "command": "true"}}
    finished.config_file.write_text(yaml.safe_dump(config, sort_keys=False))
    with pytest.raises(InputError, match="names os.system, which is not part of asbc"):
        Run.open(finished.path)
    monkeypatch.setenv("ASBC_PLUGINS", "os")
    Run.open(finished.path)


OVERRIDES = (
    *("experiment=quick", "residual=matern", "acquisition=joint", "seed=3", "logger=wandb"),
    *("data=pairs", "data.path=x", "data.context_steps=25", "acquisition.gamma=0.2"),
    *("flow=nsf", "hydra/launcher=joblib", "callbacks.monitor.pairs=3", "threads=2"),
)


@pytest.mark.parametrize(
    ("tags", "experiment"), [([], ["experiment=quick"]), (["paper"], [])], ids=["own", "paper"]
)
def test_variants_leave_out_what_does_not_change_the_method(finished, tags, experiment):
    finished.write(yaml.safe_dump({"tags": tags}), 3, OVERRIDES)
    assert Run(finished.path).variant == (
        *(*experiment, "data.context_steps=25", "acquisition.gamma=0.2", "flow=nsf"),
    )


@pytest.mark.parametrize("group", ["acquisition", "residual"])
def test_every_choice_that_labels_a_method_carries_its_name(group):
    for file in (CONF / group).glob("*.yaml"):
        assert compose("train", [f"{group}={file.stem}"])[group].name == file.stem


@pytest.mark.parametrize(
    ("residual", "acquisition", "label"),
    [
        ("gaussian", "joint", "ASBC-Gaussian"),
        ("gaussian", "random", "ASBC-Gaussian, random"),
        ("matern", "joint", "ASBC-Matérn"),
        ("matern", "random", "ASBC-Matérn, random"),
    ],
)
def test_the_label_is_the_papers_name_of_the_method(finished, residual, acquisition, label):
    chosen = {"residual": residual, "acquisition": acquisition}
    config = {group: (CONF / group / f"{name}.yaml").read_text() for group, name in chosen.items()}
    config = {group: yaml.safe_load(text) for group, text in config.items()}
    finished.config_file.write_text(yaml.safe_dump(config))
    assert Run(finished.path).label == label


def test_a_copied_run_works_without_its_training_data(trained, tmp_path):
    """The folder alone: posterior, leaders and the yardstick of novelty are those of training."""
    original = Run.open(trained())
    folder = shutil.copytree(original.path, tmp_path / "copy")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"]["path"] = "/nowhere.csv"
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    copied = Run.open(folder)
    steps = config["data"]["context_steps"]
    assert copied.model().fingerprint() == original.model().fingerprint()
    for mine, theirs in zip(copied.leaders(steps), original.leaders(steps), strict=True):
        assert torch.equal(mine, theirs)
    assert copied.leaders(steps + 1) is None
    assert torch.equal(copied.novelty(steps).held_out, original.novelty(steps).held_out)
    assert copied.novelty(steps - 5) is not None and copied.novelty(steps + 1) is None
    assert not copied.differences(original.config)
    changed = {**original.config, "prior": {}}
    assert copied.differences(changed) == ["prior"]


def test_weights_that_do_not_fit_are_refused(trained, tmp_path):
    folder = shutil.copytree(trained(), tmp_path / "copy")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["estimator"]["flow"]["hidden"] *= 2
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    with pytest.raises(InputError, match="weights do not fit the model .*; train again"):
        _ = Run.open(folder).posterior


def test_a_run_from_before_lags_were_known_has_none(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained(), folder)
    run = Run.open(folder)
    content = load_tensors(run.best)
    del content["state_dict"]["posterior.lags"]
    torch.save(content, run.best)
    assert Run.open(folder).simulator.lags == (0.0, 0.0)


def test_a_file_that_holds_no_weights_is_refused(tmp_path):
    path: Path = tmp_path / "best.ckpt"
    with pytest.raises(InputError, match="no such file"):
        load_tensors(path)
    path.write_text("not a checkpoint")
    with pytest.raises(InputError, match="best.ckpt: not a file of weights"):
        load_tensors(path)
