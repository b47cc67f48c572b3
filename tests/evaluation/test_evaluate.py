"""The whole evaluation with posteriors whose quality is known beforehand."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from asbc.config import build, compose
from asbc.data.windows import EvaluationWindows, evaluation_windows, leader_windows
from asbc.errors import InputError
from asbc.evaluation.cases import Cases
from asbc.evaluation.evaluate import evaluate_draws, evaluate_posterior, protocol_windows
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import EvaluationSettings
from asbc.evaluation.results import data_fingerprint, write_evaluation
from asbc.evaluation.sbc import check_posterior
from asbc.evaluation.scores import SCORES, Score
from asbc.evaluation.window_draws import sample_pairs
from asbc.posterior.posterior import PosteriorSamples
from asbc.reporting.figures.case_study import case_study
from asbc.simulator import Prior
from asbc.simulator.robust import ContextSimulator, simulate_drivers
from asbc.utils.random import uniform

SMALL = EvaluationSettings(samples=30, bootstrap=50, simulated_drivers=60, posterior_draws=19)
TOP_LEVEL = [f"{score}_{x}" for score in ("rmse", "es", "crps", "coverage95") for x in "sva"]


class PriorPosterior:
    """Knows nothing and says so: calibrated. A `spread` below 1 makes it overconfident."""

    def __init__(self, prior: Prior, spread: float = 1.0, leak: float = 0.0) -> None:
        self.prior, self.spread, self.leak = prior, spread, leak

    def encode(self, states: Tensor) -> Tensor:
        return states.mean(dim=1)

    def sample(self, states: Tensor, n: int, rng: np.random.Generator) -> PosteriorSamples:
        u = uniform(rng, len(states), n, self.prior.dim, dtype=torch.float64)
        theta = self.prior.icdf(0.5 + self.spread * (u - 0.5))
        return PosteriorSamples(theta, torch.full((len(states),), self.leak))

    def log_prob(self, theta: Tensor, states: Tensor) -> Tensor:
        return self.prior.log_prob(theta)


@pytest.fixture(scope="module")
def setting(simulators, drivers, pairs_of):
    simulator = simulators["gaussian"]
    return simulator, pairs_of(simulator, 6, 200, drivers(simulator, 6))


def test_protocols_are_the_papers_grid_and_the_grid_after_the_context(setting) -> None:
    _, pairs = setting
    windows, member = protocol_windows(pairs, 75, SMALL)
    for name, first in (("all_windows", 0), ("after_context", 75)):
        grid = evaluation_windows(pairs, 50, 20, 20, first)
        rows = torch.from_numpy(member[name])
        assert torch.equal(windows.pair[rows], grid.pair)
        assert torch.equal(windows.start[rows], grid.start)
    assert (windows.start[torch.from_numpy(member["after_context"])] >= 75).all()
    # A context of whole strides makes the grids overlap; shared windows are scored once.
    shared, both = protocol_windows(pairs, 40, SMALL)
    assert len(shared.pair) == both["all_windows"].sum()


def test_files_hold_what_the_design_promises(setting, tmp_path) -> None:
    simulator, pairs = setting
    posterior = PriorPosterior(simulator.prior)
    training = leader_windows(pairs, 75, 25)
    result = evaluate_posterior(posterior, ContextSimulator(simulator), pairs, 75, training, SMALL)
    write_evaluation(result, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    table = pd.read_parquet(tmp_path / "windows.parquet")
    for protocol in ("all_windows", "after_context"):
        rows = table[table[protocol]]
        for name in [*TOP_LEVEL, "collision_rate"]:
            assert metrics[protocol][name] == pytest.approx(rows[name].mean())
        assert metrics[protocol]["n_windows"] == len(rows)
        assert metrics[protocol]["n_pairs"] == 6
    assert {"pit_s", "coverage50_v", "start", "pair_id"} <= set(table)
    assert metrics["posterior"]["leak_rate"] == 0
    cases = Cases.load(tmp_path / "cases.npz")
    np.testing.assert_array_equal(cases.theta, result.cases.theta)
    assert cases.pair_id.tolist() == list(pairs.pair_id)


def test_case_bands_start_at_the_observed_state_and_match_the_scored_window(setting) -> None:
    simulator, pairs = setting
    theta = simulator.prior.sample(6 * 30, np.random.default_rng(0)).view(6, 30, -1)
    result = evaluate_draws(simulator, theta, pairs, 75, SMALL)
    cases, table = result.cases, result.windows
    np.testing.assert_allclose(cases.mean[:, :2, 0], cases.observed[:, :2, 0], rtol=1e-5)
    assert (cases.start == 75).all()
    error = (cases.mean - cases.observed)[:, 0, 1:]
    scored = table[table["start"] == 75]["rmse_s"]
    np.testing.assert_allclose(np.sqrt((error**2).mean(-1)), scored, rtol=1e-4)


def test_a_calibrated_posterior_passes_and_an_overconfident_one_fails(setting) -> None:
    simulator, pairs = setting
    prior = simulator.prior
    known = simulate_drivers(simulator, leader_windows(pairs, 75, 25), 400, seed=0)
    honest = check_posterior(PriorPosterior(prior), prior, known, 99, seed=0)
    assert all(test.inside for test in honest.ranks)
    assert honest.to_dict()["coverage_error"] < 0.1 and honest.to_dict()["tarp_error"] < 0.1
    assert abs(np.median(honest.contraction)) < 0.1
    narrow = check_posterior(PriorPosterior(prior, spread=0.7), prior, known, 99, seed=0)
    assert not any(test.inside for test in narrow.ranks)
    assert np.median(narrow.contraction) > 0.2


def test_simulated_drivers_come_from_the_prior(setting) -> None:
    simulator, pairs = setting
    known = simulate_drivers(simulator, leader_windows(pairs, 75, 25), 2000, seed=0)
    assert known.states.shape == (2000, 75, 3)
    expected = simulator.prior.icdf(torch.full((1, simulator.dim), 0.5))[0]
    np.testing.assert_allclose(known.theta.median(0).values, expected, rtol=0.06)


def test_draws_of_a_pair_do_not_depend_on_its_neighbours(setting) -> None:
    simulator, pairs = setting
    posterior = PriorPosterior(simulator.prior)
    together = sample_pairs(posterior, pairs, 75, 20, seed=0).theta
    alone = sample_pairs(posterior, pairs.select([4]), 75, 20, seed=0).theta
    assert torch.equal(together[4], alone[0])


def test_known_parameters_are_compared_by_name(setting, tmp_path) -> None:
    simulator, pairs = setting
    # The recorded truth has other columns than the model, in another order.
    truth = torch.tensor([[1.5, 9.0, 30.0]]).repeat(6, 1) + torch.arange(6)[:, None] * 0.01
    known = replace(pairs, true_theta=truth, true_names=("T", "unknown", "v0"))
    theta = torch.zeros(6, 30, simulator.dim) + torch.tensor([31.0, 2, 1.5, 1, 1, 0.3])
    result = evaluate_draws(simulator, theta, known, 75, SMALL)
    found = result.metrics["recovery"]
    assert set(found) == {"v0", "T"}
    assert found["v0"]["bias"] == pytest.approx(1 - 0.025, abs=1e-4)
    assert found["T"]["bias"] == pytest.approx(-0.025, abs=1e-4)
    # The same answer for every driver has no correlation with the truth.
    result.metrics["baseline"] = {"r_hat": float("inf")}  # of a chain that never moved
    write_evaluation(result, tmp_path)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["recovery"]["v0"]["correlation"] is None
    assert written["baseline"]["r_hat"] is None


def test_warnings_name_undercoverage_leaks_strangers_and_miscalibration(setting) -> None:
    simulator, pairs = setting
    wrong = PriorPosterior(simulator.prior, spread=0.01, leak=0.3)
    far = replace(pairs, gap=pairs.gap + 200)
    training = leader_windows(pairs, 75, 25)
    result = evaluate_posterior(wrong, ContextSimulator(simulator), far, 75, training, SMALL)
    text = " ".join(result.metrics["warnings"])
    for words in ("overconfident", "30% of the posterior draws", "100% of the drivers (6)"):
        assert words in text
    assert "not calibrated for v0, s0, T, a_max, b, sigma" in text


def test_a_pair_without_a_window_after_its_context_is_said(setting) -> None:
    simulator, pairs = setting
    theta = torch.tensor([30.0, 2, 1.5, 1.2, 1.8, 0.3]).repeat(6, 5, 1)
    result = evaluate_draws(simulator, theta, pairs, 160, SMALL)
    assert result.metrics["after_context"]["rmse_s"] is None
    assert "No pair is long enough" in result.metrics["warnings"][0]
    assert (result.cases.start == 149).all()


def test_unusable_data_are_refused_in_plain_words(setting) -> None:
    simulator, pairs = setting
    with pytest.raises(InputError, match="the test split holds no pair"):
        protocol_windows(pairs.select([]), 75, SMALL)
    with pytest.raises(InputError, match="horizon=300 steps fits"):
        protocol_windows(pairs, 75, replace(SMALL, horizon=300))
    with pytest.raises(InputError, match="context_steps=500 is longer than"):
        sample_pairs(PriorPosterior(simulator.prior), pairs, 500, 5, seed=0)
    theta = torch.tensor([30.0, 2, 1.5, 1.2, 1.8, 0.3]).repeat(6, 5, 1)
    cases = evaluate_draws(simulator, theta, pairs, 75, SMALL).cases
    assert cases.index("r/3") == cases.index("3") == 3
    with pytest.raises(InputError, match="pair 99 is not in the data"):
        cases.index("99")


def test_the_fingerprint_follows_the_data(setting) -> None:
    _, pairs = setting
    assert data_fingerprint(pairs) == data_fingerprint(pairs.select(range(6)))
    assert data_fingerprint(pairs) != data_fingerprint(pairs.select(range(5)))
    assert data_fingerprint(pairs) != data_fingerprint(replace(pairs, gap=pairs.gap + 1e-3))


def median_error() -> Score:
    """A user's own score, as `evaluation.extra_scores` names it."""
    return Score(
        "median_error",
        "MedAE",
        lambda samples, ordered, observed: (
            (samples.median(dim=1).values - observed).abs().mean(dim=-1).double()
        ),
    )


def test_a_score_of_ones_own_needs_no_list_to_edit(setting, tmp_path) -> None:
    simulator, pairs = setting
    theta = simulator.prior.sample(6 * 30, np.random.default_rng(0)).view(6, 30, -1)
    settings = replace(SMALL, extra_scores=[median_error()])
    result = evaluate_draws(simulator, theta, pairs, 75, settings)
    plain = evaluate_draws(simulator, theta, pairs, 75, SMALL)
    write_evaluation(result, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    table = pd.read_parquet(tmp_path / "windows.parquet")
    pd.testing.assert_frame_equal(table[list(plain.windows)], plain.windows)
    window = EvaluationWindows(torch.tensor([2]), torch.tensor([75]), 50)
    rollout = predict_windows(simulator, theta, pairs, window, 5, 1e-2, 0)
    observed = pairs.speed.view(6, 200)[2, 76:126]
    error = (rollout.speed[0, :, 1:].median(dim=0).values - observed).abs().mean()
    row = table[(table["pair_id"] == "r/2") & (table["start"] == 75)]
    assert row["median_error_v"].item() == pytest.approx(error.item(), rel=1e-5)
    for protocol in ("all_windows", "after_context"):
        rows, scores = table[table[protocol]], metrics[protocol]
        for name in ("median_error_s", "median_error_v", "median_error_a"):
            assert scores[name] == pytest.approx(rows[name].mean())
            assert scores["median"][name] == pytest.approx(rows[name].median())
            low, high = scores["interval95"][name]
            assert low < scores[name] < high
        for name, value in plain.metrics[protocol]["interval95"].items():
            assert scores["interval95"][name] == value
    assert metrics["settings"]["extra_scores"] == ["median_error"]


def test_extra_scores_come_from_the_command_line() -> None:
    target = "asbc.evaluation.scores.Score"
    function = "{_target_: hydra.utils.get_method, path: asbc.evaluation.scores.crps}"
    given = f"[{{_target_: {target}, name: own, label: Own, function: {function}}}]"
    settings = build(compose("evaluate", ["run=x", f"evaluation.extra_scores={given}"]).evaluation)
    assert [score.name for score in settings.scores] == [*(s.name for s in SCORES), "own"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([median_error], "extra_scores: <function median_error.* is no score"),
        ([median_error(), median_error()], "two scores called median_error; choose another name"),
        ([replace(median_error(), name="es")], "two scores called es; choose another name"),
    ],
)
def test_extra_scores_that_cannot_be_used_are_refused(extra, message) -> None:
    with pytest.raises(InputError, match=message):
        EvaluationSettings(extra_scores=extra)


class Wrapped:
    """A predictor whose drives are those of a simulator with known draws."""

    def __init__(self, simulator, theta) -> None:
        self.simulator, self.theta = simulator, theta

    def predict(self, pairs, windows, seed, kinematics=None):
        return predict_windows(self.simulator, self.theta, pairs, windows, 5, 1e-2, seed)


def test_a_model_without_parameters_is_scored_by_its_drives(setting, tmp_path) -> None:
    simulator, pairs = setting
    theta = simulator.prior.sample(6 * 30, np.random.default_rng(0)).view(6, 30, -1)
    by_draws = evaluate_draws(simulator, theta, pairs, 75, SMALL)
    by_drives = evaluate_draws(simulator, Wrapped(simulator, theta), pairs, 75, SMALL)
    pd.testing.assert_frame_equal(by_drives.windows, by_draws.windows)
    np.testing.assert_array_equal(by_drives.cases.mean, by_draws.cases.mean)
    assert by_drives.metrics["posterior"] == {} and "recovery" not in by_drives.metrics
    write_evaluation(by_drives, tmp_path)
    cases = Cases.load(tmp_path / "cases.npz")
    assert cases.theta.shape == (6, 1, 0) and len(cases.names) == 0
    assert case_study({"a": cases, "b": by_draws.cases}, pairs.pair_id[0]).subfigs
