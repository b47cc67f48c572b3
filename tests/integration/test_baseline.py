"""`asbc baseline` writes the same files as `asbc evaluate`, for every method."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from asbc.commands.baseline import main
from asbc.config import CONF
from asbc.errors import InputError
from asbc.evaluation.results import choices
from asbc.reporting.collect import find_runs

SCORES = (
    *(f"{score}_{x}" for score in ("rmse", "es", "crps", "coverage95") for x in "sva"),
    *("collision_rate", "n_windows", "n_pairs"),
)
SHORT = [
    *("data=pairs", "data.context_steps=20", "data.min_duration=8"),
    *("evaluation.horizon=20", "evaluation.samples=15", "evaluation.bootstrap=10"),
    *("nuts.chains=2", "nuts.warmup=60", "nuts.draws=40"),
]


@pytest.fixture
def baseline_here(monkeypatch, tiny_pairs) -> Callable[..., dict]:
    """Run a baseline in this process with these overrides; returns its metrics."""

    def run(folder: Path, *overrides: str) -> dict:
        given = [*SHORT, f"data.path={tiny_pairs}", *overrides]
        folder.mkdir(exist_ok=True)  # as Hydra does
        with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            cfg = compose(
                "baseline",
                [*given, f"hydra.runtime.output_dir={folder}"],
                return_hydra_config=True,
            )
        monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
        main(cfg)
        return json.loads((folder / "evaluation" / "metrics.json").read_text())

    return run


TRAINED = [
    *("baseline.objective.horizon=20", "baseline.objective.steps=3"),
    *("baseline.objective.check_every=2", "baseline.objective.windows=4"),
    *("baseline.objective.draws=3", "baseline.objective.validation_draws=4"),
]
FEW = {
    **{"prior_predictive": [], "recommended": [], "pooled_predictive": TRAINED},
    "point_fit": ["baseline.steps=5", "baseline.starts=2"],
    "gru": [*TRAINED, "evaluation.context=latest"],
    "residual_idm": [*TRAINED, "evaluation.observation=recorded"],
}


@pytest.mark.parametrize("name", FEW)
def test_files_and_scores(name, baseline_here, tmp_path):
    metrics = baseline_here(tmp_path, f"baseline={name}", *FEW[name])
    for protocol in ("all_windows", "after_context"):
        assert set(SCORES) <= set(metrics[protocol])
        assert metrics[protocol]["n_windows"] > 0
    assert metrics["run"]["kind"] == "baseline" and metrics["baseline"]["fit_seconds"] > 0
    written = {path.name for path in (tmp_path / "evaluation").iterdir()}
    assert {"metrics.json", "windows.parquet", "report.html", "figures"} <= written
    windows = pd.read_parquet(tmp_path / "evaluation" / "windows.parquet")
    assert len(windows) == metrics["all_windows"]["n_windows"] or len(windows) > 0
    run = find_runs(str(tmp_path))[0]
    assert run.label == ", ".join([metrics["run"]["method"], *choices(metrics)])


def test_a_run_that_did_not_converge_says_so_everywhere(baseline_here, tmp_path):
    az = pytest.importorskip("arviz")
    metrics = baseline_here(tmp_path, "baseline=b_idm")
    verdict = metrics["baseline"]["convergence"]
    assert verdict["converged"] is False and verdict["ess_bulk"] < 400  # 80 draws
    assert find_runs(str(tmp_path))[0].label == "Pooled B-IDM, did not converge"
    assert any("did not converge" in line for line in metrics["warnings"])
    assert "did not converge" in (tmp_path / "evaluation" / "report.html").read_text()
    data = az.from_netcdf(str(tmp_path / "posterior.nc"), engine="h5netcdf")
    assert data["posterior"]["theta"].shape == (2, 40, 6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ma_idm", "unpooled", "hierarchical"])
def test_the_other_samplers_run(method, baseline_here, tmp_path):
    few = {
        "ma_idm": ["baseline.slice_seconds=2"],
        "unpooled": ["baseline.drivers=2"],
        "hierarchical": ["baseline.drivers=5", "baseline.population_draws=5"],
    }
    metrics = baseline_here(tmp_path, f"baseline={method}", *few[method])
    assert metrics["all_windows"]["n_pairs"] == (2 if method == "unpooled" else 7)


@pytest.mark.slow
def test_comparison_with_a_trained_run(baseline_here, train_here, tiny, tmp_path):
    train_here([*tiny, "seed=1"], tmp_path / "trained")
    compare = f"baseline.compare_run={tmp_path / 'trained'}"
    chosen = ["baseline=unpooled", "baseline.drivers=3", compare]
    baseline_here(tmp_path / "exact", *chosen)
    found = json.loads((tmp_path / "exact" / "agreement.json").read_text())
    table = pd.read_csv(tmp_path / "exact" / "agreement.csv")
    assert found["drivers"] == len(table) == 3
    assert found["c2st_mean"] == pytest.approx(table["c2st"].mean())
    ratio = found["nuts_seconds_per_driver"] / found["amortized_seconds_per_driver"]
    assert found["speed_up"] == pytest.approx(ratio)
    assert np.isfinite(table.drop(columns="pair_id").to_numpy()).all()
    with pytest.raises(InputError, match="the run differs in residual"):
        baseline_here(tmp_path / "other", *chosen, "residual=matern")
