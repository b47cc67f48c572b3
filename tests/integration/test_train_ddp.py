"""Two processes train what one does at the same batch size (gloo, on the CPU)."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from asbc.arguments import resume_arguments
from asbc.errors import InputError
from asbc.run import Run

TWO = ("trainer.devices=2", "trainer.strategy=ddp")
# Dropout masks of two processes are others than those of one. Sizes leave a last batch of one row,
# of which one process has no share.
EQUAL = (
    *("encoder.dropout=0", "flow.dropout=0", "training.buffer_capacity=97"),
    *("training.warmup_simulations=97", "training.holdout_size=31"),
)


def state(folder: Path) -> dict:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def loop_of(folder: Path) -> dict:
    return next(v for v in state(folder)["callbacks"].values() if "round_weights" in v)


def same_training(one: Path, other: Path) -> None:
    """Assert that weights, losses, rounds and files agree."""
    for name in ("round_weights", "best_weights"):
        ours, theirs = loop_of(one)[name], loop_of(other)[name]
        for key, value in ours.items():
            assert torch.allclose(value, theirs[key], rtol=0, atol=1e-5), (name, key)
    tables = [pd.read_csv(folder / "metrics.csv") for folder in (one, other)]
    pd.testing.assert_frame_equal(*tables, rtol=1e-5)
    columns = ["round", "loss", "epochs", "steps", "best_epoch", "simulations", "kept"]
    rounds = [pd.read_csv(folder / "rounds.csv")[columns] for folder in (one, other)]
    pd.testing.assert_frame_equal(*rounds, rtol=1e-5)
    names = [sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file()) for f in (one, other)]
    assert names[0] == names[1]


@pytest.fixture
def small(tiny) -> list[str]:
    return [*tiny, *EQUAL]


def test_begun_on_two_devices_and_resumed_on_one_is_the_same_training(
    train_here, small, tmp_path, monkeypatch
):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    one, mixed = tmp_path / "one", tmp_path / "mixed"
    train_here(small, one)
    train_here([*small, *TWO, "trainer.max_epochs=5"], mixed)  # one epoch into the last round
    assert loop_of(mixed)["round"] == 2 and not loop_of(mixed)["finished"]
    assert "LOCAL_RANK" not in os.environ and not torch.distributed.is_initialized()
    train_here([*small, "ckpt_path=last"], mixed)
    same_training(one, mixed)


@pytest.mark.slow
@pytest.mark.parametrize("acquisition", ["stream", "targeted", "joint"])
def test_begun_on_one_device_and_resumed_on_two_is_the_same_training(
    train_here, small, tiny_stream, tmp_path, acquisition
):
    given = [*tiny_stream, *EQUAL[:2]] if acquisition == "stream" else small
    given = [*given, f"acquisition={acquisition}"]
    one, mixed = tmp_path / "one", tmp_path / "mixed"
    train_here(given, one)
    train_here([*given, "trainer.max_epochs=2"], mixed)
    assert not loop_of(mixed)["finished"]
    train_here([*given, *TWO, "ckpt_path=last"], mixed)
    same_training(one, mixed)


@pytest.mark.slow
def test_a_time_budget_is_the_same_for_all_processes(train_here, tiny_stream, tmp_path):
    train_here([*tiny_stream, *TWO, "loop.minutes=0.001"], tmp_path / "run")
    assert loop_of(tmp_path / "run")["finished"]


@pytest.mark.slow
def test_the_command_and_a_process_that_is_killed(run_command, small, tmp_path):
    """As users type it, with a seed that is drawn; a lost process is one line, and is resumed."""

    def prepare() -> None:
        from asbc.training.devices import ConfigLauncher
        from asbc.training.loop import RoundCallback

        started = []
        call, acquire = ConfigLauncher._call_children_scripts, RoundCallback._begin_round

        def watched(self):
            call(self)
            started.extend(self.procs)

        def begin(self, *arguments):
            acquire(self, *arguments)
            os.kill(started[0].pid, signal.SIGKILL)

        ConfigLauncher._call_children_scripts = watched
        RoundCallback._begin_round = begin

    log, folder = tmp_path / "log", tmp_path / "run"
    given = [*small, "trainer.devices=2", "+trainer.strategy=ddp", "seed=null"]
    place = f"hydra.run.dir={folder}"
    assert run_command("train", [*given, place], prepare, log) == 2, log.read_text()
    assert "process 1 of the training ended with code -9" in log.read_text().splitlines()[-1]
    assert run_command("train", [f"ckpt_path={folder}/checkpoints/last.ckpt"], log=log) == 0
    assert loop_of(folder)["finished"] and not (tmp_path / "outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the first process", "all processes"])
def test_a_preempted_training_ends_at_once_and_goes_on_as_if_nothing_had_happened(
    whom, run_command, small, tmp_path
):
    """SIGTERM, as Slurm sends it when it wants the machines, in the middle of an epoch."""
    whole, run, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    arguments = [*small, *TWO]
    assert run_command("train", [*arguments, f"hydra.run.dir={whole}"], log=log) == 0

    def prepare() -> None:
        from asbc.posterior.estimator import PosteriorEstimator
        from asbc.training.devices import ConfigLauncher

        call, step = ConfigLauncher._call_children_scripts, PosteriorEstimator.training_step
        calls = 0

        def watched(self):
            call(self)
            (tmp_path / "others").write_text(" ".join(str(p.pid) for p in self.procs))

        def terminated(self, *given):
            nonlocal calls
            calls += 1
            if calls == 14:  # 4 batches an epoch, 2 epochs a round
                others = map(int, (tmp_path / "others").read_text().split())
                for process in (*others, os.getpid()) if "all" in whom else (os.getpid(),):
                    os.kill(process, signal.SIGTERM)
            return step(self, *given)

        ConfigLauncher._call_children_scripts = watched
        PosteriorEstimator.training_step = terminated
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a test's own process may have another

    place = f"hydra.run.dir={run}"
    assert run_command("train", [*arguments, place], prepare, log) == 128 + signal.SIGTERM
    assert loop_of(run)["round"] == 1 and not loop_of(run)["finished"]
    for process in (tmp_path / "others").read_text().split():
        assert not Path("/proc", process).exists()
    # As the queued job does it: the same command again.
    assert run_command("train", [*arguments, place, "ckpt_path=last"], log=log) == 0
    weights, expected = (loop_of(folder)["best_weights"] for folder in (run, whole))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert (run / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_sigterm_is_no_success_and_is_left_to_who_handles_it_already(run_command, tiny, tmp_path):
    from asbc.posterior.estimator import PosteriorEstimator

    seen = tmp_path / "seen"

    def prepare(handler: Any = signal.SIG_DFL) -> None:
        step = PosteriorEstimator.training_step

        def terminated(self, *given):
            os.kill(os.getpid(), signal.SIGTERM)
            return step(self, *given)

        PosteriorEstimator.training_step = terminated
        signal.signal(signal.SIGTERM, handler)  # a test's own process may have one

    run = f"hydra.run.dir={tmp_path}/run"
    assert run_command("train", [*tiny, run], prepare) == 128 + signal.SIGTERM
    other = f"hydra.run.dir={tmp_path}/other"
    keep = partial(prepare, lambda *_: seen.touch())
    assert run_command("train", [*tiny, other], keep) == 0 and seen.exists()


def test_strategies_that_cannot_work_are_refused(train_here, small, tmp_path):
    with pytest.raises(InputError, match="ddp_spawn: several devices need trainer.strategy=ddp"):
        train_here([*small, "trainer.devices=2", "trainer.strategy=ddp_spawn"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_processes_started_elsewhere_need_a_seed(train_here, small, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(InputError, match="seed=null: every process would draw its own"):
        train_here([*small, *TWO, "seed=null"], tmp_path / "run")


def test_the_number_of_devices_makes_no_other_method(trained, tmp_path):
    run = Run(trained())
    run.__dict__["record"] = run.record | {"overrides": [*TWO, "trainer.gradient_clip_val=1"]}
    assert run.variant == ("trainer.gradient_clip_val=1",)


def test_a_strategy_may_be_added_or_set():
    assert resume_arguments(["+trainer.strategy=ddp", "+a=1"]) == ["trainer.strategy=ddp", "+a=1"]
