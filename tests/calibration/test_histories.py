"""Drivers calibrated from all that is known of them: one row each, over all of their segments."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import asbc
from asbc.calibration.calibrate import (
    CalibrationSettings,
    Job,
    calibrate_chunks,
    calibrate_into,
)
from asbc.calibration.evidence import Comparison
from asbc.calibration.held_out import HeldOutComparison
from asbc.calibration.psis import Weighting
from asbc.calibration.refinement import AutoRefinement, NoRefinement, PsisRefinement
from asbc.data import driver_store, row_batches, sorted_buckets
from asbc.data.driver_store import store_drivers
from asbc.data.history import histories
from asbc.data.pairs import Pairs
from asbc.data.pairs_file import PairsFile
from asbc.engine import LocalEngine
from asbc.errors import InputError
from asbc.run import Run
from asbc.simulator.weighted_draws import log_weights
from asbc.trained_model import Model
from asbc.utils.random import RowStreams, stream

DRAWS = 60
FILES = ("draws.parquet", "drivers.csv", "summary.csv", "posterior.nc")
# Of drivers d0 .. d5: pairs, recorded samples, and segments of 20 samples or, at the end, 15.
PAIRS = [2, 1, 3, 1, 2, 2]
RECORDED = [48, 80, 96, 30, 76, 45]
USED = [[20, 20], [20] * 4, [20, 20, 20, 15], [20], [20, 20, 20], [20]]


@pytest.fixture(scope="module")
def fit(history_run: Run, several_pairs: Pairs) -> asbc.Fit:
    return history_run.calibrate(several_pairs, samples=DRAWS, seed=3)


@pytest.fixture(scope="module")
def model(history_run: Run) -> Model:
    return history_run.model(context="all")


@pytest.fixture(scope="module")
def job(model: Model) -> Job:
    settings = CalibrationSettings(samples=DRAWS, chunk=2, predictive_draws=2)
    return Job(model=model, refinement=NoRefinement(), settings=settings)


@pytest.fixture(scope="module")
def whole(job: Job, several_pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    calibrate_into(folder, job, several_pairs)
    return folder


def test_a_row_is_a_driver_with_all_of_its_pairs(fit: asbc.Fit, model: Model) -> None:
    flags = fit.flags
    assert flags["follower"].tolist() == [f"r/d{i}" for i in range(6)] and "pair_id" not in flags
    assert flags["pairs"].tolist() == PAIRS
    assert flags["segments"].tolist() == [len(own) for own in USED]
    used = np.array([sum(own) for own in USED])
    np.testing.assert_allclose(flags["seconds"], 0.2 * used)
    np.testing.assert_allclose(flags["used_share"], used / RECORDED)
    assert len(fit) == 6 and fit.theta.shape == (6, DRAWS, 6)
    assert list(fit.draws)[:2] == ["follower", "draw"]
    assert fit.summary["follower"].nunique() == 6
    assert repr(fit).startswith("Fit(6 drivers with 60 draws")


def test_draws_are_those_of_the_posterior_of_histories(
    fit: asbc.Fit, model: Model, several_pairs: Pairs
) -> None:
    newest = {"d0": 3, "d1": 5, "d2": 8, "d3": 7, "d4": 9, "d5": 10}
    ends = [int(several_pairs.lengths[i]) for i in newest.values()]
    known = histories(several_pairs, list(newest.values()), ends, 20, 15, 4)
    assert known.total.tolist() == [sum(own) for own in USED]
    rng = RowStreams([stream(3, "posterior", f"driver r/{name}") for name in newest])
    expected = model.posterior.sample(known, DRAWS, rng).theta
    torch.testing.assert_close(fit.theta, expected, rtol=1e-5, atol=1e-6)


def test_more_segments_tell_more(
    history_run: Run, simulate_pairs: Callable[..., tuple[torch.Tensor, Pairs]]
) -> None:
    """Posteriors of drivers with four segments are narrower than those of one of them."""
    _, long = simulate_pairs(history_run.simulator, 40, seed=4, steps=80)
    every = history_run.calibrate(long, samples=DRAWS).theta.std(1).mean(0)
    first = history_run.calibrate(long, samples=DRAWS, context="first").theta.std(1).mean(0)
    assert every[2] < 0.8 * first[2]  # T


def test_coordinates_by_driver_are_those_of_all_of_its_segments(
    trained: Callable[..., Path], several_pairs: Pairs
) -> None:
    """With transform=laplace: files, weights and a driver who is watched."""
    choices = ("history=segments", "transform=laplace", "encoder=differences")
    run = Run.open(trained(*choices, "history.max_segments=4"))
    fit = run.calibrate(several_pairs, samples=DRAWS, seed=3, refine="psis")
    assert fit.flags["segments"].tolist() == [len(own) for own in USED]
    assert np.isfinite(fit.flags["k_hat"]).all()
    model = run.model(context="all")
    known, posterior = model.contexts(several_pairs), model.posterior
    columns = posterior.transform.describe(known, None)
    torch.testing.assert_close(posterior.encode(known)[:, -columns.shape[1] :], columns)
    live = run.follow("r/d3", seed=3)
    pair = several_pairs.pair(7)
    for sample in zip(*(pair[n].tolist() for n in ("gap", "speed", "leader_speed")), strict=True):
        live.update(*sample)
    # Its 30 samples are one segment of 20, in the file and on the road.
    own = model.names(several_pairs).index("r/d3")
    expected = posterior.encode(known)[own : own + 1]
    torch.testing.assert_close(live.now.context, expected, rtol=1e-5, atol=1e-5)


def test_the_first_seconds_of_each_pair_on_request(history_run: Run, several_pairs: Pairs) -> None:
    long = several_pairs.select([0, 5, 8])
    fit = history_run.calibrate(long, samples=DRAWS, context="first")
    assert fit.flags["pair_id"].tolist() == list(long.pair_id)
    expected = history_run.model().sample(long, DRAWS, 0).theta
    torch.testing.assert_close(fit.theta, expected)
    assert "used_share" not in fit.flags


def test_a_run_of_single_trajectories_cannot_read_all(
    gaussian_run: Run, several_pairs: Pairs
) -> None:
    with pytest.raises(InputError, match="context=all: the run reads one segment of each driver"):
        gaussian_run.calibrate(several_pairs, context="all")
    with pytest.raises(InputError, match="context=latest; expected first or all"):
        gaussian_run.calibrate(several_pairs, context="latest")
    # Nothing was asked for: as ever, a row per pair.
    assert gaussian_run.calibrate(several_pairs.select([0, 8]), samples=9).flags.shape[0] == 2


def test_a_driver_with_too_little_is_refused_by_name(
    history_run: Run, several_pairs: Pairs
) -> None:
    short = several_pairs.select([3, 10, 5])  # 8 and 12 samples, and a long one
    reason = r"recorded for 1.6 s at a time at the most, but a segment has 3 s or more"
    with pytest.raises(InputError, match=f"driver r/d0: {reason}.*or set on_error=skip"):
        history_run.calibrate(short)
    fit = history_run.calibrate(short, samples=9, on_error="skip")
    assert fit.flags["follower"].tolist() == ["r/d1"]
    assert list(fit.skipped) == ["r/d0", "r/d5"] and "1.6 s at a time" in fit.skipped["r/d0"]
    with pytest.raises(InputError, match="no driver to calibrate; recorded for 1.6 s"):
        history_run.calibrate(short.select([0, 1]), on_error="skip")


def test_a_bad_pair_does_not_take_its_driver_along(
    history_run: Run, several_pairs: Pairs, tmp_path: Path
) -> None:
    """In memory and on disk: the driver is calibrated from its other pairs."""
    table = several_pairs.to_table()
    bad = table.index[(table["pair_id"] == "8")][30]
    table.loc[bad, "gap"] = -1.0
    with pytest.raises(InputError, match="driver r/8: .*gap"):
        history_run.calibrate(table)
    fit = history_run.calibrate(table, samples=9, on_error="skip")
    assert list(fit.skipped) == ["r/8"] and len(fit) == 6
    assert fit.flags["pairs"].tolist() == [2, 1, 2, 1, 2, 2]
    table.to_parquet(tmp_path / "rows.parquet", index=False)
    drivers = stored(tmp_path / "rows.parquet", tmp_path / "store", "skip")
    assert len(drivers) == 6 and list(drivers.skipped) == ["r/8"]
    assert len(drivers.piece(2, 3).pairs()) == 2


def test_3_s_are_enough_and_2_8_s_are_not(history_run: Run, several_pairs: Pairs) -> None:
    fifteen = several_pairs.select([6])
    assert history_run.calibrate(fifteen, samples=9).flags["seconds"].tolist() == [3.0]
    table = fifteen.to_table().iloc[:14]
    with pytest.raises(InputError, match=r"driver r/d2: recorded for 2.8 s"):
        history_run.calibrate(table)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and buckets of a few rows, so that a small table is divided."""
    monkeypatch.setattr(row_batches, "BATCH", 50)
    monkeypatch.setattr(row_batches, "STRETCH", 100)
    monkeypatch.setattr(sorted_buckets, "FILE_ROWS", 60)
    original = driver_store.sorted_buckets

    def smaller(stretches, folder, bucket_rows, pool, by):
        return original(stretches, folder, 100, pool, by)

    monkeypatch.setattr(driver_store, "sorted_buckets", smaller)


def stored(path: Path, folder: Path, on_error: str = "stop") -> driver_store.StoredDrivers:
    source = PairsFile(path=str(path), context_steps=2, min_duration=0.4)
    with LocalEngine(workers=1).pool() as pool:
        return store_drivers(source, folder, on_error, 1.0, pool, shortest=15)


def shuffled(pairs: Pairs, path: Path) -> Path:
    table = pairs.to_table()
    order = np.random.default_rng(0).permutation(len(table))
    table.iloc[order].to_parquet(path, index=False)
    return path


def test_a_table_on_disk_gives_the_same_bytes(
    job: Job, several_pairs: Pairs, whole: Path, tmp_path: Path, small_steps: None
) -> None:
    """Rows in any order, in buckets that hold all pairs of a driver."""
    drivers = stored(shuffled(several_pairs, tmp_path / "rows.parquet"), tmp_path / "store")
    assert len(drivers) == 6 and len(list((tmp_path / "store").glob("*.parquet"))) > 2
    pieces = [drivers.piece(i, i + 1).pairs() for i in range(6)]
    assert [len(piece) for piece in pieces] == PAIRS
    assert [int(piece.lengths.sum()) for piece in pieces] == RECORDED
    assert [set(piece.follower) for piece in pieces] == [{f"r/d{i}"} for i in range(6)]
    in_memory = driver_store.given_drivers(
        driver_store.load_drivers(
            PairsFile(path=str(tmp_path / "rows.parquet"), context_steps=2, min_duration=0.4),
            "stop",
        ),
        "stop",
        15,
    )
    assert drivers.fingerprint == in_memory.fingerprint
    calibrate_into(tmp_path / "out", job, drivers)
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes()


def test_a_short_driver_of_a_table_on_disk(
    several_pairs: Pairs, tmp_path: Path, small_steps: None
) -> None:
    path = shuffled(several_pairs.select([3, 5, 10]), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="driver r/d0: recorded for 1.6 s"):
        stored(path, tmp_path / "store")
    drivers = stored(path, tmp_path / "store", "skip")
    assert len(drivers) == 1 and set(drivers.skipped) == {"r/d0", "r/d5"}


def test_a_pair_of_two_followers_is_refused(
    several_pairs: Pairs, tmp_path: Path, small_steps: None
) -> None:
    """Its rows are in buckets of different drivers, each of which looks sound."""
    table = several_pairs.to_table()
    rows = table.index[table["pair_id"] == "8"]
    table.loc[rows[:30], "follower_id"] = "zz"
    table.to_parquet(tmp_path / "rows.parquet", index=False)
    with pytest.raises(InputError, match="pair r/8 has rows of two followers; give each"):
        stored(tmp_path / "rows.parquet", tmp_path / "store")


def test_other_owners_are_other_data(several_pairs: Pairs) -> None:
    mine = driver_store.GivenDrivers(several_pairs, by_driver=True).fingerprint
    moved = replace(several_pairs, follower=(*several_pairs.follower[:-1], "r/d0"))
    assert driver_store.GivenDrivers(moved, by_driver=True).fingerprint != mine
    # Of pairs by themselves, the owner says nothing.
    alone = driver_store.GivenDrivers(several_pairs).fingerprint
    assert driver_store.GivenDrivers(moved).fingerprint == alone


def test_the_command_writes_all_files(
    history_run: Run,
    several_pairs: Pairs,
    run_command: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asbc.population.pictures.save_figure", lambda *_: None)
    path = shuffled(several_pairs, tmp_path / "rows.parquet")
    data = ["data=pairs", f"data.path={path}", f"output={tmp_path / 'out'}"]
    arguments = [f"run={history_run.path}", *data, f"calibration.samples={DRAWS}"]
    assert run_command("calibrate", arguments, log=tmp_path / "log") == 0
    drivers = pd.read_csv(tmp_path / "out" / "drivers.csv")
    assert drivers["follower"].tolist() == [f"r/d{i}" for i in range(6)]
    assert drivers["segments"].tolist() == [len(own) for own in USED]
    draws = pd.read_parquet(tmp_path / "out" / "draws.parquet")
    expected = history_run.calibrate(several_pairs, samples=DRAWS)
    names = list(history_run.simulator.parameter_names)
    np.testing.assert_allclose(draws[names], expected.draws[names], rtol=1e-5)
    assert (tmp_path / "out" / "drivers.add.xml").stat().st_size > 1000
    assert (drivers["novelty"] > 0).all() and "unlike_training" in drivers
    # Given again with another context, the folder is refused.
    again = [*arguments, "calibration.context=first", "min_duration=4"]
    assert run_command("calibrate", again, log=tmp_path / "again") == 2
    assert "other data, weights or settings" in (tmp_path / "again").read_text()


def test_inference_data_hold_every_segment(whole: Path, several_pairs: Pairs) -> None:
    data = az.from_netcdf(str(whole / "posterior.nc"), engine="h5netcdf")
    observed, constant = data["observed_data"], data["constant_data"]
    assert observed["gap"].dims == ("driver", "segment", "time")
    assert observed["gap"].shape == (6, 4, 20)
    assert observed.driver.values.tolist() == [f"r/d{i}" for i in range(6)]
    lengths = constant["samples"].values
    assert [[n for n in own if n] for own in lengths.tolist()] == USED
    inside = np.arange(20) < lengths[..., None]
    for name in ("gap", "speed", "acceleration"):
        np.testing.assert_array_equal(np.isfinite(observed[name].values), inside)
    newest = several_pairs.pair(8)
    np.testing.assert_array_equal(observed["gap"][2, 0], newest["gap"][-20:])
    np.testing.assert_array_equal(constant["leader_speed"][2, 1], newest["leader_speed"][-40:-20])
    predicted = data["posterior_predictive"]["speed"]
    assert predicted.dims == ("chain", "draw", "driver", "segment", "time")
    np.testing.assert_array_equal(np.isfinite(predicted.values[0, 0]), inside)
    # Every drive starts in the segment's first state.
    np.testing.assert_array_equal(predicted.values[0, 1][..., 0], observed["speed"].values[..., 0])


def test_a_fit_of_drivers_is_exported_and_drawn(
    fit: asbc.Fit, several_pairs: Pairs, tmp_path: Path
) -> None:
    data = fit.to_arviz()
    assert data["posterior"]["T"].shape == (1, DRAWS, 6)
    assert data["observed_data"]["gap"].shape == (6, 4, 20)
    assert fit.to_sumo(tmp_path / "drivers.add.xml", drivers=7).read_text().count("<vType ") == 7
    assert len(fit.pairs) == 11
    figure = fit.plot("5")
    assert isinstance(figure, Figure)


def test_weights_are_by_the_product_of_the_segments(model: Model, several_pairs: Pairs) -> None:
    known = model.contexts(several_pairs)
    theta = model.sample(several_pairs, 50, 0).theta
    found = log_weights(model.posterior, model.simulator, theta, known)
    for driver in range(len(theta)):
        value = model.simulator.prior.log_prob(theta[driver].double())
        value = (
            value - model.posterior.log_prob(theta[driver][None], known[driver : driver + 1])[0]
        )
        for slot, length in enumerate(known.lengths[driver].tolist()):
            if length:
                states = known.states[driver, slot, :length].expand(50, -1, -1)
                value = value + model.simulator.log_likelihood(theta[driver], states)
        torch.testing.assert_close(found[driver], value, rtol=1e-6, atol=1e-3)


def test_refined_drivers_have_evidences_of_all_segments(
    history_run: Run, model: Model, several_pairs: Pairs
) -> None:
    refine = PsisRefinement(weighting=Weighting(proposals=800, effective_draws=150))
    fit = history_run.calibrate(several_pairs, samples=DRAWS, refine=refine)
    assert (fit.flags["k_hat"] <= 0.7).all() and set(fit.flags["route"]) <= {"psis", "adapted"}
    # Brute force: the mean likelihood of many draws of the prior, for one and for two segments.
    prior = model.simulator.prior.sample(100_000, np.random.default_rng(0))
    known = model.contexts(fit.pairs)
    for row, slots in ((3, 1), (0, 2)):
        assert fit.flags["segments"][row] == slots and known.lengths[row, :slots].eq(20).all()
        value = sum(
            model.simulator.log_likelihood(prior, known.states[row, j].expand(len(prior), -1, -1))
            for j in range(slots)
        )
        exact = float(value.logsumexp(0)) - np.log(len(prior))
        assert fit.flags["log_evidence"][row] == pytest.approx(exact, abs=0.3)


def test_runs_are_compared_driver_by_driver(
    history_run: Run, model: Model, gaussian_model: Model, several_pairs: Pairs
) -> None:
    same = replace(model, residual="other")
    weighting = Weighting(proposals=200, effective_draws=50, adaptive_rounds=0)
    settings = CalibrationSettings(samples=9)
    both = {"model": model, "settings": settings}
    job = Job(
        **both,
        refinement=PsisRefinement(weighting=weighting),
        comparison=Comparison(model=same, weighting=weighting),
    )
    [part] = calibrate_chunks(job, several_pairs)
    # The same network and draws: evidences are equal.
    np.testing.assert_allclose(part.drivers["log_bayes_factor"], 0, atol=1e-6)
    with pytest.raises(InputError, match="compare_run reads other segments of a driver"):
        Job(
            **both,
            refinement=PsisRefinement(),
            comparison=Comparison(model=replace(gaussian_model, residual="other")),
        )
    held_out = replace(
        job, refinement=NoRefinement(), comparison=HeldOutComparison(models=[gaussian_model])
    )
    [part] = calibrate_chunks(held_out, several_pairs)
    # Windows of 50 steps after 20: only d1's pair of 80 samples has one.
    assert part.drivers["held_out_windows"].tolist() == [0, 1, 0, 0, 0, 0]
    assert part.drivers["score_gaussian"].notna().tolist() == [False, True] + 4 * [False]


@pytest.mark.slow
def test_refined_draws_are_those_of_nuts_on_all_segments(
    history_run: Run, model: Model, several_pairs: Pairs
) -> None:
    pytest.importorskip("numpyro")
    from asbc.exact.diagnostics import NutsSettings
    from asbc.exact.drivers import exact_drivers
    from asbc.exact.statistics import segment_transitions

    fit = history_run.calibrate(several_pairs, samples=2000, refine="psis")
    seen = segment_transitions(model.simulator, model.contexts(fit.pairs))
    names = model.names(fit.pairs)
    exact = exact_drivers(model.simulator, seen, names, NutsSettings(), 0, len(names))
    draws = np.log(exact.theta.reshape(-1, len(names), 6).transpose(1, 0, 2))
    found = np.log(fit.theta.double().numpy())
    sd = draws.std(1)
    np.testing.assert_allclose((found.mean(1) - draws.mean(1)) / sd, 0, atol=0.25)
    np.testing.assert_allclose(found.std(1) / sd, 1, atol=0.2)
    few = NutsSettings(chains=2, warmup=300, draws=300)
    auto = AutoRefinement(max_k_hat=-1.0, nuts=few)  # nobody's is good enough
    sampled = history_run.calibrate(several_pairs, samples=600, refine=auto)
    assert set(sampled.flags["route"]) == {"nuts"}
    moved = (np.log(sampled.theta.double().numpy()).mean(1) - draws.mean(1)) / sd
    np.testing.assert_allclose(moved, 0, atol=0.4)
