"""Simulators and drivers with known parameters for the baselines' tests."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from asbc.baselines.method import Task
from asbc.data.pairs import Pairs
from asbc.simulator import Simulator

CONF = "conf"


@pytest.fixture(scope="session")
def simulators(pytestconfig) -> dict[str, Simulator]:
    """The simulator of each residual model, as baseline.py builds it."""
    built = {}
    for residual in ("gaussian", "matern"):
        with initialize_config_dir(str(pytestconfig.rootpath / CONF), version_base="1.3"):
            overrides = [f"residual={residual}", "baseline=prior_predictive"]
            built[residual] = instantiate(compose("baseline", overrides).simulator)
    return built


@pytest.fixture(scope="session")
def pairs_of() -> Callable[..., Pairs]:
    """A function that drives the given parameters behind leaders in stop-and-go waves."""

    def drive(simulator: Simulator, theta: torch.Tensor, steps: int, seed: int = 0) -> Pairs:
        rng = np.random.default_rng(seed)
        count = len(theta)
        phase, depth = (torch.from_numpy(rng.uniform(0, 1, (2, count, 1))).float()).unbind(0)
        wave = torch.sin(torch.arange(steps) * 0.08 + 6 * phase)
        leader = 9 + (2 + 5 * depth) * wave
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

    return drive


@pytest.fixture(scope="session")
def typical(simulators) -> dict[str, torch.Tensor]:
    """Typical parameters for each residual model, (dim,)."""
    law = [30.0, 2.0, 1.5, 1.2, 1.8]
    return {"gaussian": torch.tensor([*law, 0.3]), "matern": torch.tensor([*law, 0.3, 1.5])}


@pytest.fixture(scope="session")
def task_of(simulators, typical, pairs_of) -> Callable[..., Task]:
    """A function that builds a task of typical drivers."""

    def build(residual: str, known: int = 3, test: int = 2, steps: int = 80, **fields) -> Task:
        simulator = simulators[residual]
        settings = {"context_steps": 40, "samples": 20, "seed": 0} | fields
        return Task(
            simulator,
            pairs_of(simulator, typical[residual].expand(known, -1), steps, seed=1),
            pairs_of(simulator, typical[residual].expand(test, -1), steps, seed=2),
            **settings,
        )

    return build
