"""What the encoder reads."""

import pytest
import torch

from asbc.errors import InputError
from asbc.posterior.encoder import LocalGlobalEncoder, States, StatesAndActions
from asbc.posterior.posterior import Posterior

DT = 0.5


def test_states_are_left_alone():
    states = torch.randn(2, 5, 3)
    inputs, lengths = States()(states, None)
    assert inputs is states and lengths is None


@pytest.mark.parametrize("differences", [False, True])
def test_actions_are_those_of_the_equations_of_motion(differences):
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    leader = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    start = torch.full((4, 1), 10.0, dtype=torch.float64)
    speed = torch.cat([start, start + DT * own.cumsum(1)], 1)
    ahead = torch.cat([start, start + DT * leader.cumsum(1)], 1)
    gap = torch.linspace(1, 30, 40, dtype=torch.float64).view(4, 10)
    features = StatesAndActions(DT, differences)
    inputs, _ = features(torch.stack([gap, speed, speed - ahead], -1), None)
    jerk, snap = torch.zeros_like(own), torch.zeros_like(own)
    for t in range(1, 9):
        jerk[:, t] = (own[:, t] - own[:, t - 1]) / DT
    for t in range(2, 9):
        snap[:, t] = (jerk[:, t] - jerk[:, t - 1]) / DT
    signed_log = [torch.asinh(x / small) for x, small in ((jerk, 0.1), (snap, 0.2))]
    state = [gap[:, :-1], speed[:, :-1], (speed - ahead)[:, :-1]]
    actions = [own, leader, gap[:, :-1].log(), *(signed_log if differences else [])]
    expected = torch.stack([*state, *actions], -1)
    assert inputs.shape == (4, 9, features.size)
    torch.testing.assert_close(inputs, expected)


def test_padding_reaches_no_valid_step():
    features = StatesAndActions(DT, differences=True)
    states, padded = torch.rand(2, 6, 3), torch.full((2, 9, 3), torch.nan)
    padded[:, :6] = states
    inputs, _ = features(states, None)
    with_padding, lengths = features(padded, torch.tensor([6, 6]))
    assert lengths.tolist() == [5, 5]
    assert torch.equal(with_padding[:, :5], inputs)


def test_other_states_are_refused():
    with pytest.raises(InputError, match="states"):
        StatesAndActions(DT)(torch.rand(2, 6, 4), None)


@pytest.mark.parametrize(
    ("features", "size"),
    [(None, 3), (States(2), 2), (StatesAndActions(DT), 6), (StatesAndActions(DT, True), 8)],
)
def test_the_encoder_has_the_size_of_its_features(features, size):
    encoder = LocalGlobalEncoder(features)
    assert encoder.input_dim == encoder.features.size == size


def test_an_encoder_of_another_size_is_refused(make_estimator, box_prior):
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    good = make_estimator(prior).posterior
    encoder = LocalGlobalEncoder()
    encoder.features = StatesAndActions(DT)
    with pytest.raises(InputError, match="encoder.input_dim=3, but its features have 6"):
        Posterior(encoder, good.flow, good.transform, prior)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: States(0), "encoder.features.size=0; expected a whole number of at least 1"),
        (lambda: StatesAndActions(0.0), "encoder.features.dt=0.0; expected a number above 0"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(InputError, match=message):
        make()
