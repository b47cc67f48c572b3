"""A browser for all tests of the page, pages of shipped models, and scripts of ours run in it."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def chromium():
    """The module that drives Chromium."""
    sys.path.insert(0, HERE)
    yield importlib.import_module("chromium")
    sys.path.remove(HERE)


@pytest.fixture(scope="session")
def browser(chromium):
    """A headless Chromium."""
    program = chromium.find_chromium()
    if program is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    browser = chromium.Chromium(program)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def recordings():
    """Pairs of simulated roads: standing, in waves and free."""
    from asbc.data.synthetic.platoons import Roads

    return Roads(
        platoons={"queue": 3, "stop_and_go": 3, "free": 2}, followers=3, duration=45.0, seed=4
    ).pairs()


@pytest.fixture(scope="session")
def page_of(tmp_path_factory, recordings) -> Callable[[str], Path]:
    """The page of a shipped model, each made once."""
    from asbc.page.page import write_page
    from asbc.run import Run

    made: dict[str, Path] = {}

    def make(name: str = "idm_matern") -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("page") / f"{name}.html"
            write_page(Run.open(name), made[name], recordings)
        return made[name]

    return make


@pytest.fixture
def opened(browser, page_of):
    """The page of the default model, freshly opened on a laptop's screen."""
    browser.screen(1280, 900)
    browser.open(page_of())
    assert browser.problems == []
    return browser


@pytest.fixture
def run_js(browser, page_of) -> Callable[..., Any]:
    """The value of an expression beside the page's own functions, in the browser."""
    from asbc.page.page import SHARED, WORKER

    folder = Path(importlib.import_module("asbc.page").__file__).parent / "js"
    names = [name for name in (*SHARED, *WORKER) if name != "worker"]
    sources = "\n".join((folder / f"{name}.js").read_text() for name in names)
    browser.open(page_of())

    def run(body: str, **values: Any) -> Any:
        given = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
        return browser.evaluate(f"(async () => {{\n{sources}\n{given}\n{body}\n}})()")

    return run


def drivers_table(count: int = 6, steps: int = 100, dt: float = 0.2) -> pd.DataFrame:
    """Drivers whose gaps are the integral of their speeds, in waves that shift in time."""
    rng = np.random.default_rng(0)
    time = np.arange(steps) * dt
    tables = []
    for i in range(count):
        leader = 10 + 4 * np.sin(time / 3 + i) + rng.normal(0, 0.05, steps)
        speed = 10 + 4 * np.sin(time / 3 + i - 0.5)
        opened = (leader[1:] + leader[:-1] - speed[1:] - speed[:-1]) / 2 * dt
        columns: dict[str, Any] = {"recording": "r", "pair_id": i, "follower_id": i}
        columns |= {"time": time.round(6), "gap": 25 + np.append(0, np.cumsum(opened))}
        tables.append(pd.DataFrame({**columns, "speed": speed, "leader_speed": leader}))
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="session")
def make_drivers() -> Callable[..., pd.DataFrame]:
    """The function that makes a table of sound drivers."""
    return drivers_table


@pytest.fixture
def give(opened) -> Callable[[Path], str]:
    """Give a file to the page; returns its message, "" if the drivers were calibrated."""

    def give_file(path: Path, seconds: float = 60.0) -> str:
        opened.evaluate("delete document.body.dataset.done")
        opened.choose_file("#file", path)
        opened.wait(
            "document.body.dataset.done || !document.querySelector('#message').hidden"
            " || document.querySelector('#columns').open",
            seconds,
        )
        if opened.evaluate("document.querySelector('#message').hidden"):
            return ""
        return opened.evaluate("document.querySelector('#message .text').textContent")

    return give_file
