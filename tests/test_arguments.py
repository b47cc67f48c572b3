"""What commands do to their arguments: resuming, the data of a run, quoting, and mistakes."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from asbc.arguments import (
    merge_overrides,
    offer_data_of_run,
    override_text,
    quoted,
    register_resolvers,
    resume_arguments,
)
from asbc.config import compose
from asbc.errors import InputError
from asbc.run import Run

DATA = {
    "_target_": "asbc.data.pairs_file.PairsFile",
    "path": "it's, a=file.csv",
    "dt": 0.1,
    "context_steps": 30,
    "split": [0.5, 0.2, 0.3],
}


@pytest.fixture
def started(tmp_path) -> Run:
    run = Run(tmp_path / "a run")
    run.path.mkdir()
    run.write("seed: 7\n", 7, ["residual=matern", "data.path='x y.csv'", "seed=null"])
    run.last.parent.mkdir()
    run.last.write_bytes(b"")
    return run


def test_resuming_repeats_the_runs_overrides_and_its_drawn_seed(started):
    arguments = resume_arguments(
        [f"ckpt_path='{started.last}'", "logger=wandb", "residual=gaussian"]
    )
    assert arguments == [
        "data.path='x y.csv'",
        "seed=7",
        f"hydra.run.dir='{started.path}'",
        "logger=wandb",
        "residual=gaussian",
        f"ckpt_path='{started.last}'",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["residual=matern", "-m"],
        ["ckpt_path=null"],
        ["ckpt_path="],
        ["seed=2", "ckpt_path=last"],
    ],
)
def test_arguments_without_a_checkpoint_stay(arguments):
    assert resume_arguments(arguments) == arguments


def test_a_checkpoint_that_cannot_be_resumed_is_refused(started, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        resume_arguments([f"ckpt_path={tmp_path}/none.ckpt"])
    stray = tmp_path / "stray.ckpt"
    stray.touch()
    with pytest.raises(InputError, match="has no run.json"):
        resume_arguments([f"ckpt_path={stray}"])
    with pytest.raises(InputError, match="cannot be combined with --multirun"):
        resume_arguments(["-m", f"ckpt_path={started.last}"])


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a=b,c", "back\\slash", "{x}"])
def test_a_quoted_path_survives_hydras_grammar(name, tmp_path):
    parsed = OverridesParser.create().parse_override(f"hydra.run.dir={quoted(tmp_path / name)}")
    assert parsed.value() == str(tmp_path / name)


def test_later_overrides_replace_earlier_ones():
    assert merge_overrides(["+a=1", "b=2"], ["a=3"]) == ["b=2", "a=3"]


@pytest.mark.parametrize("value", [None, True, 0.5, "a b", "x'y", [1, "z"], {"k": [None, 2]}, []])
def test_override_text_survives_hydra(value):
    assert compose("report", [f"+x={override_text(value)}"]).x == value


def test_looking_at_the_arguments_imports_nothing_heavy():
    code = "import sys, asbc.arguments; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished run in a folder named as Hydra names a sweep's jobs."""
    run = Run(tmp_path / "residual=matern,seed=0")
    run.best.parent.mkdir(parents=True)
    config = {"data": DATA, "robust": {}, "estimator": {}}
    run.write(yaml.safe_dump(config), 0, ["residual=matern", "seed=0"])
    run.best.touch()
    return run.path


def composed(run: Path, *arguments: str):
    register_resolvers()
    return compose("evaluate", offer_data_of_run([f"run={run}", *arguments]))


def test_the_runs_own_data_are_the_default(run):
    cfg = composed(run)
    assert {name: cfg.data[name] for name in DATA} == DATA
    assert cfg.run == str(run) and cfg.output == f"{run}/evaluation"


def test_one_setting_of_the_data_can_be_changed(run):
    cfg = composed(run, "data.path=other.csv")
    assert (cfg.data.path, cfg.data.dt, cfg.data.context_steps) == ("other.csv", 0.1, 30)


def test_another_source_keeps_what_belongs_to_the_model(run):
    cfg = composed(run, "data=highd", "data.root=DIR", "data.dt=0.2")
    assert cfg.data._target_.endswith("HighD") and cfg.data.root == "DIR"
    assert (cfg.data.dt, cfg.data.context_steps) == (0.2, 30)
    assert list(cfg.data.split) == [0.6, 0.1, 0.3]


def test_several_runs_at_once_are_refused(run):
    with pytest.raises(InputError, match="one run at a time"):
        offer_data_of_run(["-m", f"run={run}"])
