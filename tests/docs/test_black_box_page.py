"""The simulator of docs/black-box.md goes through the commands as the page says, made small."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "black-box.md").read_text()
[CODE] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
[CONFIG] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
COMMANDS = re.findall(r"^asbc (\w+) (.*)$", PAGE, flags=re.M)


@pytest.fixture
def written(tmp_path, monkeypatch) -> Path:
    """The page's two files, where it says."""
    (tmp_path / "my_traffic.py").write_text(CODE)
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    (tmp_path / "my_conf" / "model" / "dozers.yaml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ASBC_PLUGINS", "my_traffic")
    return tmp_path


def test_the_example_is_as_short_as_the_page_says():
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 30


def test_the_example_drives(written):
    namespace: dict = {}
    exec(CODE, namespace)  # noqa: S102
    leader = torch.full((400, 50), 10.0)
    theta = torch.tensor([30.0, 1.2, 1.5, 0.5]).expand(400, -1)
    start = (torch.full((400,), 12.0), torch.full((400,), 10.0))
    box = namespace["Dozers"]()
    states = box.simulate(theta, leader, *start, 0.2, np.random.default_rng(0))
    assert states.shape == (400, 50, 3) and states.isfinite().all()
    # In one step of 0.2 s a tenth of the drivers brake by 0.3 m/s; the others keep gap / T.
    braked = states[:, 1, 1] < 9.9
    assert float(braked.float().mean()) == pytest.approx(0.1, abs=0.05)
    assert torch.allclose(states[braked, 1, 1], torch.tensor(9.7))
    crash = torch.full((400,), 10.0), torch.full((400,), 10.0)
    backing = torch.cat([leader[:, :1], torch.full((400, 49), -60.0)], dim=1)
    assert box.simulate(theta, backing, *crash, 0.2, np.random.default_rng(0)).isnan().any()


def test_the_example_goes_through_the_commands(
    written, run_command, tiny, tiny_pairs, monkeypatch
):
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", lambda *_: [])
    small = {
        "train": [text for text in tiny if not text.startswith(("data=", "data.path"))],
        "evaluate": ["evaluation.horizon=20", "evaluation.samples=20", "evaluation.bootstrap=9"],
        "calibrate": ["calibration.samples=20"],
    }
    small["evaluate"] += ["evaluation.simulated_drivers=30", "evaluation.posterior_draws=19"]
    assert [name for name, _ in COMMANDS] == list(small)
    for name, arguments in COMMANDS:
        given = arguments.replace("FILE", str(tiny_pairs)).split()
        log = written / name
        assert run_command(name, [*given, *small[name]], log=log) == 0, log.read_text()[-3000:]
    rounds = pd.read_csv(written / "RUN" / "rounds.csv")
    assert len(rounds) == 3 and (rounds["seconds_simulate"] > 0).all()
    draws = pd.read_parquet(next((written / "RUN" / "calibration").glob("*/draws.parquet")))
    assert list(draws)[2:] == ["v0", "T", "a_max", "p"]
    log = written / "refused"
    given = ["run=RUN", "refine=psis", "output=refined", "data=pairs", f"data.path={tiny_pairs}"]
    assert run_command("calibrate", given, log=log) == 2
    assert "error: Dozers is a black box without likelihood" in log.read_text()
