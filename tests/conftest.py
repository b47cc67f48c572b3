"""Tiny training runs, shared by the tests of the loop and of the commands."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="session")
def tiny_pairs(tmp_path_factory) -> Path:
    """A pairs file: 24 followers, 12 s each, at a steady distance behind uneven leaders."""
    rng = np.random.default_rng(0)
    tables = []
    for index in range(24):
        leader = np.clip(rng.uniform(6, 14) + np.cumsum(rng.normal(0, 0.2, 61)), 1, None)
        tables.append(
            pd.DataFrame(
                {
                    "pair_id": index,
                    "follower_id": index,
                    "recording": "r",
                    "time": np.arange(61) * 0.2,
                    "gap": 20.0 + rng.normal(0, 0.1, 61),
                    "speed": leader,
                    "leader_speed": leader,
                }
            )
        )
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    pd.concat(tables).to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_pairs) -> list[str]:
    """Overrides for a training run of about a second: 2 active rounds on a toy network."""
    return [
        *("experiment=smoke", "callbacks=none", "data=pairs", f"data.path={tiny_pairs}"),
        *("data.context_steps=20", "data.min_duration=8", "bank.synthetic_cap=100"),
        *("bank.stride=10", "training.warmup_simulations=96", "training.pairs_per_round=32"),
        *("training.buffer_capacity=112", "training.holdout_size=30", "training.batch_size=32"),
        *("encoder.model_dim=8", "encoder.layers=1", "encoder.heads=2"),
        *("flow.layers=2", "flow.hidden=8", "acquisition.subset_size=3"),
    ]


@pytest.fixture(scope="session")
def tiny_stream(tiny) -> list[str]:
    """Overrides for a stream of 4 chunks of 48 simulations, in batches of 16."""
    return [
        *(*tiny, "acquisition=stream", "acquisition.chunk=48", "acquisition.simulations=192"),
        # What the stream's own file says, and the tiny run above overrides.
        *("training.rounds=null", "training.max_epochs=1", "training.batch_size=16"),
        *("training.warmup_simulations=48", "training.pairs_per_round=48"),
        "training.buffer_capacity=48",
    ]


@pytest.fixture
def no_trajectory_plot(monkeypatch) -> None:
    """Leave out the picture of the data, which is slow and tested elsewhere."""
    from asbc.data import summary

    monkeypatch.setattr(summary, "plot_trajectories", lambda *_: None)


@pytest.fixture
def train_here(no_trajectory_plot) -> Callable[[Sequence[str], Path], float]:
    """Train in this process with these overrides into a folder; returns the best loss."""
    from asbc.config import compose
    from asbc.training.train import train_run

    def run(overrides: Sequence[str], folder: Path) -> float:
        return train_run(compose("train", [*overrides, f"folder={folder}"]), overrides).best_loss

    return run


@pytest.fixture(scope="session")
def trained(tiny, tmp_path_factory) -> Callable[..., Path]:
    """Run folders of tiny trainings, each made once in a session: `trained("residual=matern")`.

    They are shared: copy one before changing anything in it.
    """
    from asbc.config import compose
    from asbc.training.train import train_run

    runs: dict[tuple[str, ...], Path] = {}

    def run(*overrides: str) -> Path:
        if overrides not in runs:
            folder = tmp_path_factory.mktemp("trained") / "run"
            given = [*tiny, *overrides]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("asbc.data.summary.plot_trajectories", lambda *_: None)
                train_run(compose("train", [*given, f"folder={folder}"]), given)
            runs[overrides] = folder
        return runs[overrides]

    return run


@pytest.fixture
def run_command(tmp_path, no_trajectory_plot) -> Callable[..., int]:
    """Run a command as a process of its own, with its command line; returns the exit code.

    The process is a fork of this one: it need not import torch and Lightning again.
    """
    import asbc.training.train  # noqa: F401
    from asbc.commands import start

    def run(
        name: str,
        arguments: Sequence[str],
        prepare: Callable[[], None] | None = None,
        log: Path | None = None,
    ) -> int:
        def child() -> None:
            output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.chdir(tmp_path)
            if prepare is not None:
                prepare()
            start(name, arguments)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(timeout=300)
        assert process.exitcode is not None, f"{name} did not end"
        return process.exitcode

    return run


@pytest.fixture(scope="session")
def simulators():
    """The simulator of each residual model, as `asbc baseline` builds it."""
    from asbc.config import build, compose

    settings = {
        name: compose("baseline", [f"residual={name}", "baseline=prior_predictive"])
        for name in ("gaussian", "matern")
    }
    return {name: build(config.simulator) for name, config in settings.items()}


@pytest.fixture(scope="session")
def typical():
    """Typical parameters for each residual model, (dim,)."""
    import torch

    law = [30.0, 2.0, 1.5, 1.2, 1.8]
    return {"gaussian": torch.tensor([*law, 0.3]), "matern": torch.tensor([*law, 0.3, 1.5])}


@pytest.fixture(scope="session")
def pairs_of() -> Callable:
    """A function that drives the given parameters behind leaders in stop-and-go waves."""
    import torch

    from asbc.data.pairs import Pairs

    def drive(simulator, theta, steps, seed=0) -> Pairs:
        rng = np.random.default_rng(seed)
        phase, depth = torch.from_numpy(rng.uniform(0, 1, (2, len(theta), 1))).float().unbind(0)
        wave = torch.sin(torch.arange(steps) * 0.08 + 6 * phase)
        leader = 9 + (2 + 5 * depth) * wave
        speed = leader[:, 0]
        gap = simulator.law.equilibrium_gap(theta, speed)
        driven = simulator.rollout(theta, leader, gap, speed, rng)
        return Pairs.from_series(
            driven.gap, driven.speed, leader, simulator.dt, driven.acceleration, recording="r"
        )

    return drive
