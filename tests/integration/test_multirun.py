"""Sweeps through every launcher that runs on one machine: same jobs, same results."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOBS = ["training.rounds=0", "hydra.sweep.subdir=seed${seed}"]
TWO = "seed=0,1"


def results(sweep: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sweep.glob("*/metrics.csv")}


@pytest.fixture(scope="module")
def basic_results() -> dict[str, bytes]:
    """Filled by the first test that needs it."""
    return {}


@pytest.fixture
def basic(basic_results, run_command, tiny, tmp_path) -> dict[str, bytes]:
    """What the two jobs give one after the other, in one process."""
    if not basic_results:
        sweep = tmp_path / "basic"
        assert run_command("train", ["-m", *tiny, *JOBS, TWO, f"hydra.sweep.dir={sweep}"]) == 0
        basic_results |= results(sweep)
    return basic_results


@pytest.fixture
def sweep_with(tiny, tmp_path) -> Callable[..., tuple[int, str]]:
    """Run the sweep as a user does, in a fresh process; returns exit code and output."""

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(ROOT / "train.py"), "-m", *tiny, *JOBS, TWO, *arguments]
        done = subprocess.run(
            [*command, f"hydra.sweep.dir={tmp_path / 'sweep'}"],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_basic_launcher_runs_each_job_in_its_own_folder(basic):
    assert sorted(basic) == ["seed0", "seed1"]
    assert basic["seed0"] != basic["seed1"]


@pytest.mark.parametrize(
    "launcher",
    [
        ("hydra/launcher=parallel", "hydra.launcher.n_jobs=2"),
        ("hydra/launcher=slurm_local", "hydra.sweeper.max_batch_size=2"),
    ],
    ids=["joblib", "submitit"],
)
def test_parallel_launchers_give_the_same_results(launcher, sweep_with, basic, tmp_path):
    code, text = sweep_with(*launcher)
    assert code == 0, text
    assert results(tmp_path / "sweep") == basic


def test_an_interrupted_sweep_goes_on_where_it_was(run_command, tiny, tmp_path):
    sweep = tmp_path / "sweep"
    arguments = ["-m", *tiny, *JOBS, f"hydra.sweep.dir={sweep}", "ckpt_path=last"]
    assert run_command("train", [*arguments, "seed=0"]) == 0
    before = (sweep / "seed0" / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    log = tmp_path / "log"
    assert run_command("train", [*arguments, TWO], log=log) == 0, log.read_text()
    assert sorted(results(sweep)) == ["seed0", "seed1"]
    assert (sweep / "seed0" / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before


def test_jobs_without_a_folder_of_their_own_are_refused(run_command, tiny, tmp_path):
    sweep, log = tmp_path / "sweep", tmp_path / "log"
    arguments = ["-m", *tiny, TWO, "training.rounds=0", "hydra.sweep.subdir=same"]
    assert run_command("train", [*arguments, f"hydra.sweep.dir={sweep}"], log=log) != 0
    assert "already holds a run" in log.read_text()
    assert "seed: 0" in (sweep / "same" / "config.yaml").read_text()
