"""Bad files get the command's words, in the browser; others are understood, asked about, read."""

import io

import numpy as np
import pandas as pd
import pytest

from asbc.data.driver_store import store_drivers
from asbc.data.pairs_file import PairsFile
from asbc.data.source import MIN_STEPS
from asbc.engine import LocalEngine
from asbc.errors import InputError
from asbc.run import Run
from asbc.shipped import DEFAULT

STEPS, DT = 75, 0.2
OPTION = ", or set on_error=skip"  # the command's; the page has a button


def cell(row, column, value):
    def damage(table):
        table = table.astype({column: object})
        table.loc[row, column] = value
        return table

    return damage


def scaled(columns, factor):
    return lambda table: table.assign(**{name: table[name] * factor for name in columns})


def text(change):
    """A damage of the lines of the file."""

    def damage(table):
        lines = table.to_csv(index=False).splitlines()
        return "\n".join(change(lines)).encode()

    return damage


SPEEDS = ["speed", "leader_speed"]
CASES = {
    "empty file": lambda table: b"",
    "blank first line": text(lambda lines: ["", *lines]),
    "header only": text(lambda lines: [lines[0], ""]),
    "too many cells": text(lambda lines: [*lines[:5], lines[5] + ",9", *lines[6:]]),
    "a line too long to show": text(lambda lines: [*lines[:5], lines[5] + "," + "9" * 99]),
    "cut at the end": text(lambda lines: [*lines[:300], lines[300][:9]]),
    "not UTF-8": lambda t: t.to_csv(index=False).replace("r,3", "r\xe4,3").encode("latin-1"),
    "semicolons": lambda table: table.to_csv(index=False, sep=";").encode(),
    "no gap": lambda table: table.drop(columns="gap"),
    "text for a number": cell(49, "gap", "near"),
    "nothing for a number": cell(49, "gap", None),
    "infinite": cell(249, "leader_speed", "inf"),
    "pair without a name": cell(99, "pair_id", None),
    "recording without a name": cell(100, "recording", None),
    "negative gap": cell(120, "gap", -1.5),
    "negative speed": cell(121, "speed", -0.25),
    "negative leader": cell(122, "leader_speed", -3),
    "time twice": cell(120, "time", 3.8),
    "a row is missing": lambda table: table.drop(index=150),
    "follower changes": cell(130, "follower_id", "9"),
    "leader changes": lambda table: table.assign(leader_id=np.where(table.index > 250, 2, 1)),
    "km/h": scaled(SPEEDS, 3.6),
    "mph": scaled(SPEEDS, 2.23694),
    "feet": scaled(["gap"], 3.28084),
    "centimetres": scaled(["gap"], 100.0),
    "milliseconds": scaled(["time"], 1000.0),
    "speeds exchanged": lambda t: t.assign(speed=t["leader_speed"], leader_speed=t["speed"]),
    "one speed in km/h": scaled(["speed"], 3.6),
    "stray speed": cell(130, "speed", 200.0),
    "far too fast": lambda table: table.assign(speed=table["speed"] + 300),
    "acceleration": lambda t: t.assign(acceleration=np.where(t.index == 7, 99.0, 0.0)),
    "another leader": lambda t: t.assign(gap=t["gap"] + 40 * (t.index >= 130)),
    "first row astray": cell(100, "gap", 90.0),
    "too coarse": lambda table: table.assign(time=table["time"] * 4),
}


def command_says(path, dt=DT, steps=STEPS):
    """What `asbc calibrate data.path=...` says of a file, and "" if it takes it."""
    source = PairsFile(path=path.name, dt=dt, context_steps=steps, min_duration=steps * dt)
    try:
        with LocalEngine(workers=1).pool() as pool:
            store_drivers(source, path.parent / "store", "stop", 1.0, pool)
    except InputError as error:
        return str(error).removesuffix(OPTION)
    return ""


@pytest.mark.parametrize("name", CASES)
def test_a_bad_file_gets_the_words_of_the_command(name, give, make_drivers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = CASES[name](make_drivers())
    path = tmp_path / "recorded.csv"
    if isinstance(content, pd.DataFrame):
        content = content.to_csv(index=False).encode()
    path.write_bytes(content)
    expected = command_says(path)
    assert expected, "the command takes this file"
    assert give(path) == expected


def test_a_driver_too_short_for_a_segment_gets_the_words_of_the_command(
    give, make_drivers, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recorded.csv"
    table = make_drivers()
    table[table["time"] < 2].to_csv(path, index=False)
    shortest = Run.open(DEFAULT).model(context=None).shortest
    source = PairsFile(path=path.name, dt=DT, context_steps=MIN_STEPS, min_duration=MIN_STEPS * DT)
    with LocalEngine(workers=1).pool() as pool, pytest.raises(InputError) as error:
        store_drivers(source, tmp_path / "store", "stop", 1.0, pool, shortest=shortest)
    assert give(path) == str(error.value).removesuffix(OPTION)


def test_a_driver_too_short_for_a_model_of_single_contexts_gets_the_words_of_the_command(
    give, browser, page_of, make_drivers, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recorded.csv"
    table = make_drivers()
    table[table["time"] < 9].to_csv(path, index=False)
    expected = command_says(path)
    assert expected, "the command takes this file"
    browser.open(page_of("sumo_krauss"))
    assert give(path) == expected


def test_there_are_at_least_twenty_of_them():
    assert len(CASES) >= 20


MENDED = {
    "km/h": "Read speed and leader_speed in km/h",
    "feet": "Read gap in ft",
    "milliseconds": "Read time in ms",
    "speeds exchanged": "Swap the two columns",
}


@pytest.mark.parametrize("name", MENDED)
def test_a_wrong_unit_is_put_right_by_one_click(name, give, opened, make_drivers, tmp_path):
    path = tmp_path / "units.csv"
    CASES[name](make_drivers()).to_csv(path, index=False)
    assert give(path)
    assert opened.text("#message button") == MENDED[name]
    opened.click("#message button")
    opened.wait("document.body.dataset.done")
    assert "6 drivers calibrated" in opened.text("#outcome")


def test_bad_drivers_are_left_out_by_one_click(give, opened, make_drivers, tmp_path):
    path = tmp_path / "drivers.csv"
    cell(120, "gap", -1.5)(make_drivers()).to_csv(path, index=False)
    assert give(path).startswith("driver r/1: pairs: drivers.csv: gap is -1.5 at line 122")
    assert opened.text("#message button") == "Leave out this driver and go on"
    opened.click("#message button")
    opened.wait("document.body.dataset.done")
    assert "5 drivers calibrated" in opened.text("#outcome")
    assert "skipped: 1" in opened.text("#outcome")


def test_other_names_and_units_are_matched_and_asked(give, opened, make_drivers, tmp_path):
    path = tmp_path / "names.csv"
    table = scaled(SPEEDS, 3.6)(scaled(["time"], 1000.0)(make_drivers()))
    renamed = {
        "pair_id": "Pair",
        "follower_id": "vehicle_id",
        "time": "Time [ms]",
        "gap": "Spacing (m)",
    }
    renamed |= {"speed": "Speed (km/h)", "leader_speed": "leader_speed_kmh"}
    table.rename(columns=renamed).drop(columns="recording").to_csv(path, index=False)
    give(path)
    assert opened.evaluate("document.querySelector('#columns').open")
    chosen = opened.evaluate(
        "[...document.querySelectorAll('#columns select')]"
        ".map((s) => [s.id, s.selectedOptions[0].text])"
    )
    assert dict(chosen) == {
        "column-recording": "(all rows are one recording)",
        "column-pair_id": "Pair",
        "column-follower_id": "vehicle_id",
        "column-time": "Time [ms]",
        "unit-time": "ms",
        "column-gap": "Spacing (m)",
        "unit-gap": "m",
        "column-speed": "Speed (km/h)",
        "unit-speed": "km/h",
        "column-leader_speed": "leader_speed_kmh",
        "unit-leader_speed": "km/h",
        "column-acceleration": "none",
        "unit-acceleration": "m/s²",
        "column-follower_class": "none",
        "column-leader_id": "none",
    }
    opened.click("#columns button.primary")
    opened.wait("document.body.dataset.done")
    assert "6 drivers calibrated" in opened.text("#outcome")


STEPS_AND_WORDS = [
    (0.1, "thinned"), (0.04, "thinned"), (0.5, "interpolated"), (0.15, "interpolated"),
]  # fmt: skip
READ = """
const file = new File([content], "d.csv");
const header = await readHeader(file);
const { columns } = matchColumns(header);
const places = Object.fromEntries(Object.entries(columns).filter(([, v]) => v !== null));
const table = await readTable(file, header, places, async () => {});
const { groups } = soundPairs(table, "d", 0.2);
const { pairs, drops } = makePairs(table, groups, { dt: 0.2, shortest: 75 });
const plain = (value) => (ArrayBuffer.isView(value) ? [...value] : value);
const lists = (pair) => Object.fromEntries(Object.entries(pair).map(([k, v]) => [k, plain(v)]));
return { drops: [...drops], pairs: pairs.map(lists) };
"""


@pytest.mark.parametrize(("step", "words"), STEPS_AND_WORDS)
def test_other_time_steps_are_resampled_as_the_command_does(step, words, run_js, make_drivers):
    from asbc.data.pairs import Pairs
    from asbc.data.resampling import resample
    from asbc.data.table import validate_pairs

    table = make_drivers(2, round(30 / step), step)
    content = table.to_csv(index=False)
    found = run_js(READ, content=content)
    read = validate_pairs(pd.read_csv(io.StringIO(content)), "d")
    resampled, done = resample(read, 0.2, "d")
    pairs = Pairs.from_table(resampled, 0.2)
    assert found["drops"] == [list(item) for item in done.items()] and words in str(done)
    for i, own in enumerate(found["pairs"]):
        expected = pairs.pair(i)
        assert (own["id"], own["follower"]) == (pairs.pair_id[i], pairs.follower[i])
        for name, key in (("gap", "gap"), ("speed", "speed"), ("leader_speed", "leader")):
            np.testing.assert_allclose(own[key], expected[name], rtol=1e-6)
        np.testing.assert_allclose(own["acceleration"], expected["acceleration"], atol=1e-5)


def test_python_formats_numbers_like_this(run_js):
    values = [0.0, 1.0, -1.0, 0.1, 1e-5, 123456.0, 1234567.0, 1e22, -2.5e-7, 3.14159265, 200.0]
    found = run_js(
        "return values.map((v) => [2, 3, 6, 9].map((digits) => formatG(v, digits)));",
        values=values,
    )
    assert found == [[format(v, f".{d}g") for d in (2, 3, 6, 9)] for v in values]
