"""Scale symmetry: scaled simulations are simulations, and prior draws stay prior draws."""

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.errors import InputError
from asbc.simulator import Simulator
from asbc.simulator.kinematics import PaperKinematics
from asbc.simulator.laws import IDM
from asbc.simulator.symmetry import ScaleSymmetry, scale_symmetry
from asbc.utils.random import stream

COUNT, STEPS = 2000, 75


def make(model: str, residual: str) -> Simulator:
    return build(compose("train", [f"model={model}", f"residual={residual}"]).simulator)


def simulate(simulator: Simulator, theta, scale=1.0):
    """The same residuals, in units of sigma, whatever theta and the scale are."""
    rng = stream(1, "leaders")
    wave = np.cumsum(0.2 * rng.standard_normal((len(theta), STEPS)), axis=1)
    leader = torch.from_numpy(np.clip(8 + wave, 0, None)).float() * scale
    gap = torch.full((len(theta),), 15.0) * scale
    return simulator.rollout(theta, leader, gap, leader[:, 0], stream(2, "residuals"))


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
@pytest.mark.parametrize("model", ["idm", "sumo_idm", "idm_leader_acceleration", "fvd"])
@pytest.mark.parametrize("k", [0.9, 1.1])
def test_a_scaled_simulation_is_the_simulation_of_the_scaled_driver(model, residual, k):
    simulator = make(model, residual)
    theta = simulator.prior.sample(COUNT, stream(0, "theta"))
    before = simulate(simulator, theta)
    scaled = ScaleSymmetry(simulator).scale(
        theta, before.states, torch.full((COUNT,), float(np.log(k)))
    )
    usable = scaled.moved & ~before.collided
    assert 0.3 < float(usable.double().mean()) < 1  # some are at a bound or leave the support
    again = simulate(simulator, scaled.theta, scale=k).states
    error = (again - scaled.states)[usable].abs().amax(dim=(1, 2))
    assert float(error.max()) < 2e-3  # of gaps up to hundreds of metres, in float32
    assert float(error.median()) < 2e-5


def test_rows_that_cannot_be_scaled_exactly_are_as_they_were():
    simulator = make("idm", "gaussian")
    theta = simulator.prior.sample(COUNT, stream(0, "theta"))
    theta[:5] = simulator.prior.high
    states = simulate(simulator, theta).states
    scaled = ScaleSymmetry(simulator).scale(theta, states, torch.full((COUNT,), 0.1))
    left = ~scaled.moved
    assert bool(left[:5].all())
    assert torch.equal(scaled.theta[left], theta[left])
    assert torch.equal(scaled.states[left], states[left])
    assert not bool(scaled.log_weight[left].any())
    acceleration = scaled.states[scaled.moved][..., 1].diff(dim=-1) / simulator.dt
    assert float(acceleration.max()) < 5 and float(acceleration.min()) > -9


def test_weighted_scaled_draws_follow_the_prior():
    """Shares of the prior's own quintiles, each parameter, within five standard errors."""
    simulator = make("idm", "gaussian")
    count = 200_000
    theta = simulator.prior.sample(count, stream(0, "theta"))
    states = torch.full((count, 2, 3), 10.0)  # touches no bound
    rng = stream(1, "factors")
    log_k = torch.from_numpy(0.3 * (2 * rng.random(count) - 1)).float()
    scaled = ScaleSymmetry(simulator).scale(theta, states, log_k)
    weight = scaled.log_weight.double().exp()
    share = torch.special.ndtr(simulator.prior.to_normal(scaled.theta).double())
    for column in share.unbind(1):
        for fifth in range(5):
            inside = ((column >= fifth / 5) & (column < (fifth + 1) / 5)).double()
            estimate = (weight * inside).mean()
            error = (weight * inside).std() / count**0.5
            assert abs(float(estimate) - 0.2) < 5 * float(error)
    # Without the weights the draws are visibly others.
    inside = (share[:, 0] < 0.2).double()
    assert abs(float(inside.mean()) - 0.2) > 6 * float(inside.std()) / count**0.5


class Plain:
    """A law that says nothing of scales."""

    parameters = IDM.parameters
    acceleration = IDM.acceleration
    equilibrium_gap = IDM.equilibrium_gap


def test_a_law_without_the_symmetry_is_refused_by_name():
    ours = make("idm", "gaussian")
    simulator = Simulator(Plain(), ours.residual, ours.prior, PaperKinematics())
    with pytest.raises(InputError, match="training.symmetry: Plain has no scale symmetry"):
        ScaleSymmetry(simulator)
    assert scale_symmetry(simulator) is None
    assert scale_symmetry(ours) is not None
