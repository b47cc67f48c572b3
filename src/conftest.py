"""What examples in docstrings may use: a small table of drivers, and sizes of a toy network."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

# Modules whose examples train or calibrate; the others need nothing.
TRAINING = ("asbc.training.train", "asbc.calibration.fit")
SMALL = {
    **{"data.context_steps": 20, "data.min_duration": 8, "bank.synthetic_cap": 100},
    **{"training.warmup_simulations": 96, "training.holdout_size": 30, "training.rounds": 0},
    **{"encoder.model_dim": 8, "encoder.layers": 1, "encoder.heads": 2},
    **{"flow.layers": 2, "flow.hidden": 8, "acquisition.subset_size": 3},
}


@pytest.fixture(autouse=True)
def examples(request, doctest_namespace, tmp_path, monkeypatch) -> None:
    """`table`: a pairs table of 12 drivers; `small`: overrides; a folder of their own."""
    if request.module is not None and not request.node.name.startswith(TRAINING):
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asbc.data.summary.plot_trajectories", lambda *_: None)
    doctest_namespace |= {"table": _table(), "small": SMALL, "folder": Path("outputs/mine")}


def _table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    time = np.arange(61) * 0.2
    tables = []
    for driver in range(12):
        speed = 10 + 2 * np.sin(time / 3 + driver) + rng.normal(0, 0.02, len(time))
        columns = {"recording": "r", "pair_id": driver, "follower_id": driver, "time": time}
        tables.append(pd.DataFrame(columns).assign(gap=20.0, speed=speed, leader_speed=speed))
    return pd.concat(tables, ignore_index=True)
