"""Small networks trained in seconds, and drivers simulated behind recorded-looking leaders."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.posterior import PosteriorEstimator
from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.flow import MaskedAutoregressiveFlow
from asbc.posterior.transform import Bounded
from asbc.run import Model
from asbc.simulator import Prior, Simulator
from asbc.simulator.kinematics import PaperKinematics
from asbc.simulator.laws import IDM
from asbc.simulator.matern import MaternResidual
from asbc.simulator.residuals import GaussianResidual

STEPS = 20
RANGES = {
    "v0": ("m/s", 30.0, 20.0, 40.0),
    "s0": ("m", 2.0, 1.0, 6.0),
    "T": ("s", 1.6, 0.6, 4.5),
    "a_max": ("m/s^2", 1.5, 0.2, 3.5),
    "b": ("m/s^2", 1.67, 0.4, 4.0),
    "sigma": ("m/s^2", 0.6, 0.3, 1.5),
    "ell": ("s", 2.0, 0.5, 8.0),
}


def build_simulator(residual: str) -> Simulator:
    process = {"gaussian": GaussianResidual, "matern": MaternResidual}[residual]()
    marginals = {
        name: {"unit": unit, "centre": centre, "log_scale": 0.5, "low": low, "high": high}
        for name, (unit, centre, low, high) in RANGES.items()
    }
    law = {name: marginals[name] for name in IDM.parameters}
    hyper = {name: marginals[name] for name in process.parameters}
    return Simulator(IDM(), process, Prior(law, hyper), PaperKinematics())


def leaders(count: int, steps: int, rng: np.random.Generator) -> torch.Tensor:
    """Leaders that speed up and slow down, 3 to 17 m/s."""
    mean, phase, period = (rng.uniform(low, high, (count, 1)) for low, high in BETWEEN)
    wave = 4 * np.sin(np.arange(steps) * 0.2 / period + phase)
    return torch.from_numpy(np.clip(mean + wave, 1, None)).float()


BETWEEN = ((7.0, 13.0), (0.0, 6.3), (1.0, 3.0))


def drive(
    simulator: Simulator, theta: torch.Tensor, steps: int, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Leader speeds and states (driver, step, 3) of drivers that start near their equilibrium."""
    leader = leaders(len(theta), steps, rng)
    spread = torch.from_numpy(rng.uniform(0.8, 1.4, len(theta))).float()
    gap = simulator.law.equilibrium_gap(theta, leader[:, 0]).clamp_max(80) * spread
    return leader, simulator.rollout(theta, leader, gap, leader[:, 0], rng).states


def as_pairs(
    leader: torch.Tensor, states: torch.Tensor, dt: float, prefix: str = "driver"
) -> Pairs:
    count, steps = leader.shape
    names = tuple(f"r/{prefix}{i}" for i in range(count))
    speed = states[..., 1]
    acceleration = torch.cat([speed.diff(dim=1) / dt, torch.zeros(count, 1)], dim=1)
    return Pairs(
        pair_id=names,
        follower=names,
        recording=("r",) * count,
        follower_class=("car",) * count,
        dt=dt,
        offsets=torch.arange(count + 1) * steps,
        gap=states[..., 0].flatten(),
        speed=speed.flatten(),
        leader_speed=leader.flatten(),
        acceleration=acceleration.flatten(),
    )


def train(residual: str, steps: int) -> Model:
    """A network that has seen `steps` batches of fresh simulations: rough, but no nonsense."""
    simulator = build_simulator(residual)
    torch.manual_seed(0)
    estimator = PosteriorEstimator(
        LocalGlobalEncoder(model_dim=16, layers=1, heads=2, dropout=0.0),
        partial(MaskedAutoregressiveFlow, layers=3, hidden=32, blocks=1, dropout=0.0),
        Bounded.from_prior(simulator.prior),
        simulator.prior,
    )
    rng = np.random.default_rng(1)
    _, scale = drive(simulator, simulator.prior.sample(512, rng), STEPS, rng)
    estimator.set_input_scaling(scale)
    optimizer = torch.optim.Adam(estimator.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(steps):
        theta = simulator.prior.sample(256, rng)
        _, states = drive(simulator, theta, STEPS, rng)
        loss = -estimator.posterior.training_log_prob(theta, states).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(estimator.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    return Model(estimator.eval(), simulator, STEPS, residual)


@pytest.fixture(scope="session")
def gaussian_model() -> Model:
    return train("gaussian", 250)


@pytest.fixture(scope="session")
def matern_model() -> Model:
    return train("matern", 250)


@pytest.fixture(scope="session")
def simulate_pairs() -> Callable[..., tuple[torch.Tensor, Pairs]]:
    """Drivers of a simulator's prior: their parameters and their pairs."""

    def simulate(
        simulator: Simulator, count: int, seed: int = 5, steps: int = STEPS
    ) -> tuple[torch.Tensor, Pairs]:
        rng = np.random.default_rng(seed)
        theta = simulator.prior.sample(count, rng)
        return theta, as_pairs(*drive(simulator, theta, steps, rng), simulator.dt)

    return simulate
