"""A simulator and a heterogeneous, correlated population for the population's tests."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from asbc.population import Population
from asbc.simulator import Prior, Simulator
from asbc.simulator.gaussian import GaussianResidual
from asbc.simulator.idm import IDM
from asbc.simulator.kinematics import PaperKinematics
from asbc.simulator.matern import MaternResidual

RANGES = {
    "v0": ("m/s", 33.3, 20.0, 40.0),
    "s0": ("m", 2.0, 1.0, 6.0),
    "T": ("s", 1.6, 0.6, 4.5),
    "a_max": ("m/s^2", 1.5, 0.2, 3.5),
    "b": ("m/s^2", 1.67, 0.4, 4.0),
    "sigma": ("m/s^2", 0.3, 1e-9, 2.0),
    "ell": ("s", 3.0, 0.4, 22.0),
}
CENTRE = torch.tensor([30.0, 2.0, 1.5, 1.2, 1.8, 0.3, 3.0])


def build_simulator(residual: str) -> Simulator:
    process = {"gaussian": GaussianResidual, "matern": MaternResidual}[residual]()
    marginals = {
        name: {"unit": unit, "centre": centre, "log_scale": 1.0, "low": low, "high": high}
        for name, (unit, centre, low, high) in RANGES.items()
    }
    law = {name: marginals[name] for name in IDM.parameters}
    hyper = {name: marginals[name] for name in process.parameters}
    return Simulator(IDM(), process, Prior(law, hyper), PaperKinematics())


def build_population(simulator: Simulator, drivers: int, draws: int) -> Population:
    """Drivers spread around typical values, T and s0 anticorrelated, a_max and b correlated."""
    rng = np.random.default_rng(11)
    z = torch.from_numpy(rng.standard_normal((drivers, draws, simulator.dim))).float()
    z[..., 1] = -0.8 * z[..., 2] + 0.6 * z[..., 1]
    z[..., 4] = 0.7 * z[..., 3] + 0.714 * z[..., 4]
    theta = CENTRE[: simulator.dim] * torch.exp(0.15 * z)
    theta = theta.clamp(simulator.prior.low, simulator.prior.high)
    return Population.pool(simulator.prior, theta)


@pytest.fixture(scope="session")
def simulator_of() -> Callable[[str], Simulator]:
    return build_simulator


@pytest.fixture(scope="session")
def population_of() -> Callable[..., Population]:
    return build_population
