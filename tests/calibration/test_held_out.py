"""Which model predicts a driver best: decided where it is clear, open where it is not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.calibration.calibrate import CalibrationSettings, Job
from asbc.calibration.held_out import HeldOutComparison, verdict
from asbc.calibration.refinement import NoRefinement
from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.simulator.black_box import BlackBoxSimulator
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch

Simulate = Callable[..., tuple[torch.Tensor, Pairs]]


class Boxed:
    """The simulator of a run as a black box."""

    def __init__(self, inner) -> None:
        self.inner, self.parameters = inner, inner.parameter_names

    def simulate(self, theta, leader_speed, gap, speed, dt, rng):
        return self.inner.rollout(theta, leader_speed, gap, speed, rng, check=False).states


class Frozen(Boxed):
    """Drivers who keep their speed whatever happens: a model that predicts badly."""

    def simulate(self, theta, leader_speed, gap, speed, dt, rng):
        kept = speed[:, None].expand_as(leader_speed)
        change = torch.cumsum((leader_speed - kept)[:, 1:] * dt, dim=1)
        gaps = torch.cat([gap[:, None], gap[:, None] + change], dim=1)
        return torch.stack([gaps, kept, kept - leader_speed], dim=-1)


@pytest.fixture(scope="module")
def boxed(gaussian_model: Model) -> Callable[[type[Boxed]], Model]:
    def make(kind: type[Boxed]) -> Model:
        inner = gaussian_model.simulator
        simulator = BlackBoxSimulator(kind(inner), inner.prior, dt=inner.dt)
        return replace(gaussian_model, simulator=simulator, residual=kind.__name__)

    return make


def columns(model: Model, others: list[Model], pairs: Pairs) -> dict[str, np.ndarray]:
    comparison = HeldOutComparison(models=others)
    comparison.check(model)
    return comparison.columns(model, pairs, {}, 0, Stopwatch())


def test_a_bad_model_loses_and_equal_ones_stay_undecided(
    gaussian_model: Model, boxed, simulate_pairs: Simulate
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 8, steps=421)
    same, bad = boxed(Boxed), boxed(Frozen)
    found = columns(gaussian_model, [bad], pairs)
    assert (found["best_model"] == "gaussian").mean() > 0.8
    assert (found["score_Frozen"] > found["score_gaussian"]).all()
    assert set(found["held_out_windows"]) == {8}
    # The same model once as it is and once as a black box: nobody wins.
    found = columns(gaussian_model, [same, bad], pairs)
    assert (found["best_model"] == "undecided").mean() > 0.8
    np.testing.assert_allclose(found["score_gaussian"], found["score_Boxed"], rtol=0.05)
    # Scores are relative: their mean over the models is 1.
    mean = (found["score_gaussian"] + found["score_Boxed"] + found["score_Frozen"]) / 3
    np.testing.assert_allclose(mean, 1.0)
    again = columns(gaussian_model, [same, bad], pairs.select([5]))
    assert again["score_Frozen"] == pytest.approx(found["score_Frozen"][5])


def test_recordings_without_later_windows_decide_nothing(
    gaussian_model: Model, boxed, simulate_pairs: Simulate
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 3)
    found = columns(gaussian_model, [boxed(Frozen)], pairs)
    assert set(found["best_model"]) == {"undecided"} and np.isnan(found["score_Frozen"]).all()


def test_false_winners_are_as_rare_as_the_level_says() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(10, 1, (2000, 2, 8, 3))
    winners = [verdict(each)[1] is not None for each in scores]
    assert np.mean(winners) == pytest.approx(0.05, abs=0.015)


def test_a_job_compares_predictions_without_weights(
    gaussian_model: Model, matern_model: Model
) -> None:
    comparison = HeldOutComparison(models=[matern_model])
    given = {"model": gaussian_model, "refinement": NoRefinement()}
    Job(**given, settings=CalibrationSettings(), comparison=comparison)
    other = replace(matern_model, simulator=matern_model.simulator)
    slow = HeldOutComparison(models=[other])
    slow.models[0].simulator.dt, kept = 0.5, other.simulator.dt
    try:
        with pytest.raises(InputError, match="compare_run has a time step of 0.5 s"):
            slow.check(gaussian_model)
    finally:
        other.simulator.dt = kept
