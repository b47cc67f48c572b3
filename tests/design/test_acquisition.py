from functools import cache

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from asbc.config import CONF, build, compose
from asbc.design.acquisition import RandomAcquisition
from asbc.design.joint import JointAcquisition, ThetaAcquisition
from asbc.design.selection import member_uncertainty
from asbc.design.targeted import TargetedAcquisition
from asbc.errors import InputError
from asbc.training.settings import own_values
from asbc.utils.random import stream

ROUNDS = [0.0, 0.5, 0.5]
WINDOWS = {"subset_size": 4, "alpha_schedule": ROUNDS}
PROPOSAL = {**WINDOWS, "samples_per_trajectory": 50}
SCORE = {"candidates": 60, "members": 5, "uncertainty_epsilon": 1e-6}
POOL = {
    "window_candidates": 40,
    "pairs_per_theta": 4,
    "neighbours": 3,
    "neighbour_epsilon": 1e-3,
    "gamma": 0.1,
    "tau_leader": 1.0,
    "tau_theta": 1.0,
}
JOINT = {"name": "joint", "lambda_schedule": ROUNDS, **PROPOSAL, **SCORE, **POOL}


TARGETED = {
    "name": "targeted",
    "subset_size": 4,
    "prior_share": 0.3,
    "samples_per_trajectory": 50,
    "synthetic_share": 0.5,
    "cell_share": 0.5,
    "sobol": True,
    "candidates": 5,
    "uniform_share": 0.5,
    "members": 5,
    "surrogate_pairs": 100,
    "known_draws": 3,
    "known_share": 0.5,
}


@cache
def acquisition_of(strategy: str) -> dict:
    """The config section of a strategy, plain values."""
    cfg = compose("train", [f"acquisition={strategy}"])
    return OmegaConf.to_container(cfg.acquisition, resolve=True)


STRATEGIES = {
    "joint": JointAcquisition(**JOINT),
    "prior_only": JointAcquisition(**JOINT | {"lambda_schedule": None}),
    "theta_only": ThetaAcquisition(name="theta_only", lambda_schedule=ROUNDS, **PROPOSAL, **SCORE),
    "random": RandomAcquisition(name="random", **WINDOWS),
    "targeted": TargetedAcquisition(**TARGETED),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_plan_is_a_function_of_seed_and_round(name, posterior, space, kept):
    strategy = STRATEGIES[name]
    plans = [strategy.plan(round, posterior, space, kept) for round in (1, 1, 2)]
    first, again, other = (plan.take(20) for plan in plans)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.theta, other.theta)
    assert space.prior.contains(first.theta).all()
    assert first.window_id.max() < len(space.bank)


@pytest.mark.parametrize("name", STRATEGIES)
def test_replacements_are_new_pairs(name, posterior, space, kept):
    plan = STRATEGIES[name].plan(1, posterior, space, kept)
    parts = [plan.take(15), plan.take(10)]
    rows = torch.cat([torch.cat([p.theta, p.window_id[:, None].float()], dim=1) for p in parts])
    assert len(rows.unique(dim=0)) == 25


def test_theta_only_takes_the_most_uncertain_first(posterior, space, kept):
    strategy = STRATEGIES["theta_only"]
    plan = strategy.plan(1, posterior, space, kept)
    taken = plan.take(60)
    alpha = member_uncertainty(taken.theta, 1, posterior, space, 5, 1e-6)
    assert (alpha.diff() <= 1e-9).all()
    with pytest.raises(InputError, match="acquisition.candidates"):
        plan.take(1)


def test_joint_picks_high_scores_and_logs_quantiles(posterior, space, kept):
    plan = STRATEGIES["joint"].plan(1, posterior, space, kept)
    assert {"lambda", "alpha", "leak_rate", "score_q05", "score_q50", "score_q95"} <= set(
        plan.diagnostics
    )
    assert plan.diagnostics["score_q05"] <= plan.diagnostics["score_q50"]
    assert set(plan.seconds) == {"propose", "score"}
    picked = member_uncertainty(plan.take(240).theta[:20], 1, posterior, space, 5, 1e-6)
    assert len(picked) == 20
    with pytest.raises(InputError, match="pool has no candidate left after 240"):
        plan.take(1)


def test_prior_only_differs_from_joint_in_the_proposal_alone(posterior, space, kept):
    plan = STRATEGIES["prior_only"].plan(1, posterior, space, kept)
    assert plan.diagnostics["lambda"] == 1.0
    assert plan.take(30).log_ratio.abs().max() == 0


def test_random_pairs_are_prior_draws_with_uniform_windows(posterior, space, kept):
    pairs = STRATEGIES["random"].plan(1, posterior, space, kept).take(20_000)
    uniform = (pairs.theta[:, 0] <= space.prior.icdf(torch.full((6,), 0.3))[0]).float().mean()
    assert abs(uniform - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 20_000)
    synthetic = space.bank.is_synthetic(pairs.window_id).float().mean()
    assert abs(synthetic - 0.5) < 4 * np.sqrt(0.25 / 20_000)
    counts = torch.bincount(pairs.window_id, minlength=len(space.bank)).double()
    real = len(space.bank.real.gap)
    expected = torch.cat(
        [
            torch.full((real,), 10_000 / real),
            torch.full((len(space.bank) - real,), 10_000 / (len(space.bank) - real)),
        ]
    )
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < len(expected) + 5 * np.sqrt(2 * len(expected))


def test_theta_distances_are_in_prior_standard_deviations(space):
    draws = space.prior.sample(100_000, stream(0, "scale"))
    np.testing.assert_allclose(space.theta_scale, draws.std(dim=0), rtol=0.01)


NUMBERS = [
    (file.stem, name)
    for file in sorted((CONF / "acquisition").glob("*.yaml"))
    for name, value in acquisition_of(file.stem).items()
    if isinstance(value, int | float)
]


@pytest.mark.parametrize(("strategy", "field"), NUMBERS)
def test_no_number_of_a_strategy_may_be_negative(strategy, field):
    config = acquisition_of(strategy)
    build(config)
    with pytest.raises(InputError, match=f"acquisition.{field}=-1; expected "):
        build({**config, field: -1})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("alpha_schedule", [0, 2], r"acquisition.alpha_schedule\[1\]=2; expected a share between"),
        ("alpha_schedule", [], "acquisition.alpha_schedule has 0 entries, needs 1 or more"),
        ("lambda_schedule", 0.5, "acquisition.lambda_schedule=0.5; expected a list of shares"),
        ("lambda_schedule", ["a"], r"acquisition.lambda_schedule\[0\]=a; expected a share"),
        ("correction", "maybe", "acquisition.correction=maybe; expected one of none, importance"),
        ("correction", "importance", "which candidates joint picks has no density to divide by"),
    ],
)
def test_schedules_and_names_are_checked_when_a_strategy_is_built(field, value, message):
    with pytest.raises(InputError, match=message):
        JointAcquisition(**JOINT | {field: value})


def test_an_experiment_may_name_sizes_that_only_other_strategies_have():
    section = {**acquisition_of("joint"), **acquisition_of("random")}
    built = build(own_values(RandomAcquisition, section))
    assert built == build(acquisition_of("random"))
    with pytest.raises(Exception, match="unexpected keyword argument 'chunks'"):
        build(own_values(RandomAcquisition, {**section, "chunks": 3}))
