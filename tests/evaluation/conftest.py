"""A simulator and a few pairs driven by it, small enough for every test."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.simulator import Prior, Simulator
from asbc.simulator.kinematics import PaperKinematics
from asbc.simulator.laws import IDM
from asbc.simulator.matern import MaternResidual
from asbc.simulator.residuals import GaussianResidual

LAW = {
    "v0": {"unit": "m/s", "centre": 33.3, "log_scale": 1.0, "low": 20.0, "high": 40.0},
    "s0": {"unit": "m", "centre": 2.0, "log_scale": 1.0, "low": 1.0, "high": 6.0},
    "T": {"unit": "s", "centre": 1.6, "log_scale": 1.0, "low": 0.6, "high": 4.5},
    "a_max": {"unit": "m/s^2", "centre": 1.5, "log_scale": 1.0, "low": 0.2, "high": 3.5},
    "b": {"unit": "m/s^2", "centre": 1.67, "log_scale": 1.0, "low": 0.4, "high": 4.0},
}
SIGMA = {"unit": "m/s^2", "centre": 0.3, "log_scale": 0.3, "low": 1e-6, "high": 2.0}
ELL = {"unit": "s", "centre": 3.0, "log_scale": 0.5, "low": 0.4, "high": 22.0}
TYPICAL = [30.0, 2.0, 1.5, 1.2, 1.8]


def make_simulator(residual: str) -> Simulator:
    process = {"gaussian": GaussianResidual, "matern": MaternResidual}[residual]()
    marginals = {"sigma": SIGMA} | ({"ell": ELL} if residual == "matern" else {})
    return Simulator(IDM(), process, Prior(LAW, marginals), PaperKinematics())


def make_pairs(simulator: Simulator, count: int, steps: int, theta: torch.Tensor) -> Pairs:
    """Pairs driven by the simulator itself behind leaders with a slow wave."""
    rng = np.random.default_rng(7)
    phase = torch.from_numpy(rng.uniform(0, 6, (count, 1))).float()
    leader = 10 + 3 * torch.sin(torch.arange(steps) * 0.05 + phase)
    speed = leader[:, 0]
    gap = simulator.law.equilibrium_gap(theta, speed)
    rollout = simulator.rollout(theta, leader, gap, speed, rng)
    names = tuple(f"r/{i}" for i in range(count))
    return Pairs(
        pair_id=names,
        follower=names,
        recording=("r",) * count,
        follower_class=("car",) * count,
        dt=simulator.dt,
        offsets=torch.arange(count + 1) * steps,
        gap=rollout.gap.flatten(),
        speed=rollout.speed.flatten(),
        leader_speed=leader.flatten(),
        acceleration=rollout.acceleration.flatten(),
    )


@pytest.fixture(scope="session")
def simulators() -> dict[str, Simulator]:
    return {name: make_simulator(name) for name in ("gaussian", "matern")}


@pytest.fixture(scope="session")
def drivers() -> Callable[[Simulator, int], torch.Tensor]:
    """Typical IDM parameters, one row per driver, with the residual's prior centres."""

    def draw(simulator: Simulator, count: int) -> torch.Tensor:
        residual = [m.centre for m in simulator.prior.marginals[5:]]
        return torch.tensor([TYPICAL + residual]).repeat(count, 1)

    return draw


@pytest.fixture(scope="session")
def pairs_of() -> Callable[..., Pairs]:
    return make_pairs
