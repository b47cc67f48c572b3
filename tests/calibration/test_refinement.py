"""Refined posteriors against exact ones, with good networks and with spoiled ones."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.calibration.calibrate import CalibrationSettings, Job
from asbc.calibration.psis import Weighting
from asbc.calibration.refinement import AutoRefinement, NoRefinement, PsisRefinement
from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.exact.diagnostics import NutsSettings
from asbc.simulator import Simulator
from asbc.simulator.laws import SumoIDM
from asbc.simulator.weighted_draws import log_weights, smooth
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch

Simulate = Callable[..., tuple[torch.Tensor, Pairs]]
# The network's own draws, weighted; nothing is drawn again.
PLAIN = Weighting(proposals=4000, adaptive_rounds=0)


def spoiled(model: Model, shift: float) -> Model:
    """The same network, its answers moved by `shift` prior standard deviations of u."""
    posterior = copy.deepcopy(model.posterior)
    posterior.u_mean += shift * posterior.u_std
    return replace(model, posterior=posterior)


def exact_moments(model: Model, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and sd (driver, dim) by weighting prior draws: no network and no NUTS."""
    theta = model.simulator.prior.sample(30_000, np.random.default_rng(17))
    moments = []
    for states in model.contexts(pairs):
        weight = model.simulator.log_likelihood(theta, states).softmax(0)[:, None]
        mean = (weight * theta).sum(0)
        moments.append((mean, (weight * (theta - mean).square()).sum(0).sqrt()))
    mean, sd = zip(*moments, strict=True)
    return torch.stack(mean), torch.stack(sd)


def distance(theta: torch.Tensor, mean: torch.Tensor, sd: torch.Tensor) -> float:
    """How far draws are from exact moments: means in units of sd, and log ratios of sd."""
    theta = theta.double()
    location = ((theta.mean(1) - mean) / sd).abs().mean()
    scale = (theta.std(1) / sd).log().abs().mean()
    return float(location + scale)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_weighting_brings_draws_closer_to_the_exact_posterior(
    gaussian_model: Model, simulate_pairs: Simulate, shift: float
) -> None:
    model = spoiled(gaussian_model, shift)
    _, pairs = simulate_pairs(model.simulator, 30)
    mean, sd = exact_moments(model, pairs)
    raw = NoRefinement()(model, pairs, 500, 0, Stopwatch())
    refined = PsisRefinement(weighting=PLAIN)(model, pairs, 500, 0, Stopwatch())
    trusted = torch.from_numpy(refined.columns["k_hat"] <= 0.7)
    assert int(trusted.sum()) >= 10
    errors = [distance(r.theta[trusted], mean[trusted], sd[trusted]) for r in (raw, refined)]
    assert errors[1] < 0.75 * errors[0]


def test_k_hat_rises_where_the_network_is_wrong(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 60)
    medians, effective = [], []
    for shift in (0.0, 0.5, 1.0):
        model = spoiled(gaussian_model, shift)
        theta, leak = model.sample(pairs, 1000, seed=0)
        weight = log_weights(model.posterior, model.simulator, theta, model.contexts(pairs))
        result = smooth(weight, leak)
        medians.append(float(result.k_hat.median()))
        effective.append(float(result.effective_draws.median()))
    assert medians[0] < 0.7 < medians[1] < medians[2]
    assert effective[0] > 2 * effective[1] > 2 * effective[2]


def test_a_driver_is_refined_the_same_in_any_company(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 9)
    refinement = PsisRefinement(weighting=Weighting(proposals=400, effective_draws=60))
    together = refinement(gaussian_model, pairs, 100, 3, Stopwatch())
    alone = refinement(gaussian_model, pairs.select([4]), 100, 3, Stopwatch())
    torch.testing.assert_close(alone.theta[0], together.theta[4], rtol=1e-5, atol=1e-5)
    other_seed = refinement(gaussian_model, pairs.select([4]), 100, 4, Stopwatch())
    assert float((other_seed.theta - alone.theta).abs().max()) > 0.1


def test_unrefined_draws_are_those_of_the_evaluation(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    from asbc.evaluation.window_draws import sample_pairs

    _, pairs = simulate_pairs(gaussian_model.simulator, 40)
    ours = NoRefinement()(gaussian_model, pairs, 50, 7, Stopwatch()).theta
    theirs = sample_pairs(gaussian_model.posterior, pairs, gaussian_model.context_steps, 50, 7)
    torch.testing.assert_close(ours, theirs.theta, rtol=1e-4, atol=1e-4)


def test_auto_sends_exactly_the_doubtful_drivers_to_nuts(
    gaussian_model: Model, simulate_pairs: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pairs = simulate_pairs(gaussian_model.simulator, 20)
    sent: list[str] = []

    def sampler(self, model, chosen, samples, seed):  # type: ignore[no-untyped-def]
        sent.extend(chosen.pair_id)
        theta = torch.full((len(chosen), samples, model.simulator.dim), 3.0)
        return theta, np.arange(len(chosen)) > 0

    monkeypatch.setattr(AutoRefinement, "_sample", sampler)
    watch = Stopwatch()
    plain = Weighting(proposals=500, adaptive_rounds=0, effective_draws=50)
    refined = AutoRefinement(weighting=plain)(gaussian_model, pairs, 50, 0, watch)
    doubtful = refined.columns["k_hat"] > 0.7
    assert 0 < doubtful.sum() < 20
    assert sent == [name for name, d in zip(pairs.pair_id, doubtful, strict=True) if d]
    assert (refined.route == np.where(doubtful, "nuts", "psis")).all()
    assert bool((refined.theta[torch.from_numpy(doubtful)] == 3.0).all())
    converged = refined.columns["nuts_converged"]
    assert converged[doubtful].tolist() == [False] + [True] * (doubtful.sum() - 1)
    assert set(converged[~doubtful]) == {None}
    assert set(watch.seconds) == {"amortized", "psis", "adapted", "nuts"}


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_adapted_draws_find_the_posterior_a_wrong_network_missed(
    residual: str, request: pytest.FixtureRequest, simulate_pairs: Simulate
) -> None:
    model = spoiled(request.getfixturevalue(f"{residual}_model"), 1.0)
    _, pairs = simulate_pairs(model.simulator, 12)
    refined = PsisRefinement()(model, pairs, 1000, 0, Stopwatch())
    assert (refined.columns["k_hat_network"] > 0.7).mean() > 0.8
    assert (refined.columns["k_hat"] <= 0.7).all() and (refined.route == "adapted").sum() > 9
    assert refined.columns["effective_draws"].min() >= 200
    mean, sd = exact_moments(model, pairs)
    raw = NoRefinement()(model, pairs, 1000, 0, Stopwatch())
    errors = [distance(r.theta, mean, sd) for r in (raw, refined)]
    # What is left is the error of the reference and of 1000 draws.
    assert errors[1] < 0.35 < 0.7 < errors[0]


def test_adapted_evidence_agrees_with_plain_prior_sampling(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    model = spoiled(gaussian_model, 1.0)
    _, pairs = simulate_pairs(model.simulator, 4)
    refined = PsisRefinement()(model, pairs, 100, 0, Stopwatch())
    theta = model.simulator.prior.sample(40_000, np.random.default_rng(8))
    for i, states in enumerate(model.contexts(pairs)):
        log_lik = model.simulator.log_likelihood(theta, states)
        weight = (log_lik - log_lik.max()).exp()
        reference = float(log_lik.max() + weight.mean().log())
        error = float(weight.std() / weight.mean()) / len(weight) ** 0.5
        error = np.hypot(error, refined.columns["log_evidence_error"][i])
        assert abs(refined.columns["log_evidence"][i] - reference) < 4 * error


@pytest.mark.parametrize(
    ("field", "value"), [("proposals", 50), ("adaptive_rounds", -1), ("effective_draws", 900)]
)
def test_weightings_that_cannot_work_are_refused(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"refine.weighting.{field}={value}"):
        Weighting(**{field: value})  # type: ignore[arg-type]


def test_auto_refuses_a_law_that_nuts_does_not_know(gaussian_model: Model) -> None:
    ours = gaussian_model.simulator
    other = Simulator(SumoIDM(), ours.residual, ours.prior, ours.kinematics)
    with pytest.raises(InputError, match="refine=auto: NUTS knows the IDM only, not SumoIDM"):
        Job(
            model=replace(gaussian_model, simulator=other),
            refinement=AutoRefinement(),
            settings=CalibrationSettings(),
        )


def test_weights_do_not_undo_what_a_robust_run_allowed_for(gaussian_model: Model) -> None:
    robust = replace(gaussian_model, robust=True)
    with pytest.raises(InputError, match="trained with robust contexts"):
        Job(model=robust, refinement=PsisRefinement(), settings=CalibrationSettings())
    Job(model=robust, refinement=NoRefinement(), settings=CalibrationSettings())


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_psis_agrees_with_nuts_better_than_the_raw_draws(
    residual: str, request: pytest.FixtureRequest, simulate_pairs: Simulate
) -> None:
    model: Model = request.getfixturevalue(f"{residual}_model")
    _, pairs = simulate_pairs(model.simulator, 16)
    raw = NoRefinement()(model, pairs, 500, 0, Stopwatch())
    refined = PsisRefinement(weighting=PLAIN)(model, pairs, 500, 0, Stopwatch())
    # k-hat cannot reach the limit: every driver goes to NUTS.
    nuts = AutoRefinement(
        max_k_hat=-100.0, drivers_at_once=16, nuts=NutsSettings(warmup=500, draws=500)
    )
    exact = nuts(model, pairs, 2000, 0, Stopwatch())
    assert (exact.route == "nuts").all() and exact.columns["nuts_converged"].mean() > 0.7
    mean, sd = exact.theta.double().mean(1), exact.theta.double().std(1)
    trusted = torch.from_numpy(refined.columns["k_hat"] <= 0.7)
    assert int(trusted.sum()) >= 5
    errors = [distance(r.theta[trusted], mean[trusted], sd[trusted]) for r in (raw, refined)]
    assert errors[1] < 0.75 * errors[0]
