"""Killed and resumed is the same as never killed."""

import os
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_on_call(owner: object, name: str, call: int, after: bool = False):
    """Make the `call`-th call of a method kill the process, before or after its work."""

    def prepare() -> None:
        original, calls = getattr(owner, name), 0

        def patched(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == call and not after:
                die()
            result = original(*args, **kwargs)
            if calls == call:
                die()
            return result

        setattr(owner, name, patched)

    return prepare


def half_a_checkpoint(call: int):
    """Kill the process in the middle of writing its `call`-th file."""

    def prepare() -> None:
        original, calls = torch.save, 0

        def patched(content, file):
            nonlocal calls
            calls += 1
            if calls == call:
                file.write(b"half a checkpoint")
                file.flush()
                die()
            original(content, file)

        torch.save = patched

    return prepare


def kill_points():
    from asbc.posterior.estimator import PosteriorEstimator
    from asbc.training import datamodule
    from asbc.training.callbacks import ResumeCheckpoint

    return {
        # 4 batches an epoch, 2 epochs a round, 3 rounds
        "in the middle of an epoch": kill_on_call(PosteriorEstimator, "training_step", 14),
        "in validation": kill_on_call(PosteriorEstimator, "validation_step", 3),
        "during acquisition": kill_on_call(datamodule, "simulate_plan", 4),
        "right after a checkpoint": kill_on_call(ResumeCheckpoint, "on_train_epoch_end", 4, True),
        "while writing a checkpoint": half_a_checkpoint(call=6),
        "in the last epoch": kill_on_call(PosteriorEstimator, "training_step", 22),
    }


DEFAULT = ("in the middle of an epoch", "during acquisition", "right after a checkpoint")
POINTS = [
    pytest.param(name, marks=[] if name in DEFAULT else [pytest.mark.slow])
    for name in kill_points()
]
FOLDER = "run folder"  # with a space: Hydra's grammar needs it quoted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / FOLDER


def flatten(value: object, place: str = "") -> dict[str, object]:
    """All leaves of a checkpoint by path, without timings and absolute paths."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        leaves: dict[str, object] = {}
        for name, part in items:
            leaves |= flatten(part, f"{place}/{name}")
        return leaves
    return {} if "seconds" in place else {place: value}


def assert_same_run(run: Path, reference: Path) -> None:
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt"):
        saved, expected = (
            flatten(torch.load(folder / name, weights_only=True)) for folder in (run, reference)
        )
        assert saved.keys() == expected.keys()
        for place, value in expected.items():
            if isinstance(value, torch.Tensor):
                # Ages that nobody knows are NaN.
                same = torch.isclose(saved[place], value, rtol=0, atol=0, equal_nan=True)
                assert saved[place].shape == value.shape and bool(same.all()), place
            else:
                assert saved[place] == value, place
    assert (run / "metrics.csv").read_bytes() == (reference / "metrics.csv").read_bytes()
    rounds, expected = (pd.read_csv(folder / "rounds.csv") for folder in (run, reference))
    timings = [name for name in expected if name.startswith("seconds")]
    pd.testing.assert_frame_equal(rounds.drop(columns=timings), expected.drop(columns=timings))


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_resumed_equals_uninterrupted(
    point, run_command, tiny, tmp_path, uninterrupted
):
    if not uninterrupted.exists():
        assert run_command("train", [*tiny, f"hydra.run.dir='{uninterrupted}'"]) == 0
    run, log = tmp_path / FOLDER, tmp_path / "log"
    arguments = [*tiny, f"hydra.run.dir='{run}'"]
    assert run_command("train", arguments, kill_points()[point], log) == -signal.SIGKILL
    checkpoint = run / "checkpoints" / "last.ckpt"
    torch.load(checkpoint, weights_only=True)  # whole
    assert run_command("train", [f"ckpt_path='{checkpoint}'"], log=log) == 0, log.read_text()
    assert_same_run(run, uninterrupted)


@pytest.mark.parametrize("history", ["none", "segments"])
def test_a_killed_stream_goes_on_as_if_nothing_had_happened(
    history, run_command, tiny_stream, tmp_path
):
    from asbc.posterior.estimator import PosteriorEstimator

    whole, run = tmp_path / "whole", tmp_path / "run"
    extra = ["encoder=actions", "flow=nsf", "robust=real", "acquisition.lambda_share=0.5"]
    arguments = [*tiny_stream, *extra, "transform=laplace", f"history={history}"]
    assert run_command("train", [*arguments, f"hydra.run.dir={whole}"]) == 0
    # 3 batches a chunk: in the middle of the third one
    late = kill_on_call(PosteriorEstimator, "training_step", 8)
    assert run_command("train", [*arguments, f"hydra.run.dir={run}"], late) == -signal.SIGKILL
    assert run_command("train", [f"ckpt_path={run}/checkpoints/last.ckpt"]) == 0
    assert_same_run(run, whole)


@pytest.mark.parametrize("transform", ["bounded", "laplace"])
def test_a_killed_targeted_run_goes_on_as_if_nothing_had_happened(
    transform, run_command, tiny, tmp_path
):
    from asbc.posterior.estimator import PosteriorEstimator

    whole, run = tmp_path / "whole", tmp_path / "run"
    sizes = ["acquisition=targeted", "acquisition.surrogate_pairs=64", "training.steps=20"]
    arguments = [*tiny, *sizes, "training.buffer_capacity=160", f"transform={transform}"]
    arguments.append(f"training.symmetry={'auto' if transform == 'bounded' else 'false'}")
    assert run_command("train", [*arguments, f"hydra.run.dir={whole}"]) == 0
    # 7 steps a round and 3 to 5 batches an epoch: in an epoch that the round cuts short
    late = kill_on_call(PosteriorEstimator, "training_step", 13)
    assert run_command("train", [*arguments, f"hydra.run.dir={run}"], late) == -signal.SIGKILL
    assert run_command("train", [f"ckpt_path={run}/checkpoints/last.ckpt"]) == 0
    assert pd.read_csv(whole / "rounds.csv")["known"].iloc[-1] > 0
    assert_same_run(run, whole)


# In the first check's steps, and in the last's; with a best check that counts, or does not.
@pytest.mark.parametrize(("call", "beyond_chance"), [(2, -99.0), (6, -99.0), (6, 99.0)])
def test_a_killed_stage_goes_on_as_if_nothing_had_happened(
    call, beyond_chance, run_command, tiny_stream, tmp_path, monkeypatch
):
    from asbc.predictive.stage import PredictiveStage
    from asbc.run import Run

    monkeypatch.setattr("asbc.predictive.stage.BEYOND_CHANCE", beyond_chance)  # forks have it
    whole, run, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    stage = [
        *(
            "objective=predictive",
            "objective.horizon=12",
            "objective.steps=8",
            "objective.windows=4",
        ),
        *("objective.draws=3", "objective.check_every=3", "objective.validation_draws=8"),
        *("residual=matern", "transform=bounded", "objective.max_windows=2"),
    ]
    arguments = [*tiny_stream, *stage, "encoder.dropout=0.1", "flow.dropout=0.1"]
    assert run_command("train", [*arguments, f"hydra.run.dir={whole}"], log=log) == 0, (
        log.read_text()
    )
    late = kill_on_call(PredictiveStage, "loss", call)
    assert run_command("train", [*arguments, f"hydra.run.dir={run}"], late) == -signal.SIGKILL
    assert run_command("train", [f"ckpt_path={run}/checkpoints/last.ckpt"], log=log) == 0, (
        log.read_text()
    )
    assert_same_run(run, whole)
    assert "trained to predict: score of the validation drivers" in log.read_text()
    # 4 chunks of the stream, the score of its end, and 3 + 3 + 2 steps
    rounds = pd.read_csv(whole / "rounds.csv")
    assert rounds["round"].tolist() == list(range(8))
    scores = rounds["predictive_score"]
    assert scores[:4].isna().all() and scores[4] == pytest.approx(1.0)
    assert rounds["steps"].tolist()[4:] == [0, 3, 6, 8]
    opened = Run.open(whole)
    assert opened.objective == "predictive"
    best = int(rounds["round"][scores.idxmin()])
    assert opened.selected_round == (best if beyond_chance < 0 else 4)


def test_resuming_a_finished_run_changes_nothing(run_command, tiny, tmp_path):
    run = tmp_path / "run"
    assert run_command("train", [*tiny, f"hydra.run.dir={run}"]) == 0
    names = ["checkpoints/last.ckpt", "checkpoints/best.ckpt", "metrics.csv", "rounds.csv"]
    names += ["config.yaml", "run.json"]
    before = {name: (run / name).read_bytes() for name in names}
    log = tmp_path / "log"
    assert run_command("train", [f"ckpt_path={run}/checkpoints/last.ckpt"], log=log) == 0
    assert {name: (run / name).read_bytes() for name in names} == before
    assert f"next: asbc evaluate run={run.name}" in log.read_text()


def test_killed_before_the_first_checkpoint_starts_again(run_command, tiny, tmp_path):
    from asbc.posterior.estimator import PosteriorEstimator

    run = tmp_path / "run"
    arguments = [*tiny, f"hydra.run.dir={run}", "training.rounds=0"]
    early = kill_on_call(PosteriorEstimator, "training_step", 2)
    assert run_command("train", arguments, early) == -signal.SIGKILL
    assert not (run / "checkpoints" / "last.ckpt").exists()
    assert run_command("train", arguments) == 0
    assert len(pd.read_csv(run / "metrics.csv")) == 2
