"""The code of docs/python.md runs as it stands, made small."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import asbc
from asbc.training import train as training

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)


@pytest.fixture
def small(monkeypatch, tiny, tiny_pairs, tmp_path, no_trajectory_plot) -> None:
    """In a folder with the page's files, with trainings and evaluations of a tiny size."""
    monkeypatch.chdir(tmp_path)
    for name in ("pairs.csv", "drivers.csv"):
        shutil.copy(tiny_pairs, name)
    sizes = dict(
        text.split("=", 1) for text in tiny if not text.startswith(("data=", "data.path"))
    )
    sizes.pop("experiment")
    stream = {"acquisition.chunk": "48", "acquisition.simulations": "96"}
    stream |= {"training.rounds": "null", "training.max_epochs": "1"}
    stream |= {f"training.{n}": "48" for n in ("warmup_simulations", "pairs_per_round")}
    sizes |= stream | {"training.buffer_capacity": "48"}
    compose = training.compose

    def tiny_config(root: str, overrides: list[str]):
        return compose(root, [*overrides, *(f"{k}={v}" for k, v in sizes.items())])

    monkeypatch.setattr(training, "compose", tiny_config)
    evaluate = asbc.Run.evaluate
    fast = {"horizon": 20, "samples": 20, "simulated_drivers": 30, "posterior_draws": 19}
    monkeypatch.setattr(asbc.Run, "evaluate", lambda run, *a, **k: evaluate(run, *a, **fast, **k))


def test_the_whole_way_from_a_table_to_sumo(small, tmp_path, monkeypatch):
    first, opened, watched, density = BLOCKS
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    namespace: dict = {}
    exec(first, namespace)  # noqa: S102
    draws = pd.read_parquet("draws.parquet")
    assert draws["pair_id"].nunique() == 24 and {"v0", "T", "ell"} <= set(draws)
    for name in ("driver.png", "posterior.nc", "drivers.add.xml"):
        assert (tmp_path / name).stat().st_size > 1000
    assert (tmp_path / "drivers.add.xml").read_text().count("<vType ") == 300
    (tmp_path / "pairs.csv").unlink()  # the run folder is all that is needed
    exec(opened, namespace)  # noqa: S102
    assert len(namespace["fit"].draws) == 24 * 1000
    one = pd.read_csv("drivers.csv").query("pair_id == 0")
    namespace["sensor"] = one[["gap", "speed", "leader_speed"]].to_numpy()
    exec(watched, namespace)  # noqa: S102
    assert namespace["theta"].shape == (200, 7) and namespace["drives"].gap.shape == (200, 51)
    assert namespace["now"].seconds == pytest.approx(4.0)
    shorter = density.replace("contexts(75)", "contexts(20)").replace("=15", "=4")
    exec(shorter, namespace)  # noqa: S102
    assert namespace["log_q"].shape == namespace["log_p"].shape == (24, 500)
