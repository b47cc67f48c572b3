"""A study that is interrupted, fails in parts or is called again."""

import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from asbc.commands.study import main
from asbc.config import compose
from asbc.engine import LocalEngine
from asbc.errors import InputError
from asbc.posterior.estimator import PosteriorEstimator
from asbc.study import PlannedRun, Step, Study, is_done, run_study

ALONE = LocalEngine(workers=1)


def make_runs(folder: Path, count: int = 3, extra: str = "") -> list[PlannedRun]:
    steps = (Step("train", ("a=1", extra)), Step("evaluate", ()))
    return [PlannedRun(folder / f"run{i}", steps) for i in range(count)]


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(tmp_path):
    calls: list[str] = []
    broken = {"run1 evaluate"}

    def execute(step: Step, output: Path) -> int:
        calls.append(f"{output.parent.name} {step.command}")
        return 1 if calls[-1] in broken else 0

    runs = make_runs(tmp_path)
    [failure] = run_study(runs, ALONE, execute)
    assert failure.log == tmp_path / "run1" / "evaluate.out"
    assert len(calls) == 6 and is_done(runs[2], runs[2].steps[1])
    calls.clear()
    broken.clear()
    assert run_study(runs, ALONE, execute) == []
    assert calls == ["run1 evaluate"]
    calls.clear()
    assert run_study(runs, ALONE, execute) == [] and calls == []


def test_a_failed_step_ends_its_run_only(tmp_path):
    calls: list[str] = []

    def execute(step: Step, output: Path) -> int:
        calls.append(f"{output.parent.name} {step.command}")
        return int(calls[-1] == "run0 train")

    assert len(run_study(make_runs(tmp_path, 2), ALONE, execute)) == 1
    assert calls == ["run0 train", "run1 train", "run1 evaluate"]


def test_two_studies_of_a_folder_share_the_work(tmp_path):
    calls: list[str] = []

    def execute(step: Step, output: Path) -> int:
        calls.append(f"{output.parent.name} {step.command}")
        if len(calls) == 1:  # another one starts in the middle of the first run, and does the rest
            run_study(make_runs(tmp_path), ALONE, execute)
        return 0

    assert run_study(make_runs(tmp_path), ALONE, execute) == []
    rest = [f"run{i} {step}" for i in (1, 2) for step in ("train", "evaluate")]
    assert calls == ["run0 train", *rest, "run0 evaluate"]


def wait_for_the_other(step: Step, output: Path) -> int:
    """Succeeds only when two steps run side by side."""
    (output.parent.parent / f"{step.command} of {output.parent.name}").touch()
    limit = time.monotonic() + 60
    while len(list(output.parent.parent.glob(f"{step.command} of *"))) < 2:
        if time.monotonic() > limit:
            return 1
        time.sleep(0.05)
    return 0


def test_as_many_at_a_time_as_asked_for(tmp_path):
    runs = make_runs(tmp_path, 2)
    assert run_study(runs, LocalEngine(workers=2, time_limit=None), wait_for_the_other) == []
    assert all(is_done(run, step) for run in runs for step in run.steps)


def die_once(step: Step, output: Path) -> int:
    """The first worker that evaluates run0 is killed."""
    mark = output.parent / f"{step.command}.killed"
    if step.command == "evaluate" and output.parent.name == "run0" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with (output.parent / "steps").open("a") as file:
        file.write(f"{step.command} ")
    return 0


def test_a_run_whose_worker_is_killed_goes_on_in_another(tmp_path):
    runs = make_runs(tmp_path, 2)
    assert run_study(runs, LocalEngine(workers=2), die_once) == []
    assert (tmp_path / "run0" / "evaluate.killed").exists()
    for run in runs:
        assert (run.folder / "steps").read_text() == "train evaluate "


def test_other_settings_in_the_same_folder_are_refused(tmp_path):
    run_study(make_runs(tmp_path), ALONE, lambda *_: 0)
    with pytest.raises(InputError, match="run0 holds a run with other arguments.*a=1"):
        run_study(make_runs(tmp_path, extra="b=2"), ALONE, lambda *_: 0)


def test_the_command_makes_the_runs_and_the_report(tmp_path, monkeypatch):
    calls: list[tuple[str, str]] = []
    broken = {"train"}

    def execute(step: Step, output: Path) -> int:
        calls.append((step.command, str(output.relative_to(tmp_path))))
        return int(step.command in broken)

    monkeypatch.setattr("asbc.study.execute", execute)
    arguments = ["study=paper", "only=[matern,b_idm]", "seeds=[3]", "engine.workers=1"]
    cfg = compose("study", [*arguments, f"output={tmp_path}"])
    with pytest.raises(InputError, match="study paper: 1 of its commands failed") as error:
        main(cfg)
    assert str(error.value).endswith(f"train: see {tmp_path}/matern/seed3/train.out")
    baseline, report = ("baseline", "b_idm/seed3/baseline.out"), ("report", "report.out")
    assert calls == [("train", "matern/seed3/train.out"), baseline, report]
    calls.clear()
    broken.clear()
    main(cfg)
    assert calls == [(name, f"matern/seed3/{name}.out") for name in ("train", "evaluate")] + [
        report
    ]


def test_an_interrupted_study_ends_with_the_results_of_an_undisturbed_one(
    run_command, tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", lambda *_: [])
    fast = ["evaluation=fast", "evaluation.horizon=20", "evaluation.samples=20"]
    settings = {
        "shared": {
            "train": [*tiny, "training.rounds=1"],
            "evaluate": [*fast, "evaluation.simulated_drivers=0"],
        },
        "variants": {"gaussian": []},
    }

    def die_in_the_second_round() -> None:
        original, calls = PosteriorEstimator.training_step, 0

        def step(self, *args):
            nonlocal calls
            calls += 1
            if calls == 8:  # 3 batches an epoch, 2 epochs a round
                raise SystemExit(9)
            return original(self, *args)

        PosteriorEstimator.training_step = step

    def execute(step: Step, output: Path, prepare=None) -> int:
        return run_command(step.command, step.arguments, prepare, output)

    whole, broken = (
        Study(name=name, output=tmp_path / name, **settings).runs() for name in ("whole", "broken")
    )
    assert run_study(whole, ALONE, execute) == []
    [failure] = run_study(broken, ALONE, lambda *a: execute(*a, die_in_the_second_round))
    assert failure.step.command == "train"
    assert len(pd.read_csv(broken[0].folder / "metrics.csv")) in (2, 3)
    assert run_study(broken, ALONE, execute) == []
    for name in ("metrics.csv", "evaluation/windows.parquet"):
        expected, actual = (runs[0].folder / name for runs in (whole, broken))
        assert actual.read_bytes() == expected.read_bytes()
