"""Bad input is refused with the argument and the first offending index."""

import math

import pytest
import torch

from asbc.errors import InputError
from asbc.simulator import Prefix, Simulator
from asbc.simulator.laws import IDM, SumoIDM
from asbc.simulator.matern import MaternResidual
from asbc.utils.random import stream


@pytest.fixture
def simulator(build_simulator):
    return build_simulator("matern")


@pytest.fixture
def arguments(simulator):
    return {
        "theta": simulator.prior.sample(4, stream(0)),
        "leader_speed": torch.full((4, 10), 10.0),
        "gap": torch.full((4,), 20.0),
        "speed": torch.full((4,), 10.0),
        "rng": stream(1),
    }


def spoil(index, value):
    def change(tensor):
        tensor[index] = value
        return tensor

    return change


@pytest.mark.parametrize(
    "argument, change, message",
    [
        ("theta", lambda x: x[:, :6], r"theta has shape \(4, 6\), expected \(\*, 7\)"),
        ("theta", lambda x: x[0], r"theta has shape \(7,\), expected \(\*, 7\)"),
        ("theta", spoil((2, 2), 0.5), r"theta\[2, 2\] is 0.5, expected T in \[0.6, 4.5\] s"),
        ("theta", spoil((1, 0), math.nan), r"theta\[1, 0\] is nan, expected v0 in \[20.0, 40.0\]"),
        ("leader_speed", lambda x: x[:3], r"leader_speed has shape \(3, 10\), expected \(4, \*\)"),
        ("leader_speed", lambda x: x[0], r"leader_speed has shape \(10,\)"),
        ("leader_speed", lambda x: x[:, :0], "leader_speed has no time steps"),
        ("leader_speed", spoil((3, 7), math.nan), r"leader_speed\[3, 7\] is nan"),
        ("leader_speed", spoil((0, 1), -2.0), r"leader_speed\[0, 1\] is -2"),
        ("leader_speed", spoil((0, 1), math.inf), r"leader_speed\[0, 1\] is inf"),
        ("gap", lambda x: x[:, None], r"gap has shape \(4, 1\), expected \(4\)"),
        ("gap", spoil(1, -3.0), r"gap\[1\] is -3, expected a positive number \(metres\)"),
        ("gap", spoil(1, 0.0), r"gap\[1\] is 0"),
        ("speed", spoil(2, -0.5), r"speed\[2\] is -0.5, expected 0 or more"),
        ("speed", spoil(2, math.nan), r"speed\[2\] is nan"),
    ],
)
def test_rollout_names_the_argument_and_the_index(simulator, arguments, argument, change, message):
    simulator.rollout(**arguments)
    arguments[argument] = change(arguments[argument])
    with pytest.raises(InputError, match=message):
        simulator.rollout(**arguments)


def test_prefix_is_checked(simulator, arguments):
    observed = torch.ones(4, 5, dtype=torch.bool)
    residuals = torch.zeros(4, 5)
    with pytest.raises(InputError, match=r"prefix.residuals has shape \(3, 5\)"):
        simulator.rollout(**arguments, prefix=Prefix(residuals[:3], observed, 0.01))
    with pytest.raises(InputError, match=r"prefix.observed has shape \(4, 4\)"):
        simulator.rollout(**arguments, prefix=Prefix(residuals, observed[:, 1:], 0.01))
    residuals[2, 3] = math.nan
    with pytest.raises(InputError, match=r"prefix.residuals\[2, 3\] is nan"):
        simulator.rollout(**arguments, prefix=Prefix(residuals, observed, 0.01))
    observed[2, 3] = False
    simulator.rollout(**arguments, prefix=Prefix(residuals, observed, 0.01))


def test_prior_must_fit_law_and_residual(build_simulator):
    gaussian, matern = build_simulator("gaussian"), build_simulator("matern")
    with pytest.raises(InputError, match="law and residual need .*'sigma', 'ell'"):
        Simulator(matern.law, matern.residual, gaussian.prior, matern.kinematics)


def test_likelihood_names_wrong_shapes(simulator):
    theta = simulator.prior.sample(2, stream(0))
    with pytest.raises(InputError, match=r"states has shape \(2, 10, 2\), expected .*, 3\)"):
        simulator.log_likelihood(theta, torch.ones(2, 10, 2))
    with pytest.raises(InputError, match=r"theta has shape \(2, 5\), expected .*, 7\)"):
        simulator.log_likelihood(theta[:, :5], torch.ones(2, 10, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt": 0}, "simulator.dt=0; expected a number above 0"),
        ({"dt": math.nan}, "simulator.dt=nan"),
        (
            {"acceleration_bounds": (1.0, 5.0)},
            r"simulator.acceleration_bounds=\[1.0, 5.0\]",
        ),
        ({"acceleration_bounds": (-9.0, 0.0)}, r"simulator.acceleration_bounds=\[-9.0, 0.0\]"),
    ],
)
def test_settings_are_checked(simulator, options, message):
    parts = (simulator.law, simulator.residual, simulator.prior, simulator.kinematics)
    with pytest.raises(InputError, match=message):
        Simulator(*parts, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaternResidual(-1e-3), "residual.process.nugget=-0.001; expected a number of"),
        (lambda: IDM(0.0), "model.law.delta=0.0; expected a number above 0"),
        (lambda: SumoIDM(math.inf), "model.law.delta=inf"),
    ],
    ids=["nugget", "delta", "SUMO's delta"],
)
def test_parts_check_their_own_values(make, message):
    with pytest.raises(InputError, match=message):
        make()
