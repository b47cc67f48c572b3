"""The Bayesian methods end to end, on few drivers and few draws."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from asbc.baselines.floors import PriorPredictive
from asbc.baselines.hierarchical import Hierarchical
from asbc.baselines.method import run_info
from asbc.baselines.pooled import BIDM, MAIDM
from asbc.baselines.unpooled import Unpooled, require_same_posterior
from asbc.config import compose
from asbc.data.pairs_file import as_source
from asbc.errors import InputError
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.run import Run
from asbc.simulator.matern import MaternResidual
from asbc.simulator.squared_exponential import SquaredExponentialResidual

TINY = NutsSettings(chains=2, warmup=150, draws=100)


def test_missing_packages_are_named(monkeypatch, task_of):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numpyro" else object()
    )
    with pytest.raises(InputError, match=r"needs numpyro: pip install -e '\.\[baselines\]'"):
        require_extra()
    for method in (BIDM(), MAIDM(), Unpooled(), Hierarchical()):
        with pytest.raises(InputError, match="needs numpyro"):
            method.fit(task_of("gaussian"))


def test_draws_are_evenly_spaced_over_all_chains():
    theta = np.arange(40.0).reshape(4, 10, 1)
    np.testing.assert_array_equal(take_draws(theta, 4)[:, 0], [0, 13, 26, 39])


@pytest.mark.slow
def test_b_idm_finds_the_common_parameters(task_of, typical):
    fitted = BIDM(nuts=TINY).fit(task_of("gaussian", known=12))
    assert fitted.theta.shape == (2, 20, 6)
    torch.testing.assert_close(fitted.theta[0], fitted.theta[1])  # pooled
    draws = fitted.inference["posterior"]["theta"].values.reshape(-1, 6)
    distance = (draws.mean(0) - typical["gaussian"].numpy()) / draws.std(0)
    assert np.abs(distance).max() < 4
    assert draws[:, 5].std() < 0.02  # 948 steps pin down sigma
    assert fitted.convergence.draws == 200 and not fitted.convergence.converged  # ESS < 400


def test_residual_models_must_fit_the_method(task_of):
    with pytest.raises(InputError, match="use residual=gaussian"):
        BIDM().fit(task_of("matern"))
    with pytest.raises(InputError, match="use residual=matern"):
        MAIDM().fit(task_of("gaussian"))
    with pytest.raises(InputError, match="baseline.kernel=rbf; expected one of"):
        MAIDM(kernel="rbf")
    with pytest.raises(InputError, match="baseline.prior=flat; expected one of"):
        BIDM(prior="flat")
    with pytest.raises(InputError, match="baseline.slice_seconds=0; expected a number above 0"):
        MAIDM(slice_seconds=0)


def test_ma_idm_predicts_with_its_own_kernel(task_of):
    base = task_of("matern").simulator
    smooth = MAIDM()._simulator(base)
    assert isinstance(smooth.residual, SquaredExponentialResidual)
    assert smooth.parameter_names == (*base.parameter_names, "white")
    assert smooth.prior.marginals[:7] == base.prior.marginals
    assert isinstance(MAIDM(kernel="matern52")._simulator(base).residual, MaternResidual)


@pytest.mark.slow
def test_ma_idm_finds_kernel_and_parameters(task_of, typical):
    task = task_of("matern", known=20, steps=200)
    fitted = MAIDM(kernel="matern52", nuts=TINY).fit(task)
    draws = fitted.inference["posterior"]["theta"].values.reshape(-1, 7)
    distance = (draws.mean(0) - typical["matern"].numpy()) / draws.std(0)
    assert np.abs(distance).max() < 4


def test_unpooled_may_know_the_drivers_earlier_pairs(task_of):
    """Pairs 0 and 2 are one driver's; the second of them knows both, the first only itself."""
    task = task_of("gaussian", context_steps=60)
    pairs = replace(task.known.select([0, 1, 2]), follower=("r/a", "r/b", "r/a"))
    method, steps = Unpooled(context="all", shortest=4.0), task.context_steps
    known = method.known(pairs, [0, 2], steps)
    # 80 samples of the earlier pair: cut from their end, the rest of 20 is long enough.
    rest = 80 - steps
    assert steps == 60 and known.lengths.tolist() == [[60, 0, 0], [60, 60, rest]]
    assert torch.equal(known.states[1, 0], pairs.contexts(60)[2])
    assert torch.equal(known.states[1, 1, :, 0], pairs.pair(0)["gap"][rest:])
    seen = method._seen(task.simulator, pairs, [0, 2], steps)
    assert [len(driver.side) for driver in seen] == [59, 59 + 59 + rest - 1]
    assert torch.equal(Unpooled().known(pairs, [2], steps), pairs.contexts(steps)[2:])
    with pytest.raises(InputError, match="baseline.context=latest; expected first or all"):
        Unpooled(context="latest")


@pytest.mark.slow
def test_unpooled_drivers_do_not_depend_on_each_other(task_of):
    task = task_of("gaussian", test=3)
    side_by_side = Unpooled(drivers=2, nuts=TINY).fit(task)
    alone = Unpooled(drivers=2, drivers_at_once=1, nuts=TINY).fit(task)
    assert side_by_side.theta.shape == (2, 20, 6) and len(side_by_side.pairs) == 2
    torch.testing.assert_close(side_by_side.theta.mean(1), alone.theta.mean(1), rtol=0.2, atol=0.2)
    assert side_by_side.details["seconds_per_driver"] > 0


@pytest.mark.slow
def test_hierarchical_shrinks_towards_the_population(simulators, pairs_of, task_of, typical):
    """Drivers that are all alike: the population is narrow, and so is a new driver's posterior."""
    task = task_of("gaussian", known=15, test=4, steps=200)
    settings = replace(TINY, warmup=500, draws=250)
    hierarchical = Hierarchical(nuts=settings, population_draws=20).fit(task)
    alone = Unpooled(nuts=settings).fit(task)
    groups = hierarchical.inference.groups()
    assert {"posterior", "population_posterior"} <= set(groups)
    spread, exact = hierarchical.theta[..., 2].std(1), alone.theta[..., 2].std(1)
    assert (spread < exact).all()
    mean = hierarchical.inference["population_posterior"]["mean"].mean(("chain", "draw")).values
    centre = task.simulator.prior.from_normal(torch.from_numpy(mean))
    np.testing.assert_allclose(centre[[2, 5]], typical["gaussian"][[2, 5]], rtol=0.15)
    assert task.simulator.prior.contains(hierarchical.theta).all()


def test_the_row_names_method_residual_and_what_sets_it_apart(task_of):
    method = Unpooled()
    overrides = ["baseline=unpooled", "residual=matern", "seed=3", "data=pairs", "prior=congested"]
    overrides += ["baseline.drivers_at_once=4", "nuts.draws=50", "evaluation.samples=10"]
    task = task_of("matern")
    fitted = PriorPredictive().fit(task)
    residual = compose("baseline", ["residual=matern", "baseline=unpooled"]).residual
    source = as_source(task.test, task.simulator.dt, task.context_steps)
    info = run_info(method, fitted, residual, overrides, 3, source)
    assert (info.method, info.kind, info.seed) == ("NUTS per driver (Matérn)", "baseline", 3)
    assert (info.residual, info.residual_label) == ("matern", "Matérn")
    assert (info.trained_on, info.evaluated_on, info.remark) == (2 * (source.description,)) + ("",)
    assert info.variant == ("prior=congested", "nuts.draws=50")


def test_a_run_with_another_posterior_is_refused(tmp_path):
    data = {"dt": 0.2, "context_steps": 75}
    ours = {"model": 1, "residual": {"name": "gaussian"}, "prior": 2, "data": data}

    def run(name, config):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config))
        return Run(tmp_path / name)

    require_same_posterior(run("same", ours | {"data": data | {"path": "elsewhere"}}), ours)
    theirs = ours | {"residual": {"name": "matern"}, "data": data | {"context_steps": 50}}
    with pytest.raises(InputError, match=r"residual, data.context_steps \(its residual is matern"):
        require_same_posterior(run("other", theirs), ours)
