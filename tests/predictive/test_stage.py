"""The second stage: what it leaves behind and where it starts."""

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.config import compose
from asbc.errors import InputError
from asbc.predictive.objective import Predictive
from asbc.run import Run
from asbc.training.train import last_words, train_run

STAGE = [
    *("objective=predictive", "objective.horizon=12", "objective.steps=8", "objective.windows=4"),
    *("objective.draws=3", "objective.check_every=3", "objective.validation_draws=8"),
    *("residual=matern", "transform=bounded", "objective.max_windows=2"),
]


@pytest.fixture
def finished(trained):
    return trained("residual=matern", "transform=bounded")


def test_a_run_starts_at_another_and_declines_what_does_not_help(
    finished, tiny, train_here, tmp_path
):
    start = Run.open(finished)
    hopeless = [*tiny, *STAGE, f"init={finished}", "objective.learning_rate=3.0"]
    loop_result = train_here(hopeless, tmp_path / "run")
    assert loop_result == pytest.approx(start.holdout_loss)
    run = Run.open(tmp_path / "run")
    scores = pd.read_csv(run.rounds)["predictive_score"]
    if scores.idxmin() == 0:
        for name, value in start.posterior.state_dict().items():
            same = torch.equal(run.posterior.state_dict()[name], value)
            assert same or name in ("widening", "lags"), name
    assert scores[0] == pytest.approx(1.0)
    assert run.novelty_file.is_file()


@pytest.mark.parametrize(("errors", "kept"), [(1.9, False), (2.1, True)])
def test_what_looks_better_by_chance_is_declined(
    errors, kept, finished, tiny, tmp_path, monkeypatch, no_trajectory_plot
):
    """Windows whose scores fall by so many standard errors, while every check looks better."""
    lower = np.random.default_rng(0).normal(size=50)
    lower += errors * lower.std(ddof=1) / np.sqrt(50) - lower.mean()
    asked, checks = [], iter(range(100))

    def window_scores(*_):
        asked.append(len(asked))
        # The start is asked for first. Scales are the same for all, so that their size is lost.
        values = lower if len(asked) == 1 else np.zeros(50)
        return torch.from_numpy(values).float()[:, None].expand(-1, 3)

    def check(*_):
        return torch.full((3,), 1 / (1 + next(checks))), torch.full((3,), 0.96)

    monkeypatch.setattr(Predictive, "window_scores", window_scores)
    monkeypatch.setattr(Predictive, "check", check)
    monkeypatch.setattr(Predictive, "scales", lambda *_: torch.ones(3))
    overrides = [*tiny, *STAGE, f"init={finished}", f"folder={tmp_path / 'run'}"]
    loop = train_run(compose("train", overrides), overrides)
    assert asked == [0, 1]
    run, start = Run.open(tmp_path / "run"), Run.open(finished).posterior.state_dict()
    weights = run.posterior.state_dict()
    moved = [n for n in start if not torch.equal(weights[n], start[n]) and n != "lags"]
    assert bool(moved) == kept
    assert run.selected_round == (4 if kept else 1)
    rounds = pd.read_csv(run.rounds).set_index("round")
    assert loop.result == pytest.approx(rounds.loc[run.selected_round, "predictive_score"])


def test_residuals_are_learned_along_with_the_posterior(
    tiny, train_here, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("asbc.predictive.stage.BEYOND_CHANCE", -99.0)  # the best check is kept
    train_here([*tiny, *STAGE, "objective.learned_residual=5"], tmp_path / "run")
    run = Run.open(tmp_path / "run")
    if pd.read_csv(run.rounds)["predictive_score"].idxmin() > 0:
        assert run.posterior.learned.out.weight.abs().max() > 0
    assert run.simulator.learned is run.posterior.learned
    assert not any(weights.requires_grad for weights in run.simulator.learned.parameters())
    assert run.simulator.lags == tuple(run.posterior.lags.tolist()) != (0.0, 0.0)
    # What simulates drivers for checks is the simulator itself.
    assert run.training.simulator.learned is None
    train_here([*tiny, *STAGE, "objective.learned_residual=0"], tmp_path / "own")
    assert Run.open(tmp_path / "own").simulator.learned is None


def test_simulated_drivers_teach_no_residual(tiny, tmp_path) -> None:
    given = [*tiny, "objective.learned_residual=5", f"folder={tmp_path / 'run'}"]
    with pytest.raises(InputError, match="use objective=predictive, or 0"):
        train_run(compose("train", given), given)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["objective=simulated"], "objective=simulated has none"),
        (["residual=gaussian"], "differs from this run in residual, prior"),
        (["flow.hidden=9"], "differs from this run in estimator.flow"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(extra, message, finished, tiny, tmp_path):
    given = [text for text in STAGE if extra != ["objective=simulated"] or "objective" not in text]
    keys = [text.partition("=")[0] for text in extra]
    given = [text for text in given if text.partition("=")[0] not in keys]
    overrides = [*tiny, *given, *extra, f"init={finished}", f"folder={tmp_path / 'run'}"]
    with pytest.raises(InputError, match=message):
        train_run(compose("train", overrides), overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.score=rmse", "objective.score=rmse; expected one of energy, crps"),
        ("objective.draws=1", "objective.draws=1"),
        ("objective.average=1", "objective.average=1"),
        ("objective.largest_scale=0.5", "objective.largest_scale"),
        ("objective.context=tomorrow", "objective.context=tomorrow"),
    ],
)
def test_values_are_checked(override, message, tiny, tmp_path):
    with pytest.raises(InputError, match=message):
        train_run(
            compose("train", [*tiny, "objective=predictive", override, f"folder={tmp_path}"]), []
        )


def test_crps_scaled_windows_and_dropout_train_as_well(finished, tiny, train_here, tmp_path):
    extra = ["objective.score=crps", "objective.largest_scale=1.1", "objective.context=latest"]
    extra += ["encoder.dropout=0.2", "flow.dropout=0.2"]  # the stage may regularise otherwise
    train_here([*tiny, *STAGE, *extra, f"init={finished}"], tmp_path / "run")
    rounds = pd.read_csv(tmp_path / "run" / "rounds.csv")
    assert {"predictive_crps_s", "predictive_coverage95_a"} <= set(rounds)
    assert rounds["predictive_score"].notna().all()


@pytest.mark.parametrize("context", ["random", "all"])
def test_everything_known_of_a_driver_trains_as_well(context, trained, tiny, train_here, tmp_path):
    sizes = ["history=segments", "history.max_segments=3", "history.shortest=1"]
    start = trained("residual=matern", "transform=bounded", *sizes)
    extra = [*sizes, f"objective.context={context}", f"init={start}"]
    train_here([*tiny, *STAGE, *extra], tmp_path / "run")
    assert pd.read_csv(tmp_path / "run" / "rounds.csv")["predictive_score"].notna().all()


@pytest.fixture(scope="module")
def predictive(tmp_path_factory, trained, tiny):
    folder = tmp_path_factory.mktemp("predictive") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asbc.data.summary.plot_trajectories", lambda *_: None)
        start = trained("residual=matern", "transform=bounded")
        overrides = [*tiny, *STAGE, f"init={start}", f"folder={folder}"]
        train_run(compose("train", overrides), overrides)
    return Run.open(folder)


def test_a_run_may_start_at_one_that_was_trained_to_predict(
    predictive, tiny, tmp_path, no_trajectory_plot
):
    """Of which no loss on simulated drivers is known."""
    overrides = [*tiny, *STAGE, f"init={predictive.path}", f"folder={tmp_path / 'run'}"]
    loop = train_run(compose("train", overrides), overrides)
    run = Run.open(tmp_path / "run")
    assert loop.best_round == 0 and "trained to predict: score" in last_words(run, loop)


def test_a_predictive_posterior_says_what_it_is(predictive, tiny_pairs):
    assert predictive.label == "ASBC-Matérn, trained to predict"
    fit = predictive.calibrate(str(tiny_pairs), samples=5)
    assert set(fit.flags["posterior"]) == {"predictive"}
    assert fit.to_arviz().attrs["posterior_kind"] == "predictive"
    sizes = {"horizon": 12, "samples": 10, "simulated_drivers": 20, "posterior_draws": 9}
    metrics = predictive.evaluate(str(tiny_pairs), **sizes).metrics
    assert "simulated_drivers" not in metrics and "novelty" in metrics
    assert any(note.startswith("A predictive posterior") for note in metrics["notes"])


def test_refinement_by_the_likelihood_is_refused(predictive, tiny_pairs):
    with pytest.raises(InputError, match="trained to predict recorded drivers"):
        predictive.calibrate(str(tiny_pairs), samples=5, refine="psis")
