"""Refined posteriors against exact ones, with good networks and with spoiled ones."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.baselines.settings import NutsSettings
from asbc.calibration.importance import log_weights, smooth
from asbc.calibration.model import Model
from asbc.calibration.nuts import AutoRefinement
from asbc.calibration.refinement import NoRefinement, PsisRefinement
from asbc.data.pairset import PairSet
from asbc.utils.checks import InputError
from asbc.utils.stopwatch import Stopwatch

Simulate = Callable[..., tuple[torch.Tensor, PairSet]]


def spoiled(model: Model, shift: float) -> Model:
    """The same network, its answers moved by `shift` prior standard deviations of u."""
    posterior = copy.deepcopy(model.posterior)
    posterior.posterior.u_mean += shift * posterior.posterior.u_std
    return replace(model, posterior=posterior)


def exact_moments(model: Model, pairs: PairSet) -> tuple[torch.Tensor, torch.Tensor]:
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
    refined = PsisRefinement(proposals=4000)(model, pairs, 500, 0, Stopwatch())
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
    refinement = PsisRefinement(proposals=400)
    together = refinement(gaussian_model, pairs, 100, 3, Stopwatch())
    alone = refinement(gaussian_model, pairs.select([4]), 100, 3, Stopwatch())
    torch.testing.assert_close(alone.theta[0], together.theta[4], rtol=1e-5, atol=1e-5)
    other_seed = refinement(gaussian_model, pairs.select([4]), 100, 4, Stopwatch())
    assert float((other_seed.theta - alone.theta).abs().max()) > 0.1


def test_unrefined_draws_are_those_of_the_evaluation(
    gaussian_model: Model, simulate_pairs: Simulate
) -> None:
    from asbc.evaluation.draws import sample_pairs

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
    refined = AutoRefinement(proposals=500)(gaussian_model, pairs, 50, 0, watch)
    doubtful = refined.columns["k_hat"] > 0.7
    assert 0 < doubtful.sum() < 20
    assert sent == [name for name, d in zip(pairs.pair_id, doubtful, strict=True) if d]
    assert (refined.route == np.where(doubtful, "nuts", "psis")).all()
    assert bool((refined.theta[torch.from_numpy(doubtful)] == 3.0).all())
    converged = refined.columns["nuts_converged"]
    assert converged[doubtful].tolist() == [False] + [True] * (doubtful.sum() - 1)
    assert set(converged[~doubtful]) == {None}
    assert set(watch.seconds) == {"amortized", "psis", "nuts"}


def test_too_few_proposals_are_refused() -> None:
    with pytest.raises(InputError, match="refine.proposals=50"):
        PsisRefinement(proposals=50)
    with pytest.raises(InputError, match="refine.proposals=50"):
        AutoRefinement(proposals=50)


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_psis_agrees_with_nuts_better_than_the_raw_draws(
    residual: str, request: pytest.FixtureRequest, simulate_pairs: Simulate
) -> None:
    model: Model = request.getfixturevalue(f"{residual}_model")
    _, pairs = simulate_pairs(model.simulator, 16)
    raw = NoRefinement()(model, pairs, 500, 0, Stopwatch())
    refined = PsisRefinement(proposals=4000)(model, pairs, 500, 0, Stopwatch())
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
