"""What a user does with the page: looks, points, plays, takes files away."""

import io
import re
import time
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.calibration.export.sumo import sumo_types, write_vtypes
from asbc.run import Run

EXAMPLE = "document.querySelector('#example').click()"


@pytest.fixture
def example(opened):
    """The page with its built-in example calibrated."""
    opened.evaluate(EXAMPLE)
    opened.wait("document.body.dataset.done")
    opened.wait("document.querySelector('#fan-text').textContent")
    return opened


def reading(browser):
    """Numbers of the sentence below the trajectory, once they have changed with the moment."""
    return browser.text("#fan-text")


def test_the_example_is_calibrated_and_told_in_words(example):
    assert re.match(r"example.csv: 8 drivers calibrated in [\d.]+ s", example.text("#outcome"))
    assert example.text("#driver-title").startswith("Driver ")
    assert "In 10 s the gap is expected at" in reading(example)
    assert example.evaluate("document.querySelectorAll('#marginals canvas').length") == 7
    assert example.text("#flags")
    assert "strongest correlations" in example.evaluate(
        "document.querySelector('#corner').getAttribute('aria-label')"
    )


def test_the_fan_follows_the_mouse_and_the_keyboard(example):
    box = example.evaluate(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.querySelector('#trajectory').getBoundingClientRect())"
    )
    left, top, width, height = box
    before = reading(example)
    example.mouse("mouseMoved", left + 0.6 * width, top + height / 2)
    example.wait("Number(document.querySelector('#moment').value) > 100")
    example.wait(f"document.querySelector('#fan-text').innerText !== {before!r}")
    moment = int(example.evaluate("document.querySelector('#moment').value"))
    example.evaluate("document.querySelector('#moment').focus()")
    example.press("ArrowLeft")
    example.wait(f"Number(document.querySelector('#moment').value) === {moment - 1}")


def test_another_driver_is_chosen_with_the_keyboard(example):
    first = example.text("#driver-title")
    example.evaluate("document.querySelector('#drivers').focus()")
    example.press("ArrowDown")
    example.wait(f"document.querySelector('#driver-title').innerText !== {first!r}")


def test_the_table_sorts_and_leads_to_a_driver(example):
    example.click("#tab-population")
    example.evaluate(
        "[...document.querySelectorAll('#table th button')]"
        ".find((b) => b.textContent.startsWith('T ')).click()"
    )
    values = example.evaluate(
        "[...document.querySelectorAll('#table tbody tr')]"
        ".map((row) => parseFloat(row.children[5].textContent))"
    )
    assert len(values) == 8 and values == sorted(values)
    name = example.text("#table tbody tr button")
    example.click("#table tbody tr button")
    example.wait(f"document.querySelector('#driver-title').innerText === 'Driver ' + {name!r}")


@pytest.fixture
def downloads(example, tmp_path):
    """Take a file from the page; returns its text."""
    example.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))

    def take(kind, name):
        example.click("#tab-population")
        example.click(f"[data-file={kind}]")
        path, until = tmp_path / name, time.monotonic() + 20
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return path.read_text()

    return take


def test_draws_and_summary_say_the_same_and_are_inside_the_prior(downloads):
    draws = pd.read_csv(io.StringIO(downloads("draws", "draws.csv")))
    summary = pd.read_csv(io.StringIO(downloads("summary", "summary.csv")))
    prior = Run.open("idm_matern").simulator.prior
    assert list(draws) == ["follower", "draw", *prior.names] and len(draws) == 8 * 500
    assert list(summary)[:3] == ["follower", "parameter", "unit"] and len(summary) == 8 * 7
    theta = torch.from_numpy(draws[list(prior.names)].to_numpy())
    assert bool(prior.contains(theta).all())
    grouped = draws.groupby("follower", sort=False)[list(prior.names)]
    for measure, found in {
        "mean": grouped.mean(), "sd": grouped.std(),
        "q05": grouped.quantile(0.05), "q95": grouped.quantile(0.95),
    }.items():  # fmt: skip
        told = summary.pivot(index="follower", columns="parameter", values=measure)
        told = told.loc[found.index, found.columns]
        np.testing.assert_allclose(told, found, rtol=1e-5)


def test_vehicle_types_are_those_that_the_command_writes(downloads, tmp_path):
    text = downloads("sumo", "drivers.add.xml")
    simulator = Run.open("idm_matern").simulator
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    [_, distribution] = list(ET.fromstring(text, parser))
    attributes = ("maxSpeed", "minGap", "tau", "accel", "decel")
    rows, residual = [], []
    for entry in distribution:
        if entry.tag is ET.Comment:
            residual = [float(v) for v in re.findall(r"=([\d.e+-]+)", entry.text)]
        else:
            rows.append([float(entry.get(a)) for a in attributes] + residual)
    assert len(rows) == 300
    theta = torch.tensor(rows, dtype=torch.float64)
    write_vtypes(tmp_path / "own.xml", theta, simulator.prior.names, sumo_types(simulator))
    assert text == (tmp_path / "own.xml").read_text()


def test_play_drives_and_sliders_change_the_driver(example):
    example.click("#tab-play")
    example.click("#run")
    example.wait("parseFloat(document.querySelector('#road-text').innerText) > 4")
    example.evaluate(
        "(() => { const s = document.querySelector('#theta-T'); s.value = 1000;"
        " s.dispatchEvent(new Event('input')); })()"
    )
    assert example.evaluate("document.querySelector('#theta-T').ariaValueText") == "4.5 s"
    example.click("#run")
    paused = example.text("#road-text")
    assert example.text("#run").endswith("Play") and example.text("#road-text") == paused
    example.evaluate(
        "for (const [id, value] of [['who', 'ten'], ['leader', 'hand']]) {"
        " document.getElementById(id).value = value;"
        " document.getElementById(id).dispatchEvent(new Event('change')); }"
    )
    example.wait("document.querySelector('#theta-T').disabled")
    example.evaluate("document.querySelector('#speeds').focus()")
    for key in ("ArrowRight", "ArrowUp", "ArrowUp"):
        example.press(key)
    example.click("#run")
    example.wait("parseFloat(document.querySelector('#road-text').innerText) > 2")
    assert example.problems == []


def test_a_model_that_sumo_simulates_says_so_and_calibrates(browser, page_of):
    browser.screen(1280, 900)
    browser.open(page_of("sumo_krauss"))
    browser.evaluate(EXAMPLE)
    browser.wait("document.body.dataset.done")
    assert "predictions need SUMO" in browser.text("#fan-text")
    browser.click("#tab-play")
    assert "predictions need SUMO" in browser.text("#play-note")
    assert browser.problems == []


def test_draws_do_not_depend_on_other_drivers_in_the_file(opened, give, make_drivers, tmp_path):
    table, texts = make_drivers(), []
    for count in (6, 2):
        path = tmp_path / f"drivers{count}.csv"
        table[table["pair_id"] < count].to_csv(path, index=False)
        assert give(path) == ""
        texts.append(opened.text("#marginals"))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_screen_or_jumps(width, browser, page_of):
    browser.screen(width, 800)
    browser.open(page_of())
    browser.evaluate(
        "window.shift = 0; new PerformanceObserver((list) => {"
        " for (const entry of list.getEntries()) window.shift += entry.value;"
        " }).observe({ type: 'layout-shift', buffered: true })"
    )
    browser.evaluate(EXAMPLE)
    browser.wait("document.body.dataset.done")
    for tab in ("driver", "population", "play"):
        browser.click(f"#tab-{tab}")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.click("#tab-driver")
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    browser.evaluate(f"{frame}.then(() => 0)")
    shifted = browser.evaluate("window.shift")
    before = browser.evaluate("document.documentElement.scrollHeight")
    browser.evaluate(
        "const s = document.querySelector('#moment'); s.value = 40;"
        " s.dispatchEvent(new Event('input'))"
    )
    browser.wait("document.querySelector('#moment-text').textContent === '8.0 s'")
    assert browser.evaluate("document.documentElement.scrollHeight") == before
    assert browser.evaluate("window.shift") - shifted < 0.05
    browser.screen(1280, 900)
