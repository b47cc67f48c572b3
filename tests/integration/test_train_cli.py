"""`asbc train` as a user runs it."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from asbc.errors import InputError


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]


def same_results(one: Path, other: Path) -> bool:
    equal = all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())
    return equal and (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


def test_a_run_leaves_everything_needed_to_understand_it(run_command, tiny, tmp_path):
    log = tmp_path / "log"
    assert run_command("train", tiny, log=log) == 0, log.read_text()
    [run] = (tmp_path / "outputs").glob("*/*")
    *_, shown, best, following = log.read_text().splitlines()
    assert shown == f"run folder: {run.relative_to(tmp_path)}"
    assert following == f"next: asbc evaluate run={run.relative_to(tmp_path)}"
    rounds = pd.read_csv(run / "rounds.csv")
    chosen = 0  # a round is better only by more than training.min_delta_rounds
    for index, loss in enumerate(rounds["loss"]):
        chosen = index if loss < rounds["loss"][chosen] - 1e-3 else chosen
    assert best == f"best round {chosen}, hold-out loss {rounds['loss'][chosen]:.4f}"
    config = OmegaConf.load(run / "config.yaml")
    assert config.training.rounds == 2 and config.acquisition.candidates == 150
    record = json.loads((run / "run.json").read_text())
    assert record["overrides"] == tiny and record["versions"]["torch"] == torch.__version__
    files = ["metrics.csv", "data_summary.md", "checkpoints/last.ckpt", "checkpoints/best.ckpt"]
    files += ["leaders.pt", "novelty.pt"]
    assert all((run / name).is_file() for name in files)
    assert not list(run.rglob("*.partial"))


def test_the_seed_decides_the_results_and_nothing_else_does(tiny, train_here, tmp_path):
    runs = {
        "first": [],
        "again": [],
        "logged": ["logger=tensorboard", "callbacks=default"],
        "other seed": ["seed=1"],
    }
    for name, overrides in runs.items():
        train_here([*tiny, *overrides], tmp_path / name)
    assert same_results(tmp_path / "first", tmp_path / "again")
    assert same_results(tmp_path / "first", tmp_path / "logged")
    assert not same_results(tmp_path / "first", tmp_path / "other seed")
    assert list((tmp_path / "logged" / "tensorboard").glob("events*"))


@pytest.mark.slow
def test_the_wandb_logger_does_not_change_the_results(tiny, train_here, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    train_here(tiny, tmp_path / "plain")
    train_here([*tiny, "logger=many"], tmp_path / "logged")
    assert same_results(tmp_path / "plain", tmp_path / "logged")
    assert list((tmp_path / "logged" / "wandb").glob("offline-run-*/run-*.wandb"))


def test_a_run_is_never_overwritten(tiny, train_here, tmp_path):
    train_here([*tiny, "training.rounds=0"], tmp_path)
    before = (tmp_path / "metrics.csv").read_bytes(), weights(tmp_path)
    with pytest.raises(InputError, match="already holds a run; continue it with ckpt_path="):
        train_here([*tiny, "seed=1"], tmp_path)
    assert (tmp_path / "metrics.csv").read_bytes() == before[0]
    assert all(torch.equal(v, weights(tmp_path)[n]) for n, v in before[1].items())


def test_jobs_of_a_multirun_have_folders_named_by_their_overrides(run_command, tiny, tmp_path):
    log = tmp_path / "log"
    # Of the many overrides of a tiny run only the swept ones should name a folder.
    fixed = ",".join(text.partition("=")[0] for text in tiny)
    arguments = ["-m", *tiny, "training.rounds=0", "seed=3,4", "hydra.sweep.dir=sweep"]
    arguments.append(f"hydra.job.config.override_dirname.exclude_keys=[{fixed},training.rounds]")
    assert run_command("train", arguments, log=log) == 0, log.read_text()
    seeds = [
        json.loads((tmp_path / f"sweep/seed={s}/run.json").read_text())["seed"] for s in (3, 4)
    ]
    assert seeds == [3, 4]


def test_a_seed_of_null_is_drawn_and_recorded(tiny, train_here, tmp_path):
    train_here([*tiny, "training.rounds=0", "seed=null"], tmp_path)
    drawn = json.loads((tmp_path / "run.json").read_text())["seed"]
    assert OmegaConf.load(tmp_path / "config.yaml").seed == drawn
    assert isinstance(drawn, int)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.pairs_per_round=-5", "training.pairs_per_round=-5"),
        ("acquisition.lambda_schedule=[1.0]", "acquisition.lambda_schedule has 1 entries"),
        ("data.context_steps=41", "data.context_steps=41"),
    ],
)
def test_bad_values_are_refused_before_any_work(override, message, tiny, train_here, tmp_path):
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        train_here([*tiny, override], tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("acquisition=greedy", "acquisition=greedy: no such choice; expected one of joint, "),
        ("residual=mattern", "did you mean matern? expected one of gaussian, matern"),
        ("training.round=3", "training.round: no such setting; did you mean training.rounds?"),
        ("zzz=3", "zzz: no such setting; see asbc train --help"),
        ("data=pairs", "data.path: no value given; add data.path=VALUE"),
        ("seed=[1", "seed=[1: not an override Hydra can read"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(override, message, run_command, tmp_path):
    log = tmp_path / "log"
    assert run_command("train", [override], log=log) == 2
    [line] = log.read_text().splitlines()
    assert line.startswith("error: ") and message in line


def test_a_traceback_is_for_bugs_and_for_those_who_ask(run_command, tiny, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("ASBC_DEBUG", "1")
    assert run_command("train", [*tiny, "training.rounds=-1"], log=log) == 1
    assert "Traceback" in log.read_text() and "training.rounds=-1" in log.read_text()
    monkeypatch.delenv("ASBC_DEBUG")
    bug, log = tmp_path / "bug", tmp_path / "other log"
    monkeypatch.setattr("asbc.training.train.design_space", lambda *_: 1 / 0)
    assert run_command("train", [*tiny, f"hydra.run.dir={bug}"], log=log) == 1
    assert "ZeroDivisionError" in log.read_text() and "Traceback" in log.read_text()


@pytest.mark.parametrize("debug", ["fast", "overfit", "profiler", "anomaly"])
def test_debug_runs(debug, tiny, train_here, tmp_path):
    one_batch = ["training.warmup_simulations=32", "training.max_epochs=12"]
    small = one_batch if debug == "overfit" else []
    train_here([*tiny, f"debug={debug}", *small], tmp_path)
    epochs = pd.read_csv(tmp_path / "metrics.csv")
    if debug == "fast":
        assert len(epochs) == 1 and not (tmp_path / "checkpoints").exists()
    if debug == "overfit":
        assert epochs["train/loss"].iloc[-1] < epochs["train/loss"].iloc[0]
        assert epochs["step"].tolist() == list(range(1, 13))  # one batch an epoch
    if debug == "profiler":
        assert "run_training_epoch" in (tmp_path / "fit-profile.txt").read_text()


def test_importance_correction_changes_what_is_learned(tiny_stream, train_here, tmp_path):
    shrunk = [*tiny_stream, "acquisition.lambda_share=0.5"]
    for name in ("none", "importance"):
        train_here([*shrunk, f"acquisition.correction={name}"], tmp_path / name)
    tables = [pd.read_csv(tmp_path / name / "metrics.csv") for name in ("none", "importance")]
    first = [table[table["round"] == 0] for table in tables]
    pd.testing.assert_frame_equal(*first)  # the warm-up needs no correction
    assert not tables[0].equals(tables[1])
    rounds = pd.read_csv(tmp_path / "importance" / "rounds.csv")
    assert (rounds["effective_sample_size"][1:] < 48).all()
