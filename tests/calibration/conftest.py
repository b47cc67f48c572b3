"""Small networks trained in seconds, and drivers simulated behind recorded-looking leaders."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import asbc
from asbc.arguments import override_text
from asbc.config import build, compose
from asbc.data.pairs import STATE_COLUMNS, Pairs
from asbc.live import Live, Present
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.trained_model import Model

STEPS, RECORDED = 20, 40
# Narrow enough that a small network learns the posterior: centre and range of each parameter.
RANGES = {
    "v0": (30.0, 20.0, 40.0),
    "s0": (2.0, 1.0, 6.0),
    "T": (1.6, 0.6, 4.5),
    "a_max": (1.5, 0.2, 3.5),
    "b": (1.67, 0.4, 4.0),
    "sigma": (0.6, 0.3, 1.5),
    "ell": (2.0, 0.5, 8.0),
}
# A stream of fresh simulations, and a network without dropout.
TRAINING = {
    "data.context_steps": STEPS,
    "data.min_duration": 0.2 * RECORDED,
    "bank.stride": 10,
    "bank.synthetic_cap": 100,
    "acquisition.simulations": 64_000,
    "acquisition.chunk": 8000,
    "acquisition.alpha_share": 0.0,
    "acquisition.subset_size": 3,
    "training.batch_size": 256,
    "training.holdout_size": 100,
    "estimator.learning_rate": 1e-2,
    "encoder.model_dim": 16,
    "encoder.layers": 1,
    "encoder.heads": 2,
    "encoder.dropout": 0.0,
    "flow.layers": 3,
    "flow.hidden": 32,
    "flow.blocks": 1,
    "flow.dropout": 0.0,
}
# Mean speed (m/s), phase and period (s) of the leaders.
BETWEEN = ((7.0, 13.0), (0.0, 6.3), (1.0, 3.0))


def prior_of(residual: str) -> dict[str, dict[str, float]]:
    names = [name for name in RANGES if name != "ell" or residual == "matern"]
    fields = ("centre", "low", "high")
    return {n: dict(zip(fields, RANGES[n], strict=True)) | {"log_scale": 0.5} for n in names}


def simulator_of(residual: str) -> Simulator:
    prior = [f"+prior.overrides.{n}={override_text(v)}" for n, v in prior_of(residual).items()]
    return build(compose("train", [f"residual={residual}", *prior]).simulator)


def leaders(count: int, steps: int, rng: np.random.Generator) -> torch.Tensor:
    """Leaders that speed up and slow down, 3 to 17 m/s."""
    mean, phase, period = (rng.uniform(low, high, (count, 1)) for low, high in BETWEEN)
    wave = 4 * np.sin(np.arange(steps) * 0.2 / period + phase)
    return torch.from_numpy(np.clip(mean + wave, 1, None)).float()


def drive(
    simulator: Simulator, theta: torch.Tensor, steps: int, rng: np.random.Generator
) -> Pairs:
    """Drivers that start near their equilibrium."""
    leader = leaders(len(theta), steps, rng)
    spread = torch.from_numpy(rng.uniform(0.8, 1.4, len(theta))).float()
    gap = simulator.law.equilibrium_gap(theta, leader[:, 0]).clamp_max(80) * spread
    driven = simulator.rollout(theta, leader, gap, leader[:, 0], rng)
    return Pairs.from_series(driven.gap, driven.speed, leader, simulator.dt, recording="r")


def train(residual: str, folder: Path, more: dict[str, object] | None = None, **choices) -> Run:
    """A run that has seen 250 batches of fresh simulations: rough, but no nonsense."""
    simulator, rng = simulator_of(residual), np.random.default_rng(1)
    recorded = drive(simulator, simulator.prior.sample(400, rng), RECORDED, rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asbc.data.summary.plot_trajectories", lambda *_: None)
        return asbc.train(
            recorded.to_table(),
            folder,
            TRAINING
            | {f"+prior.overrides.{n}": v for n, v in prior_of(residual).items()}
            | (more or {}),
            residual=residual,
            **choices,
            acquisition="stream",
            transform="bounded",
            callbacks="none",
        )


@pytest.fixture(scope="session")
def gaussian_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("gaussian", tmp_path_factory.mktemp("gaussian") / "run")


@pytest.fixture(scope="session")
def gaussian_model(gaussian_run: Run) -> Model:
    return gaussian_run.model()


@pytest.fixture(scope="session")
def matern_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return train("matern", tmp_path_factory.mktemp("matern") / "run").model()


@pytest.fixture(scope="session")
def history_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that reads up to four segments of a driver, of 3 to 4 s."""
    fewer = {"acquisition.simulations": 24_000, "history.max_segments": 4}
    return train("gaussian", tmp_path_factory.mktemp("history") / "run", fewer, history="segments")


@pytest.fixture(scope="session")
def several_pairs(history_run: Run) -> Pairs:
    """Six drivers with 1 to 3 pairs each, of 8 to 80 samples, in a mixed order."""
    simulator, rng = history_run.simulator, np.random.default_rng(8)
    theta = simulator.prior.sample(6, rng)
    owner = [4, 0, 2, 0, 5, 1, 2, 3, 2, 4, 5]
    lengths = [50, 40, 20, 8, 33, 80, 15, 30, 61, 26, 12]
    driven = drive(simulator, theta[owner], max(lengths), rng)
    rows = torch.cat([max(lengths) * i + torch.arange(n) for i, n in enumerate(lengths)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths).cumsum(0)])
    return replace(
        driven,
        follower=tuple(f"r/d{i}" for i in owner),
        offsets=offsets,
        **{name: getattr(driven, name)[rows] for name in STATE_COLUMNS},
    )


@pytest.fixture(scope="session")
def simulate_pairs() -> Callable[..., tuple[torch.Tensor, Pairs]]:
    """Drivers of a simulator's prior: their parameters and their pairs."""

    def simulate(
        simulator: Simulator, count: int, seed: int = 5, steps: int = STEPS
    ) -> tuple[torch.Tensor, Pairs]:
        rng = np.random.default_rng(seed)
        theta = simulator.prior.sample(count, rng)
        return theta, drive(simulator, theta, steps, rng)

    return simulate


@pytest.fixture(scope="session")
def drives(history_run: Run, simulate_pairs) -> Pairs:
    """Three drives of one driver, of 130, 9 and 47 samples."""
    _, pairs = simulate_pairs(history_run.simulator, 3, seed=2, steps=130)
    lengths = torch.tensor([130, 9, 47])
    rows = torch.cat([130 * i + torch.arange(n) for i, n in enumerate(lengths.tolist())])
    return replace(
        pairs,
        follower=("r/d",) * 3,
        offsets=torch.tensor([0, 130, 139, 186]),
        **{n: getattr(pairs, n)[rows] for n in ("gap", "speed", "leader_speed", "acceleration")},
    )


@pytest.fixture(scope="session")
def feed() -> Callable[..., Iterator[tuple[int, Present]]]:
    """A function that gives a watched driver every sample in turn: what was known after it."""

    def give(
        live: Live, pair: dict[str, torch.Tensor], start: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, Present]]:
        columns = torch.stack(
            [pair[n][start:end] for n in ("gap", "speed", "leader_speed")], dim=1
        )
        for count, sample in enumerate(columns.tolist(), start + 1):
            yield count, live.update(*sample)

    return give
