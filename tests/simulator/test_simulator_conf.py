"""Every config file of the simulator composes and builds what the paper's appendix says."""

import math

import pytest
import torch

from asbc.config import CONF
from asbc.errors import InputError
from asbc.simulator.kinematics import LeaderAccelerationKinematics, PaperKinematics, SumoKinematics
from asbc.simulator.laws import IDM, SumoIDM
from asbc.simulator.residuals import NoResidual
from asbc.utils.random import stream


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize(
    "group, name",
    [(g, n) for g in ("model", "residual", "prior") for n in names(g)],
)
def test_every_file_builds_a_simulator_that_runs(build_simulator, group, name):
    if group == "model" and name.startswith("sumo_") and name != "sumo_idm":
        pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
    simulator = build_simulator(**{group: name})
    theta = simulator.prior.sample(20, stream(0, name))
    leader = torch.full((20, 30), 8.0)
    rollout = simulator.rollout(theta, leader, leader[:, 0] * 3, leader[:, 0], stream(1, name))
    assert rollout.states.isfinite().all()
    if isinstance(simulator.residual, NoResidual):
        with pytest.raises(InputError, match="likelihood"):
            simulator.log_likelihood(theta, rollout.states)
        return
    log_likelihood = simulator.log_likelihood(theta, rollout.states)
    assert log_likelihood.isfinite().all()
    others = simulator.prior.sample(20, stream(2, name))
    assert log_likelihood.mean() > simulator.log_likelihood(others, rollout.states).mean()


def test_the_paper_prior(build_simulator):
    prior = build_simulator("matern").prior
    assert prior.names == ("v0", "s0", "T", "a_max", "b", "sigma", "ell")
    assert prior.units == ("m/s", "m", "s", "m/s^2", "m/s^2", "m/s^2", "s")
    assert [m.centre for m in prior.marginals] == [33.3, 2.0, 1.6, 1.5, 1.67, 0.3, 3.0]
    assert [m.log_scale for m in prior.marginals] == [1, 1, 1, 1, 1, 0.5, 0.5]
    assert prior.low[:5].tolist() == pytest.approx([20, 1, 0.6, 0.2, 0.4])
    assert prior.high[:5].tolist() == pytest.approx([40, 6, 4.5, 3.5, 4.0])


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_residual_ranges_are_four_log_scales(build_simulator, residual):
    for marginal in build_simulator(residual).prior.marginals[5:]:
        ratio = math.exp(4 * marginal.log_scale)
        assert marginal.low == pytest.approx(marginal.centre / ratio, rel=1e-4)
        assert marginal.high == pytest.approx(marginal.centre * ratio, rel=1e-4)


def test_gaussian_scale_is_centred_at_log_minus_one(build_simulator):
    assert build_simulator("gaussian").prior.marginals[5].centre == pytest.approx(math.exp(-1))


def test_congested_prior_only_lowers_the_desired_speed(build_simulator):
    paper = build_simulator(prior="paper").prior
    congested = build_simulator(prior="congested").prior
    assert congested.low[0] == 8
    assert torch.equal(congested.low[1:], paper.low[1:])
    assert torch.equal(congested.high, paper.high)


def test_classes(build_simulator):
    assert type(build_simulator().law) is IDM
    assert type(build_simulator(model="sumo_idm").law) is SumoIDM
    assert build_simulator(model="sumo_idm").law.delta == 4
    assert build_simulator("matern").residual.nugget == 1e-3
    for name, kind in {
        "idm": PaperKinematics,
        "idm_leader_acceleration": LeaderAccelerationKinematics,
        "sumo_idm": SumoKinematics,
    }.items():
        assert type(build_simulator(model=name).kinematics) is kind
