"""`asbc evaluate` and `asbc report` as users run them, on a tiny trained run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from asbc.reporting.figures import style
from asbc.reporting.run_report import all_pictures

FAST = [
    *("evaluation=fast", "evaluation.horizon=20", "evaluation.samples=20"),
    *("evaluation.simulated_drivers=30", "evaluation.posterior_draws=19"),
]
KEYS = [
    *(f"{score}_{x}" for score in ("rmse", "es", "crps", "coverage95") for x in "sva"),
    *("collision_rate", "n_windows", "n_pairs"),
]


@pytest.fixture(scope="module")
def trained(trained, tmp_path_factory) -> Path:
    """A trained run of this module's own, for results go into its folder."""
    return Path(shutil.copytree(trained(), tmp_path_factory.mktemp("evaluated") / "run"))


@pytest.fixture
def evaluate(run_command, tmp_path, monkeypatch) -> Callable[..., tuple[int, str]]:
    """Evaluate without figures; returns its exit code and everything it printed."""
    # Drawing is slow and tested elsewhere.
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", lambda *_: [])

    def run(*arguments: str) -> tuple[int, str]:
        log = tmp_path / "evaluate.log"
        log.unlink(missing_ok=True)
        code = run_command("evaluate", [*FAST, *arguments], log=log)
        return code, log.read_text()

    return run


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    """A copy of the run to damage."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


def read(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def test_a_run_is_scored_on_its_own_test_split(trained, evaluate, monkeypatch) -> None:
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", all_pictures)
    monkeypatch.setattr("asbc.reporting.figures.case_study.SHOWN", ("v0", "T"))  # fewer panels
    monkeypatch.setitem(style.SETTINGS, "pdf.fonttype", 3)  # faster
    code, text = evaluate(f"run={trained}")
    assert code == 0, text
    folder = trained / "evaluation"
    metrics = read(folder)
    for protocol in ("all_windows", "after_context"):
        assert all(isinstance(metrics[protocol][key], (int, float)) for key in KEYS)
        assert metrics[protocol]["n_pairs"] == 7  # 30% of 24 followers
    windows = pd.read_parquet(folder / "windows.parquet")
    assert windows["after_context"].sum() == metrics["after_context"]["n_windows"]
    assert (windows.loc[windows["after_context"], "start"] >= 20).all()
    assert metrics["run"]["method"] == "ASBC-Gaussian" and not metrics["run"]["other_data"]
    assert metrics["run"]["selected_round"] in (0, 1, 2)
    for ending in ("png", "pdf"):
        assert len(list((folder / "figures").glob(f"*.{ending}"))) == 12
    report = (folder / "report.html").read_text()
    assert "Evaluated on other data" not in report and "encoder.model_dim" in report
    assert text.rstrip().endswith(f"report: {folder / 'report.html'}")


def test_evaluating_twice_gives_the_same_numbers(trained, evaluate, tmp_path) -> None:
    for name in ("first", "second"):
        code, text = evaluate(f"run={trained}", f"output={tmp_path / name}")
        assert code == 0, text
    assert read(tmp_path / "first") == read(tmp_path / "second")


@pytest.mark.parametrize("group", [("data=pairs", "data.min_duration=8"), ()])
def test_other_data_by_override_are_named_in_the_report(
    trained, evaluate, tiny_pairs, tmp_path, group
) -> None:
    other = tmp_path / "other file.csv"
    table = pd.read_csv(tiny_pairs)
    table[table["pair_id"] < 3].assign(gap=lambda t: t["gap"] + 5).to_csv(other, index=False)
    out = tmp_path / "out"
    code, text = evaluate(
        *(f"run={trained}", *group, f"data.path='{other}'", "evaluation.split=all"),
        f"output={out}",
    )
    assert code == 0, text
    metrics = read(out)
    assert metrics["run"]["other_data"] and metrics["all_windows"]["n_pairs"] == 3
    assert metrics["data"]["context_steps"] == 20  # the run's, though the group's default is 75
    report = (out / "report.html").read_text()
    assert "Evaluated on other data than it was trained on" in report
    assert "other file.csv" in report and "note: Evaluated on other data" in text


def test_training_pairs_are_called_so(trained, evaluate, tmp_path) -> None:
    code, text = evaluate(f"run={trained}", "evaluation.split=all", f"output={tmp_path / 'o'}")
    assert code == 0 and "include the training split" in text


def test_a_run_works_where_its_training_data_are_not(
    copied, evaluate, tiny_pairs, tmp_path
) -> None:
    """As on a colleague's machine: the leaders of the checks come with the run."""
    code, text = evaluate(f"run={copied}", f"output={tmp_path / 'here'}")
    assert code == 0, text
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace(str(tiny_pairs), "/gone.csv"))
    moved = tmp_path / "moved.csv"
    shutil.copy(tiny_pairs, moved)
    code, text = evaluate(f"run={copied}", f"data.path={moved}", f"output={tmp_path / 'there'}")
    assert code == 0, text
    here, there = read(tmp_path / "here"), read(tmp_path / "there")
    for part in ("all_windows", "after_context", "simulated_drivers", "novelty", "posterior"):
        assert here[part] == there[part], part
    code, text = evaluate(f"run={copied}")
    assert code == 2 and "error: pairs: /gone.csv: no such file" in text


def test_contexts_longer_than_the_runs_leaders_are_said(trained, evaluate, tmp_path) -> None:
    code, text = evaluate(f"run={trained}", "data.context_steps=30", f"output={tmp_path / 'o'}")
    assert code == 0, text
    assert "longer than the leaders kept with the run" in text
    assert "Contexts of 30 samples; the model was trained on contexts of 20" in text


def test_a_run_that_names_foreign_code_is_refused(copied, evaluate, monkeypatch) -> None:
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(
        config.replace("asbc.data.pairs_file.PairsFile", "os.system")
    )
    code, text = evaluate(f"run={copied}")
    assert code == 2 and "its config.yaml names os.system, which is not part of asbc" in text


def test_a_run_without_a_finished_round_says_so(copied, evaluate) -> None:
    (copied / "checkpoints" / "best.ckpt").unlink()
    code, text = evaluate(f"run={copied}")
    assert code != 0 and "no checkpoints/best.ckpt" in text and "ckpt_path=" in text


def test_a_run_of_another_version_is_refused(copied, evaluate) -> None:
    record = json.loads((copied / "run.json").read_text())
    record["versions"]["asbc"] = "0.0.7"
    (copied / "run.json").write_text(json.dumps(record))
    code, text = evaluate(f"run={copied}")
    assert code != 0 and "trained with asbc 0.0.7" in text and "train again" in text


def test_weights_that_do_not_fit_are_refused(copied, evaluate) -> None:
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace("model_dim: 8", "model_dim: 16"))
    code, text = evaluate(f"run={copied}")
    assert code != 0 and "weights do not fit" in text
    (copied / "checkpoints" / "best.ckpt").write_bytes(b"not a checkpoint")
    code, text = evaluate(f"run={copied}")
    assert code == 2 and "error: " in text and "best.ckpt: not a file of weights" in text


def test_a_folder_that_is_no_run_is_refused(evaluate, tmp_path) -> None:
    code, text = evaluate(f"run={tmp_path}")
    assert code != 0 and "not a run folder" in text
    code, text = evaluate(f"run={tmp_path / 'nowhere'}")
    assert code != 0 and "no such folder" in text
    code, text = evaluate()
    assert code == 2 and text == "error: run: no value given; add run=VALUE\n"


def test_data_that_cannot_be_used_are_refused(trained, evaluate, tiny_pairs, tmp_path) -> None:
    output = f"output={tmp_path / 'out'}"
    code, text = evaluate(f"run={trained}", "data.context_steps=62", "data.min_duration=1", output)
    assert code != 0 and "data.context_steps=62 is longer than pair" in text
    few = tmp_path / "few.csv"
    table = pd.read_csv(tiny_pairs)
    table[table["pair_id"] < 1].to_csv(few, index=False)
    code, text = evaluate(f"run={trained}", f"data.path={few}", output)
    assert code != 0 and "too few for data.split" in text
    code, text = evaluate(f"run={trained}", "data.dt=0.4", output)
    assert code != 0 and "set data.dt=0.2" in text


def test_report_over_the_run(trained, evaluate, run_command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("asbc.reporting.study_report._figures", lambda *_: [])
    code, text = evaluate(f"run={trained}")
    assert code == 0, text
    log = tmp_path / "report.log"
    arguments = [f"runs={trained.parent}/*", f"output={tmp_path / 'report'}"]
    assert run_command("report", arguments, log=log) == 0, log.read_text()
    table = pd.read_csv(tmp_path / "report" / "table1.csv")
    expected = read(trained / "evaluation")["all_windows"]
    assert table["rmse_s_mean"].item() == pytest.approx(expected["rmse_s"])
    assert "ASBC-Gaussian" in log.read_text()
    assert run_command("report", ["runs=/nowhere/*"], log=log) != 0
    assert "nothing matches" in log.read_text()
