"""`asbc calibrate` as users run it, on tiny trained runs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import arviz as az
import pandas as pd
import pytest

# Loaded here once: every command below is a fork of this process.
import asbc.calibration.export.merge
import asbc.population.pictures  # noqa: F401
from asbc.calibration import calibrate as pipeline
from asbc.calibration.export import parts

FILES = ("draws.parquet", "drivers.csv", "summary.csv", "posterior.nc")
FAST = [
    *("calibration.samples=40", "calibration.chunk=5"),
    *("sumo.drivers=7", "hydra/job_logging=none"),
]
WEIGHTING = ("refine.weighting.proposals=200", "refine.weighting.effective_draws=20")


@pytest.fixture(scope="module")
def trained(trained, tmp_path_factory) -> Callable[[str], Path]:
    """A trained run for a residual model, of this module's own."""
    runs: dict[str, Path] = {}

    def run(residual: str = "gaussian") -> Path:
        if residual not in runs:
            shared = trained(f"residual={residual}", "transform=bounded", "training.rounds=0")
            folder = tmp_path_factory.mktemp("calibrated") / residual
            runs[residual] = Path(shutil.copytree(shared, folder))
        return runs[residual]

    return run


@pytest.fixture
def calibrate(run_command, tmp_path, monkeypatch) -> Callable[..., tuple[int, str]]:
    """Calibrate without the figure; returns its exit code and everything it printed."""
    monkeypatch.setattr("asbc.population.pictures.save_figure", lambda *_: None)

    def run(*arguments: str, prepare: Callable[[], None] | None = None) -> tuple[int, str]:
        log = tmp_path / "calibrate.log"
        log.unlink(missing_ok=True)
        code = run_command("calibrate", [*FAST, *arguments], prepare, log)
        return code, log.read_text()

    return run


def kill_at(owner: object, name: str, call: int) -> Callable[[], None]:
    """Make the `call`-th call of a function kill -9 its process."""

    def prepare() -> None:
        original, calls = getattr(owner, name), 0

        def patched(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, name, patched)

    return prepare


def test_every_driver_of_the_runs_own_data_gets_a_posterior(trained, calibrate, tmp_path) -> None:
    run = trained()
    code, text = calibrate(f"run={run}", "refine=psis", "calibration.predictive_draws=3")
    assert code == 0, text
    folder = run / "calibration" / "pairs"
    assert f"written to {folder}" in text
    assert "24 drivers calibrated" in text and "adapted (drawn again until" in text
    draws = pd.read_parquet(folder / "draws.parquet")
    assert draws.groupby("pair_id", observed=True).size().tolist() == [40] * 24
    data = az.from_netcdf(folder / "posterior.nc")
    assert set(data.groups()) == {
        "posterior",
        "posterior_predictive",
        "sample_stats",
        "observed_data",
        "constant_data",
    }
    assert (folder / "drivers.add.xml").read_text().count("<vType ") == 7
    assert "page.html in a browser: 24 drivers" in text and (folder / "page.html").is_file()
    drivers = pd.read_csv(folder / "drivers.csv")
    assert {"novelty", "unlike_training", "leak_rate", "at_bound", "k_hat", "k_hat_network"} <= {
        *drivers
    }


def test_short_segments_of_recordings_are_left_out(calibrate, tmp_path) -> None:
    """As the demo does it: recordings in pieces, by the default model of the package."""
    code, text = calibrate("data=synthetic", f"output={tmp_path / 'demo'}", "engine.workers=1")
    assert code == 0, text
    assert "segments shorter than 3 s" in text and "page.html in a browser: 100 drivers" in text
    assert (tmp_path / "demo" / "drivers.add.xml").is_file()


POINTS = {
    "between chunks": (pipeline, "calibrate_chunk", 3),
    "while writing a chunk": (parts.pq, "write_table", 4),
    "while merging": (asbc.calibration.export.merge.InferenceDataWriter, "add", 2),
}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(name, marks=[] if name == "between chunks" else [pytest.mark.slow])
        for name in POINTS
    ],
)
def test_killed_and_started_again_equals_uninterrupted(
    point, trained, calibrate, tmp_path
) -> None:
    run, whole, broken = trained(), trained() / "whole", tmp_path / "broken"
    arguments = (f"run={run}", "refine=psis", *WEIGHTING)
    if not whole.exists():
        assert calibrate(*arguments, f"output={whole}")[0] == 0
    code, _ = calibrate(*arguments, f"output={broken}", prepare=kill_at(*POINTS[point]))
    assert code == -signal.SIGKILL
    assert not any((broken / name).exists() for name in ("draws.parquet", "posterior.nc"))
    code, text = calibrate(*arguments, f"output={broken}")
    assert code == 0, text
    for name in FILES:
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


def test_another_file_with_a_bad_driver(trained, calibrate, tiny_pairs, tmp_path) -> None:
    table = pd.read_csv(tiny_pairs)
    table = table[table["pair_id"] < 6]
    table.loc[(table["pair_id"] == 4) & (table["time"] == 1.0), "gap"] = -3.0
    table = table[(table["pair_id"] != 5) | (table["time"] < 2.0)]
    file = tmp_path / "my drivers.csv"
    table.to_csv(file, index=False)
    data = ("data=pairs", f"data.path='{file}'")
    run = trained()
    code, text = calibrate(f"run={run}", *data)
    assert code != 0 and "driver r/4: " in text and "gap is -3" in text and "on_error=skip" in text
    code, text = calibrate(f"run={run}", *data, "on_error=skip")
    assert code == 0, text
    assert "4 drivers calibrated" in text and "skipped r/4: " in text
    assert "left out or changed: 1 segments shorter than 4 s" in text
    drivers = pd.read_csv(run / "calibration" / "my drivers" / "drivers.csv")
    assert drivers["pair_id"].tolist() == ["r/0", "r/1", "r/2", "r/3"]


def test_two_runs_say_which_residual_fits(trained, calibrate) -> None:
    run, other = trained(), trained("matern")
    output = f"output={run}/compared"
    code, text = calibrate(f"run={run}", f"compare_run={other}", "refine=psis", output)
    assert code == 0, text
    assert "residual model that fits: " in text
    drivers = pd.read_csv(run / "compared" / "drivers.csv")
    factor = drivers["log_evidence"] - drivers["log_evidence_matern"]
    assert drivers["log_bayes_factor"].to_numpy() == pytest.approx(factor.to_numpy(), abs=1e-2)
    assert set(drivers["residual_model"]) <= {"gaussian", "matern", "undecided"}


def test_several_runs_are_compared_by_their_predictions(trained, calibrate) -> None:
    run, other = trained(), trained("matern")
    given = [f"run={run}", f"output={run}/predicted"]
    code, text = calibrate(*given, f"compare_run=[{other},{run}]")
    assert code == 0, text
    assert "model that predicts best, on windows after the context: undecided" in text
    drivers = pd.read_csv(run / "predicted" / "drivers.csv")
    scores = ["score_gaussian", "score_matern", "score_gaussian_2"]
    assert set(scores) <= set(drivers) and set(drivers["best_model"]) == {"undecided"}
    # The same command again has nothing left to do; with other runs it is another calibration.
    assert calibrate(*given, f"compare_run=[{other},{run}]")[0] == 0
    code, text = calibrate(*given, f"compare_run=[{other}]")
    assert code == 2 and "holds a finished calibration with other data, weights or" in text


def test_settings_that_cannot_work_are_named(trained, calibrate, tmp_path) -> None:
    code, text = calibrate(f"run={tmp_path}/none")
    assert code != 0 and "no such folder" in text
    code, text = calibrate(f"run={trained()}", "refine=psis", "refine.weighting.proposals=10")
    assert code != 0 and "refine.weighting.proposals=10" in text


@pytest.mark.slow
def test_auto_sends_doubtful_drivers_to_nuts(trained, tmp_path) -> None:
    run = trained()
    nuts = ("refine.nuts.warmup=100", "refine.nuts.draws=100", "calibration.chunk=24")
    output = f"output={run}/auto"
    plain = "refine.weighting.adaptive_rounds=0"
    # No fork: where another test has sampled, JAX would wait for threads that a fork has not.
    given = [*FAST, f"run={run}", "refine=auto", plain, *nuts, output]
    command = [sys.executable, "-m", "asbc", "calibrate", *given]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    drivers = pd.read_csv(run / "auto" / "drivers.csv")
    doubtful = ~(drivers["k_hat"] <= 0.7)
    assert (drivers["route"] == doubtful.map({True: "nuts", False: "psis"})).all()
    assert f"nuts (sampled by NUTS): {doubtful.sum()} drivers" in text
