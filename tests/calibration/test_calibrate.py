"""The files of a calibration: consistent with each other, resumable, and honest about flags."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from asbc.calibration import calibrate as pipeline
from asbc.calibration.calibrate import (
    CalibrationSettings,
    Job,
    calibrate_chunk,
    calibrate_chunks,
    calibrate_into,
)
from asbc.calibration.export.parts import Part
from asbc.calibration.psis import Weighting
from asbc.calibration.refinement import NoRefinement, PsisRefinement
from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.posterior.novelty import Novelty
from asbc.trained_model import Model

Simulate = Callable[..., tuple[torch.Tensor, Pairs]]
FILES = ("draws.parquet", "drivers.csv", "summary.csv", "posterior.nc")


@pytest.fixture(scope="module")
def job(gaussian_model: Model) -> Job:
    settings = CalibrationSettings(samples=60, chunk=4, predictive_draws=5)
    refinement = PsisRefinement(weighting=Weighting(proposals=200, effective_draws=20))
    return Job(model=gaussian_model, refinement=refinement, settings=settings)


@pytest.fixture(scope="module")
def pairs(gaussian_model: Model, simulate_pairs: Simulate) -> Pairs:
    return simulate_pairs(gaussian_model.simulator, 11, steps=40)[1]


@pytest.fixture(scope="module")
def folder(job: Job, pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration")
    calibrate_into(path, job, pairs, {})
    return path


def test_files_tell_the_same_story(folder: Path, pairs: Pairs, job: Job) -> None:
    draws = pd.read_parquet(folder / "draws.parquet")
    assert len(draws) == 11 * 60 and list(draws["pair_id"].unique()) == list(pairs.pair_id)
    assert list(draws.columns) == ["pair_id", "draw", *job.model.simulator.parameter_names]
    summary = pd.read_csv(folder / "summary.csv")
    assert len(summary) == 11 * 6
    for row in summary.sample(10, random_state=0).itertuples():
        values = draws.loc[draws["pair_id"] == row.pair_id, row.parameter].to_numpy(np.float64)
        found = [values.mean(), values.std(ddof=1), *np.quantile(values, [0.05, 0.5, 0.95])]
        assert [row.mean, row.sd, row.q05, row.q50, row.q95] == pytest.approx(found, rel=1e-4)
    assert set(zip(summary["parameter"], summary["unit"], strict=True)) >= {
        ("v0", "m/s"),
        ("T", "s"),
        ("b", "m/s^2"),
    }
    schema = pq.read_schema(folder / "draws.parquet")
    assert schema.field("a_max").metadata == {b"unit": b"m/s^2"}
    drivers = pd.read_csv(folder / "drivers.csv", keep_default_na=False)
    assert list(drivers["pair_id"]) == list(pairs.pair_id)
    assert (drivers["k_hat"].astype(float) < 5).all()


def test_the_netcdf_is_inference_data_of_the_same_draws(
    folder: Path, pairs: Pairs, job: Job
) -> None:
    data = az.from_netcdf(folder / "posterior.nc")
    draws = pd.read_parquet(folder / "draws.parquet")
    for name in ("v0", "sigma"):
        ours = draws[name].to_numpy().reshape(11, 60).T
        np.testing.assert_array_equal(data.posterior[name].values[0], ours)
    assert list(data.posterior.driver.values) == list(pairs.pair_id)
    assert data.posterior["T"].attrs["units"] == "s"
    steps = job.model.context_steps
    contexts = pairs.contexts(steps)
    np.testing.assert_array_equal(data.observed_data["gap"].values, contexts[..., 0])
    np.testing.assert_allclose(
        (data.observed_data["speed"] - data.constant_data["leader_speed"]).values,
        contexts[..., 2],
        atol=1e-6,
    )
    predicted = data.posterior_predictive
    assert predicted["gap"].shape == (1, 5, 11, steps)
    # Drives start where the driver started, and follow the recorded leader from there.
    np.testing.assert_array_equal(
        predicted["speed"].values[0, :, :, 0], np.tile(contexts[:, 0, 1], (5, 1))
    )
    leader = data.constant_data["leader_speed"].values
    gap, speed = predicted["gap"].values[0], predicted["speed"].values[0]
    moved = (leader[:, :-1] - (speed[..., :-1] + speed[..., 1:]) / 2) * 0.2
    np.testing.assert_allclose(np.diff(gap, axis=-1), moved, atol=1e-4)
    assert "k_hat" in data.sample_stats
    assert az.summary(data, var_names=["T"], kind="stats").shape[0] == 11


def test_an_interrupted_run_ends_with_the_same_bytes(
    folder: Path, job: Job, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def interrupted(job: Job, some: Pairs, positions: np.ndarray) -> object:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(len(some))
        return calibrate_chunk(job, some, positions)

    monkeypatch.setattr(pipeline, "calibrate_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate_into(tmp_path, job, pairs, {})
    assert not (tmp_path / "draws.parquet").exists()
    # A chunk that was being written when the process died leaves no complete part.
    (tmp_path / "parts" / "000002.draws.parquet").write_bytes(b"torn")
    (tmp_path / "parts" / ".000002.drivers.parquet.writing").write_bytes(b"torn")
    later: list[int] = []

    def counted(job: Job, some: Pairs, positions: np.ndarray) -> object:
        later.append(len(some))
        return calibrate_chunk(job, some, positions)

    monkeypatch.setattr(pipeline, "calibrate_chunk", counted)
    calibrate_into(tmp_path, job, pairs, {})
    assert sum(done) + sum(later) == 11 and len(later) == 1
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert not (tmp_path / "parts").exists()


def test_a_kill_while_merging_loses_nothing(
    folder: Path, job: Job, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asbc.calibration.export import merge as merging

    class Torn(Exception):
        pass

    def torn(*_: object) -> None:
        raise Torn

    with monkeypatch.context() as patch:
        patch.setattr(merging.InferenceDataWriter, "add", torn)
        with pytest.raises(Torn):
            calibrate_into(tmp_path, job, pairs, {})
    assert not (tmp_path / "posterior.nc").exists() and not (tmp_path / "draws.parquet").exists()
    calibrate_into(tmp_path, job, pairs, {})
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_chunks_of_another_run_are_not_mixed_in(
    folder: Path, job: Job, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="finished calibration with other data, weights"):
        calibrate_into(folder, job, pairs.select(range(5)), {})
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "merge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            calibrate_into(tmp_path, job, pairs, {})
    other = replace(job, settings=replace(job.settings, samples=50))
    with pytest.raises(InputError, match="begun with another settings"):
        calibrate_into(tmp_path, other, pairs, {})


def test_a_finished_run_is_not_repeated(
    folder: Path, job: Job, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "calibrate_chunk", lambda *_: 1 / 0)
    outcome = calibrate_into(folder, job, pairs, {})
    assert outcome.drivers == 11 and sum(outcome.routes.values()) == 11
    assert outcome.text() + "\n" == (folder / "summary.txt").read_text()


def test_chunks_joined_are_what_one_chunk_would_be(job: Job, pairs: Pairs) -> None:
    several = list(calibrate_chunks(job, pairs))
    one = replace(job, settings=replace(job.settings, chunk=256))
    [whole] = calibrate_chunks(one, pairs)
    joined = Part.joined(several)
    assert len(several) == 3 and joined.skipped == whole.skipped == {}
    ours, theirs = joined.draws.to_pandas(), whole.draws.to_pandas()
    assert ours["pair_id"].astype(str).tolist() == theirs["pair_id"].astype(str).tolist()
    # Other drivers in a batch change rounding, and nothing else.
    np.testing.assert_allclose(ours[["v0", "sigma"]], theirs[["v0", "sigma"]], rtol=1e-4)
    assert joined.drivers["position"].tolist() == list(range(11))
    assert joined.predictive["gap"].shape == whole.predictive["gap"].shape == (5, 11, 20)
    assert joined.seconds["psis"] == sum(part.seconds["psis"] for part in several)


def test_the_closing_text_counts_every_way_and_cost(folder: Path) -> None:
    text = (folder / "summary.txt").read_text()
    drivers = pd.read_csv(folder / "drivers.csv", keep_default_na=False)
    assert text.startswith("11 drivers calibrated; computing took ")
    for route, count in drivers["route"].value_counts().items():
        assert re.search(rf"  {route} \(.*\): {count} drivers \({count / 11:.0%}\)\n", text)
    assert re.search(r"  cost: amortized [\d.]+ s, psis [\d.]+ s, adapted [\d.]+ s, ", text)
    high = [int((drivers[name] > 0.7).sum()) for name in ("k_hat_network", "k_hat")]
    assert f"k-hat above 0.7: {high[0]} of the network's posteriors, {high[1]} of the" in text
    record = json.loads((folder / "calibration.json").read_text())
    assert record["outcome"]["flags"]["any"] == int(drivers["flagged"].sum())
    assert record["outcome"]["seconds"]["psis"] > 0


def test_a_posterior_against_its_bound_is_flagged(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    from asbc.calibration.flags import at_bound

    prior = gaussian_model.simulator.prior
    theta = torch.from_numpy(np.random.default_rng(0).uniform(0, 1, (3, 1000, 6))).float()
    theta = prior.low + theta * (prior.high - prior.low)
    theta[1, :200, 0] = 20.1  # 20% of the draws within 1% of the range of log v0
    theta[1, :, 5] = 1.1 * prior.low[5]  # not as near as 1% of the range of log sigma
    theta[2, :50, 4] = 4.0  # 5%: a flat posterior's share and a little more
    theta[2, :150, 2] = 4.49
    assert at_bound(theta, prior).tolist() == ["", "v0:low", "T:high"]


def test_a_context_unlike_the_simulations_is_flagged(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    _, known = simulate_pairs(gaussian_model.simulator, 300, seed=1)
    novelty = Novelty.fit(gaussian_model.posterior.encode(gaussian_model.contexts(known)))
    _, pairs = simulate_pairs(gaussian_model.simulator, 6, seed=2)
    speed = pairs.speed.clone()
    speed[: gaussian_model.context_steps] = 33.0  # nobody drives 33 m/s behind such a leader
    settings = CalibrationSettings(samples=20)
    job = Job(model=gaussian_model, refinement=NoRefinement(), settings=settings, novelty=novelty)
    drivers = calibrate_chunk(job, replace(pairs, speed=speed), np.arange(6)).drivers
    assert drivers["unlike_training"].tolist() == [True] + [False] * 5
    assert bool(drivers["flagged"][0]) and drivers["novelty"][0] > drivers["novelty"][1:].max()


def test_a_driver_the_network_cannot_read_stops_the_run_or_is_skipped(
    gaussian_model: Model, simulate_pairs: Simulate, tmp_path: Path
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 6)
    gap = pairs.gap.clone()
    gap[2 * gaussian_model.context_steps] = math.inf
    broken = replace(pairs, gap=gap)
    settings = CalibrationSettings(samples=20, chunk=4)
    job = Job(model=gaussian_model, refinement=NoRefinement(), settings=settings)
    with pytest.raises(InputError, match="driver r/2: its context overflows in the network"):
        calibrate_into(tmp_path / "stop", job, broken, {})
    skip = replace(job, settings=replace(settings, on_error="skip"))
    outcome = calibrate_into(tmp_path / "skip", skip, broken, {"r/other": "gap is 0"})
    assert set(outcome.skipped) == {"r/2", "r/other"} and outcome.drivers == 5
    assert "skipped r/2: its context overflows in the network" in outcome.text()
    data = az.from_netcdf(tmp_path / "skip" / "posterior.nc")
    kept = [name for name in pairs.pair_id if name != "r/2"]
    assert list(data.posterior.driver.values) == kept
    np.testing.assert_array_equal(data.observed_data["gap"].values[2], pairs.contexts(20)[3, :, 0])


def test_stored_drives_can_have_the_recordings_error(
    job: Job, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without lags of the speeds drives are the same, and only gaps are recorded otherwise.
    monkeypatch.setattr("asbc.evaluation.recording_lag.LARGEST", 0.0)
    noise = torch.from_numpy(np.random.default_rng(0).normal(0, 0.5, len(pairs.gap)))
    jittered = replace(pairs, gap=pairs.gap + noise.float())
    recorded = replace(job, settings=replace(job.settings, observation="recorded"))
    positions = np.arange(len(pairs))

    def drives(job: Job, pairs: Pairs) -> dict[str, np.ndarray]:
        return calibrate_chunk(job, pairs, positions).predictive

    perfect, same = drives(job, pairs), drives(recorded, pairs)
    np.testing.assert_allclose(same["gap"], perfect["gap"], atol=1e-4)
    plain, noisy = drives(job, jittered), drives(recorded, jittered)
    error = (noisy["gap"] - plain["gap"])[..., 1:]
    assert error.std() == pytest.approx(0.5 * np.sqrt(2), rel=0.15)
    np.testing.assert_array_equal(noisy["gap"][..., 0], plain["gap"][..., 0])
    np.testing.assert_array_equal(noisy["speed"], plain["speed"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("samples", 1), ("chunk", 0), ("predictive_draws", 501), ("on_error", "ignore")),
        ("observation", "noisy"),
    ],
)
def test_bad_settings_are_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{field}={value}"):
        CalibrationSettings(**{field: value})  # type: ignore[arg-type]
