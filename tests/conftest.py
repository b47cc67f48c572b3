"""Tiny training runs, shared by the tests of the loop and of the entry points."""

import importlib.util
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]


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
def train_here(monkeypatch) -> Callable[[Sequence[str], Path], float]:
    """Run train.py in this process, as Hydra would with these overrides, into a folder."""
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig

    from asbc.data import summary

    monkeypatch.setattr(summary, "plot_trajectories", lambda *_: None)  # slow; tested elsewhere
    spec = importlib.util.spec_from_file_location("train", ROOT / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(overrides: Sequence[str], folder: Path) -> float:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose(
                "train",
                [*overrides, f"hydra.runtime.output_dir={folder}"],
                return_hydra_config=True,
            )
        monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
        return module.main(cfg)

    return run


@pytest.fixture
def run_script(tmp_path, monkeypatch) -> Callable[..., int]:
    """Run an entry point as its own process, with its command line; returns the exit code.

    The process is a fork of this one: it need not import torch and Lightning again.
    """
    from asbc.data import summary

    monkeypatch.setattr(summary, "plot_trajectories", lambda *_: None)  # slow; tested elsewhere

    def run(
        script: str,
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
            sys.argv = [script, *arguments]
            runpy.run_path(str(ROOT / script), run_name="__main__")

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(timeout=300)
        assert process.exitcode is not None, f"{script} did not end"
        return process.exitcode

    return run
