"""A simulator and a heterogeneous, correlated population for the population's tests."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.population import Population
from asbc.simulator import Simulator

CENTRE = torch.tensor([30.0, 2.0, 1.5, 1.2, 1.8, 0.3, 3.0])


def build_simulator(residual: str) -> Simulator:
    """The configured simulator, with a prior that allows drivers without noise."""
    quiet = "+prior.overrides.sigma.low=1e-9"
    return build(compose("train", [f"residual={residual}", quiet]).simulator)


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
