"""Which residual model fits: the verdict on drivers whose residual process is known."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from asbc.calibration.calibrate import CalibrationSettings, Job
from asbc.calibration.evidence import Comparison
from asbc.calibration.refinement import NoRefinement, PsisRefinement
from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch

WEAK = {"k_hat": np.zeros(2), "log_evidence": np.zeros(2), "log_evidence_error": np.zeros(2)}
Simulate = Callable[..., tuple[torch.Tensor, Pairs]]


def verdict(model: Model, other: Model, pairs: Pairs) -> dict[str, np.ndarray]:
    found = PsisRefinement()(model, pairs, 100, 0, Stopwatch()).columns
    comparison = Comparison(model=other)
    return found | comparison.columns(model, pairs, found, 0, Stopwatch())


def test_every_drivers_residual_model_is_recognised(
    gaussian_model: Model, matern_model: Model, simulate_pairs: Simulate
) -> None:
    for truth in (gaussian_model, matern_model):
        _, pairs = simulate_pairs(truth.simulator, 12)
        found = verdict(gaussian_model, matern_model, pairs)
        assert (found["residual_model"] == truth.residual).mean() > 0.8, truth.residual
        np.testing.assert_allclose(
            found["log_bayes_factor"], found["log_evidence"] - found["log_evidence_matern"]
        )


def test_no_verdict_where_evidence_is_weak_or_unreliable(
    gaussian_model: Model, matern_model: Model, simulate_pairs: Simulate
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 2)
    comparison = Comparison(model=matern_model)
    other = comparison.columns(gaussian_model, pairs, WEAK, 0, Stopwatch())["log_evidence_matern"]
    close = {**WEAK, "log_evidence": other + 0.5}
    clear = {**WEAK, "log_evidence": other + 5.0}
    doubtful = {**clear, "k_hat": np.full(2, 0.9)}
    verdicts = [
        comparison.columns(gaussian_model, pairs, found, 0, Stopwatch())["residual_model"]
        for found in (close, clear, doubtful)
    ]
    assert [set(v) for v in verdicts] == [{"undecided"}, {"gaussian"}, {"undecided"}]


def test_the_factor_changes_sign_with_the_runs(
    gaussian_model: Model, matern_model: Model, simulate_pairs: Simulate
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 5)
    first = verdict(gaussian_model, matern_model, pairs)["log_bayes_factor"]
    second = verdict(matern_model, gaussian_model, pairs)["log_bayes_factor"]
    np.testing.assert_allclose(first, -second, atol=1e-6)


def test_runs_that_cannot_be_compared_are_refused(
    gaussian_model: Model, matern_model: Model
) -> None:
    from dataclasses import replace

    settings, psis = CalibrationSettings(), PsisRefinement()

    def job(refinement: object, other: Model) -> Job:
        return Job(
            model=gaussian_model,
            refinement=refinement,  # type: ignore[arg-type]
            settings=settings,
            comparison=Comparison(model=other),
        )

    with pytest.raises(InputError, match="add refine=psis or refine=auto"):
        job(NoRefinement(), matern_model)
    with pytest.raises(InputError, match="same residual model"):
        job(psis, gaussian_model)
    with pytest.raises(InputError, match="compare_run reads 30 steps of 0.2 s, the run 20"):
        job(psis, replace(matern_model, context_steps=30))
    assert job(psis, matern_model).comparison is not None
