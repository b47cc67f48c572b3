"""Calibration from Python: the same posteriors from every kind of data, and where they go."""

import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from matplotlib.figure import Figure

import asbc
from asbc.calibration.export.sumo import ATTRIBUTES
from asbc.calibration.psis import Weighting
from asbc.calibration.refinement import PsisRefinement
from asbc.data.pairs import Pairs
from asbc.population import Population
from asbc.run import Run
from asbc.utils.random import stream

DRIVERS, DRAWS = 9, 200


@pytest.fixture(scope="module")
def table(
    gaussian_run: Run,
    simulate_pairs: Callable[..., tuple[torch.Tensor, Pairs]],
) -> pd.DataFrame:
    """Recordings of 16 s."""
    return simulate_pairs(gaussian_run.simulator, DRIVERS, seed=21, steps=80)[1].to_table()


@pytest.fixture(scope="module")
def fit(gaussian_run: Run, table: pd.DataFrame) -> asbc.Fit:
    return gaussian_run.calibrate(table, samples=DRAWS, seed=3)


def same(one: asbc.Fit, other: asbc.Fit) -> bool:
    return one.draws.equals(other.draws) and one.flags.equals(other.flags)


def test_a_table_its_file_and_its_pairs_give_the_same_posteriors(
    gaussian_run: Run, table: pd.DataFrame, fit: asbc.Fit, tmp_path: Path
) -> None:
    table.to_csv(tmp_path / "drivers.csv", index=False)
    table.to_parquet(tmp_path / "drivers.parquet", index=False)
    assert len(fit) == DRIVERS and len(fit.draws) == DRIVERS * DRAWS
    for data in (tmp_path / "drivers.csv", str(tmp_path / "drivers.parquet")):
        assert same(gaussian_run.calibrate(data, samples=DRAWS, seed=3), fit)
    pairs = asbc.read_pairs(table)
    assert same(asbc.calibrate(pairs, gaussian_run.path, samples=DRAWS, seed=3), fit)
    other = gaussian_run.calibrate(pairs, samples=DRAWS, seed=4)
    assert float((other.theta - fit.theta).abs().mean()) > 0.01


def test_posteriors_are_those_of_the_command(
    gaussian_run: Run,
    table: pd.DataFrame,
    fit: asbc.Fit,
    run_command: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asbc.population.pictures.save_figure", lambda *_: None)
    table.to_parquet(tmp_path / "drivers.parquet", index=False)
    settings = [f"calibration.samples={DRAWS}", "calibration.seed=3", "calibration.chunk=4"]
    data = ["data=pairs", f"data.path={tmp_path / 'drivers.parquet'}", "data.context_steps=20"]
    arguments = [f"run={gaussian_run.path}", *data, *settings, f"output={tmp_path / 'out'}"]
    assert run_command("calibrate", arguments, log=tmp_path / "log") == 0
    written = pd.read_parquet(tmp_path / "out" / "draws.parquet")
    names = list(fit.model.simulator.parameter_names)
    for pair, own in fit.draws.groupby("pair_id", observed=True):
        theirs = written[written["pair_id"] == pair]
        assert theirs["draw"].tolist() == own["draw"].tolist() == list(range(DRAWS))
        # Chunks of other drivers, so up to rounding.
        np.testing.assert_allclose(theirs[names], own[names], rtol=1e-5)
    flags = pd.read_csv(tmp_path / "out" / "drivers.csv", keep_default_na=False)
    assert flags.columns.tolist() == fit.flags.columns.tolist()
    np.testing.assert_allclose(flags["novelty"], fit.flags["novelty"], rtol=1e-4)
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert summary.columns.tolist() == fit.summary.columns.tolist()
    np.testing.assert_allclose(summary["mean"], fit.summary["mean"], rtol=1e-4)


def test_summary_and_flags_are_those_of_the_draws(fit: asbc.Fit, gaussian_run: Run) -> None:
    prior = gaussian_run.simulator.prior
    assert len(fit.summary) == DRIVERS * prior.dim
    for row in fit.summary.itertuples():
        values = fit.draws.loc[fit.draws["pair_id"] == row.pair_id, row.parameter].to_numpy(float)
        found = [values.mean(), values.std(ddof=1), *np.quantile(values, [0.05, 0.5, 0.95])]
        assert [row.mean, row.sd, row.q05, row.q50, row.q95] == pytest.approx(found, rel=1e-5)
        assert row.unit == dict(zip(prior.names, prior.units, strict=True))[row.parameter]
    flags = fit.flags.set_index("pair_id")
    assert tuple(flags.index) == fit.pairs.pair_id and (flags["route"] == "amortized").all()
    log_theta, log_low, log_high = (x.log().numpy() for x in (fit.theta, prior.low, prior.high))
    near = 0.01 * (log_high - log_low)
    low = ((log_theta <= log_low + near).mean(1) > 0.1).any(1)
    high = ((log_theta >= log_high - near).mean(1) > 0.1).any(1)
    np.testing.assert_array_equal(flags["at_bound"] != "", low | high)
    yardstick = gaussian_run.novelty(fit.model.context_steps)
    distance = yardstick.distance(fit.model.posterior.encode(fit.pairs.contexts(20)))
    np.testing.assert_allclose(flags["novelty"], distance, rtol=1e-6)
    doubtful = (flags["leak_rate"] > 0.05) | (flags["at_bound"] != "") | flags["unlike_training"]
    np.testing.assert_array_equal(flags["flagged"], doubtful)
    text = f"Fit({DRIVERS} drivers with {DRAWS} draws each, {doubtful.sum()} flagged, 0 skipped)"
    assert repr(fit) == text


def test_inference_data_holds_the_draws_and_what_was_observed(fit: asbc.Fit) -> None:
    data = fit.to_arviz()
    assert isinstance(data, az.InferenceData)
    assert data.posterior["T"].dims == ("chain", "draw", "driver")
    assert tuple(data.posterior.driver.values) == fit.pairs.pair_id
    for i, name in enumerate(fit.model.simulator.parameter_names):
        np.testing.assert_array_equal(data.posterior[name].values[0].T, fit.theta[..., i])
    contexts = fit.pairs.contexts(20)
    np.testing.assert_array_equal(data.observed_data["gap"], contexts[..., 0])
    np.testing.assert_array_equal(data.observed_data["speed"], contexts[..., 1])
    np.testing.assert_allclose(data.sample_stats["novelty"], fit.flags["novelty"])
    shown = az.summary(data, var_names=["T"], kind="stats")["mean"]
    np.testing.assert_allclose(shown, fit.theta[..., 2].mean(1), atol=1e-3)


def test_sumo_gets_whole_draws_of_the_population(fit: asbc.Fit, tmp_path: Path) -> None:
    path = fit.to_sumo(tmp_path / "drivers.add.xml", drivers=400, seed=1, length=4.5)
    assert path == tmp_path / "drivers.add.xml"
    types = ET.parse(path).getroot().findall("vTypeDistribution/vType")
    rows = np.array([[float(t.attrib[a]) for a in ATTRIBUTES.values()] for t in types])
    assert len(rows) == 400 and {t.attrib["length"] for t in types} == {"4.5"}
    # Each is one draw of one driver, so that correlations are the population's.
    pooled = fit.theta.flatten(0, 1)[:, :5].numpy()
    known = {tuple(row) for row in pooled}
    assert all(tuple(row) in known for row in rows.astype(np.float32))
    spread = np.corrcoef(rows, rowvar=False) - np.corrcoef(pooled, rowvar=False)
    assert np.abs(spread).max() < 0.2
    # The drivers that `asbc simulate scenario=sumo` would take.
    population = Population.pool(fit.model.simulator.prior, fit.theta)
    expected = population.sample(400, stream(1, "sumo"))[:, :5]
    np.testing.assert_array_equal(rows.astype(np.float32), expected)


def test_sumo_has_no_place_for_other_laws(
    trained: Callable[..., Path], table: pd.DataFrame, tmp_path: Path
) -> None:
    fit = asbc.calibrate(table, trained("model=fvd", "training.rounds=0"), samples=10)
    with pytest.raises(asbc.InputError, match="SUMO export: no parameter s0, T, a_max, b"):
        fit.to_sumo(tmp_path / "drivers.add.xml")
    assert not (tmp_path / "drivers.add.xml").exists()


def test_the_plot_shows_a_driver_after_its_context(fit: asbc.Fit) -> None:
    figure = fit.plot(4)
    assert isinstance(figure, Figure)
    place = fit.pairs.find(4)
    recorded = fit.pairs.pair(place)
    gap = next(ax for ax in figure.axes if ax.get_ylabel().startswith("gap"))
    lines = {line.get_label(): line.get_ydata() for line in gap.lines}
    np.testing.assert_array_equal(lines["observed"], recorded["gap"][20:71])
    # At the start of the window every drive is where the driver was.
    assert lines["predictive mean"][0] == pytest.approx(float(recorded["gap"][20]))
    with pytest.raises(asbc.InputError, match="pair 99 is not in the data"):
        fit.plot(99)


def test_a_recording_as_short_as_its_context_has_no_plot(
    gaussian_run: Run, table: pd.DataFrame
) -> None:
    short = gaussian_run.calibrate(table[table["time"] < 8], samples=10)
    with pytest.raises(asbc.InputError, match="pair r/3: recorded for 8 s; a plot needs more tha"):
        short.plot("r/3")


def test_a_driver_that_cannot_be_read_stops_or_is_skipped(
    gaussian_run: Run, table: pd.DataFrame, fit: asbc.Fit, tmp_path: Path
) -> None:
    broken = table.copy()
    broken.loc[(broken["pair_id"] == "5") & (broken["time"] > 3), "gap"] = -1.0
    broken.to_csv(tmp_path / "broken.csv", index=False)
    for data in (broken, tmp_path / "broken.csv"):
        with pytest.raises(asbc.InputError, match="gap.*-1"):
            gaussian_run.calibrate(data)
        found = gaussian_run.calibrate(data, samples=DRAWS, seed=3, on_error="skip")
        assert list(found.skipped) == ["r/5"] and "gap" in found.skipped["r/5"]
        assert len(found) == DRIVERS - 1
        kept = fit.draws[fit.draws["pair_id"] != "r/5"]
        np.testing.assert_allclose(found.draws["T"], kept["T"], rtol=1e-5)
        assert "1 skipped" in repr(found)


def test_draws_can_be_refined(gaussian_run: Run, table: pd.DataFrame) -> None:
    weighted = gaussian_run.calibrate(table, samples=50, refine="psis")
    assert set(weighted.flags["route"]) <= {"psis", "adapted"}
    assert (weighted.flags["effective_draws"] >= 200).all()
    assert "k_hat" in weighted.to_arviz().sample_stats
    plain = PsisRefinement(weighting=Weighting(proposals=2000, adaptive_rounds=0))
    own = gaussian_run.calibrate(table, samples=50, refine=plain)
    assert set(own.flags["route"]) == {"psis"}
    np.testing.assert_allclose(own.flags["k_hat"], weighted.flags["k_hat_network"])
    with pytest.raises(asbc.InputError, match="refine=mcmc; expected one of auto, none, psis"):
        gaussian_run.calibrate(table, refine="mcmc")
    with pytest.raises(asbc.InputError, match="samples=1; expected at least 2"):
        gaussian_run.calibrate(table, samples=1)


def test_a_run_works_elsewhere_without_its_training_data(
    gaussian_run: Run, table: pd.DataFrame, fit: asbc.Fit, tmp_path: Path
) -> None:
    elsewhere = Path(shutil.copytree(gaussian_run.path, tmp_path / "sent"))
    (elsewhere / "pairs.parquet").unlink()
    config = yaml.safe_load((elsewhere / "config.yaml").read_text())
    config["data"]["path"] = str(tmp_path / "no" / "such.parquet")
    (elsewhere / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    found = asbc.Run.open(elsewhere).calibrate(table, samples=DRAWS, seed=3)
    assert same(found, fit) and "novelty" in found.flags
