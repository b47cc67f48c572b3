import json
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from asbc.arguments import merge_overrides, quoted, resume_arguments
from asbc.errors import InputError
from asbc.run import RunFolder, git_commit


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "a run")
    folder.path.mkdir()
    folder.write("seed: 7\n", 7, ["residual=matern", "data.path='x y.csv'", "seed=null"])
    folder.last.parent.mkdir()
    folder.last.write_bytes(b"")
    return folder


def test_the_record_says_what_the_run_was_made_with(run):
    record = json.loads(run.record.read_text())
    assert record["seed"] == 7
    assert record["overrides"] == ["residual=matern", "data.path='x y.csv'"]
    assert {"torch", "pytorch-lightning", "asbc"} <= set(record["versions"])
    assert record["git_commit"] == git_commit()


def test_resuming_repeats_the_runs_overrides_and_its_drawn_seed(run):
    arguments = resume_arguments([f"ckpt_path='{run.last}'", "logger=wandb", "residual=gaussian"])
    assert arguments == [
        "data.path='x y.csv'",
        "seed=7",
        f"hydra.run.dir='{run.path}'",
        "logger=wandb",
        "residual=gaussian",
        f"ckpt_path='{run.last}'",
    ]


def test_arguments_without_a_checkpoint_stay(tmp_path):
    for arguments in ([], ["residual=matern", "-m"], ["ckpt_path=null"], ["ckpt_path="]):
        assert resume_arguments(arguments) == arguments


def test_last_means_the_folders_own_checkpoint(run, tmp_path):
    assert resume_arguments(["seed=2", "ckpt_path=last"]) == ["seed=2", "ckpt_path=last"]
    assert run.checkpoint("last") == str(run.last)
    assert RunFolder(tmp_path / "new").checkpoint("last") is None
    assert run.checkpoint("else.ckpt") == "else.ckpt" and run.checkpoint(None) is None


def test_a_checkpoint_that_cannot_be_resumed_is_refused(run, tmp_path):
    with pytest.raises(SystemExit, match="no such file"):
        resume_arguments([f"ckpt_path={tmp_path}/none.ckpt"])
    stray = tmp_path / "stray.ckpt"
    stray.touch()
    with pytest.raises(SystemExit, match="has no run.json"):
        resume_arguments([f"ckpt_path={stray}"])
    with pytest.raises(SystemExit, match="cannot be combined with --multirun"):
        resume_arguments(["-m", f"ckpt_path={run.last}"])


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a=b,c", "back\\slash", "{x}"])
def test_a_quoted_path_survives_hydras_grammar(name, tmp_path):
    parsed = OverridesParser.create().parse_override(f"hydra.run.dir={quoted(tmp_path / name)}")
    assert parsed.value() == str(tmp_path / name)


def test_later_overrides_replace_earlier_ones():
    assert merge_overrides(["+a=1", "b=2"], ["a=3"]) == ["b=2", "a=3"]


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
    code = (
        "import sys; from asbc.run import RunFolder\n"
        "with RunFolder(sys.argv[1]).claim(False): pass"
    )
    with RunFolder(tmp_path).claim(resuming=False):
        other = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True
        )
    assert "another process is writing to this run" in other.stderr
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == 0


def test_the_folder_is_shown_as_the_user_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder(tmp_path / "outputs" / "x").shown == "outputs/x"
    assert RunFolder("/elsewhere/x").shown == "/elsewhere/x"


def test_looking_at_the_arguments_imports_nothing_heavy():
    code = "import sys, asbc.training.folder; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
