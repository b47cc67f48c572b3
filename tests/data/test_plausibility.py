"""Motion of road vehicles passes however it jitters; other units and stray rows are named."""

import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asbc.data.plausibility import faults
from asbc.data.table import check_format, motion_defects, time_steps, validate_pairs
from asbc.errors import InputError

REAL = [
    Path(__file__).parents[3] / "shared/data" / name / "pairs.parquet"
    for name in ("ngsim_i80", "lyft_l5")
]
SPEEDS = ["speed", "leader_speed"]


def followers(seed: int, dt: float = 0.2, pairs: int = 4, seconds: float = 60.0) -> pd.DataFrame:
    """IDM drivers behind leaders that speed up and slow down, with a full stop here and there."""
    rng = np.random.default_rng(seed)
    steps = int(seconds / dt)
    time_ = np.arange(steps) * dt
    mean, depth, phase = rng.uniform([[5], [2], [0]], [[25], [8], [6]], (3, pairs))
    leader = np.clip(mean[:, None] + depth[:, None] * np.sin(time_ / 6 + phase[:, None]), 0, None)
    headway, a_max, v0 = rng.uniform([[0.8], [0.6], [28]], [[2.0], [2.0], [38]], (3, pairs))
    speed, gap = np.empty_like(leader), np.empty_like(leader)
    speed[:, 0], gap[:, 0] = leader[:, 0], 5 + leader[:, 0] * headway
    for t in range(steps - 1):
        v, s, approach = speed[:, t], gap[:, t], speed[:, t] - leader[:, t]
        wish = 2 + np.maximum(0, v * headway + v * approach / (2 * np.sqrt(a_max * 2)))
        drive = a_max * (1 - (v / v0) ** 4 - (wish / np.maximum(s, 0.5)) ** 2)
        speed[:, t + 1] = np.maximum(0, v + dt * np.clip(drive, -9, 4))
        opening = (leader[:, t] + leader[:, t + 1] - v - speed[:, t + 1]) / 2
        gap[:, t + 1] = np.maximum(0.5, s + dt * opening)
    return pd.DataFrame(
        {
            "recording": "r",
            "pair_id": np.repeat([f"p{i}" for i in range(pairs)], steps),
            "follower_id": np.repeat([f"f{i}" for i in range(pairs)], steps),
            "time": np.tile(time_, pairs),
            "gap": gap.ravel(),
            "speed": speed.ravel(),
            "leader_speed": leader.ravel(),
        }
    )


def scaled(table: pd.DataFrame, factor: float, *columns: str) -> pd.DataFrame:
    return table.assign(**{name: table[name] * factor for name in columns})


def jittered(table: pd.DataFrame, seed: int, speed: float, gap: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    noise = {name: rng.normal(0, speed, len(table)) for name in SPEEDS}
    noisy = table.assign(**{name: (table[name] + noise[name]).clip(lower=0) for name in SPEEDS})
    noisy["gap"] = (table["gap"] + rng.normal(0, gap, len(table))).clip(lower=0.1)
    return noisy


UNITS = {
    "km/h": (lambda t: scaled(t, 3.6, *SPEEDS), "look like km/h.*divide both by 3.6"),
    "mph": (lambda t: scaled(t, 2.23694, *SPEEDS), "look like mph.*divide both by 2.237"),
    "ft/s": (
        lambda t: scaled(t, 3.28084, *SPEEDS),
        "look like km/h or ft/s.*divide both by 3.6 or 3.281",
    ),
    "cm/s": (lambda t: scaled(t, 100, *SPEEDS), "look like cm/s.*divide both by 100"),
    "feet": (lambda t: scaled(t, 3.28084, "gap"), "gap looks like feet.*divide it by 3.281"),
    "cm": (lambda t: scaled(t, 100, "gap"), "gap looks like cm.*divide it by 100"),
    "ms": (
        lambda t: scaled(t, 1000, "time"),
        "step is [0-9]+ s.*looks like ms; divide time by 1000",
    ),
    "ns": (lambda t: scaled(t, 1e9, "time"), "looks like ns; divide time by 1e.09"),
    "exchanged": (
        lambda t: t.rename(columns={"speed": "leader_speed", "leader_speed": "speed"}),
        "look exchanged.*swap",
    ),
    "one of two": (lambda t: scaled(t, 3.6, "speed"), "speed is 3.* times leader_speed.*m/s"),
}


@pytest.mark.parametrize("dt", [0.04, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_correct_motion_always_passes_and_other_units_never(seed, dt):
    table = followers(seed, dt)
    validate_pairs(table, "t")
    validate_pairs(table.round({"gap": 2, "speed": 2, "leader_speed": 2}), "t")  # as highD has it
    validate_pairs(jittered(table, seed, speed=0.3, gap=0.3), "t")
    for name in ("km/h", "mph", "feet"):
        change, message = UNITS[name]
        with pytest.raises(InputError, match=f"^t: .*{message}") as error:
            validate_pairs(jittered(change(table), seed, speed=0.3, gap=0.3), "t")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", UNITS)
def test_the_probable_unit_and_its_remedy_are_named(name):
    change, message = UNITS[name]
    table = followers(1, pairs=12)
    for order in (slice(None), np.random.default_rng(0).permutation(len(table))):
        with pytest.raises(InputError, match=message):
            validate_pairs(change(table).iloc[order], "t")


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0, 2.0])
def test_steady_following_says_nothing_about_units(noise):
    """Noise alone must not pass for motion that the gap does not follow."""
    steady = followers(0).assign(gap=20.0, speed=40.0, leader_speed=40.0)
    for seed in range(5):
        validate_pairs(jittered(steady, seed, speed=noise, gap=noise), "t")
        small = 40 + 0.5 * np.sin(steady["time"])  # noise in the speeds hides half of the motion
        gap = 20 - 0.5 * np.cos(steady["time"])
        slow = steady.assign(leader_speed=small, gap=gap)
        validate_pairs(jittered(slow, seed, speed=noise, gap=noise / 3), "t")


def test_hard_braking_and_standstill_pass():
    t = np.arange(0, 40, 0.2)
    leader = np.clip(30 - 9 * np.clip(t - 5, 0, None), 0, None)
    speed = np.clip(30 - 9.5 * np.clip(t - 5.6, 0, None), 0, None)
    gap = 40 + np.append(0, np.cumsum(((leader - speed)[1:] + (leader - speed)[:-1]) / 2 * 0.2))
    table = followers(0, pairs=1, seconds=40.0).assign(gap=gap, speed=speed, leader_speed=leader)
    validate_pairs(table, "t")


@pytest.mark.parametrize("row", [0, 1, 37, 149, 150, 299])
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("speed", 1e9, "speed is 1e.09 at ROW, more than a road vehicle drives .80 m/s.; mend"),
        ("speed", 300.0, "speed is 300 at ROW, more than a road vehicle drives"),
        ("speed", 110.0, "speed is 110 at ROW, .*mend .*divide both speeds by 3.6 if .* km/h"),
        ("speed", 75.0, "^t: speed jumps by .* m/s within 0.2 s at ROW, more than a road vehicle"),
        ("leader_speed", 1e300, "leader_speed is 1e.300 at ROW"),
        ("leader_speed", 60.0, "leader_speed jumps by .* at ROW"),
        ("gap", 520.0, "gap jumps by .* m within 0.2 s at ROW, which the speeds do not explain"),
        ("gap", 5000.0, "gap is 5000 at ROW, farther than anybody follows"),
        ("acceleration", -500.0, "acceleration is -500 at ROW, more than a road vehicle can"),
    ],
)
def test_a_stray_outlier_names_its_row(column, value, message, row):
    table = followers(3, pairs=2, seconds=30.0).assign(acceleration=0.0)
    table.index = pd.RangeIndex(2, len(table) + 2, name="line")
    pair, moment = table["pair_id"].iloc[row], table["time"].iloc[row]
    table.iloc[row, table.columns.get_loc(column)] = value
    place = re.escape(f"line {row + 2} (recording r, pair {pair}, time {moment:g})")
    for order in (slice(None), np.random.default_rng(row).permutation(len(table))):
        with pytest.raises(InputError, match=message.replace("ROW", place)):
            validate_pairs(table.iloc[order], "t")


def test_a_new_leader_inside_a_pair_is_named():
    table = followers(0, pairs=3)
    rows = table.index[(table["pair_id"] == "p1") & (table["time"] >= 30)]
    table.loc[rows, "gap"] += 25
    with pytest.raises(InputError, match="gap jumps by 25 m.*pair p1, time 30.*own pair_id"):
        validate_pairs(table, "t")


def test_one_pair_in_another_unit_is_named_and_the_others_are_not():
    table = followers(2, pairs=8)
    odd = table["pair_id"] == "p5"
    table.loc[odd, SPEEDS] *= 3.6
    found = list(motion_defects(check_format(table, "t"), "t"))
    assert {table["pair_id"].iloc[defect.row] for defect in found} == {"p5"}
    assert re.search("look like km/h at row .*pair p5.*divide both by 3.6", found[0].message)


def test_speeds_of_another_vehicle_are_named():
    table = followers(4, pairs=8)
    other = followers(5, pairs=8)["leader_speed"] + 4
    with pytest.raises(
        InputError, match="speeds do not fit together, as .* m in 3 s; give time in s"
    ):
        validate_pairs(table.assign(leader_speed=other), "t")


def test_free_flow_in_other_units_is_seen_without_relative_motion():
    steady = followers(0).assign(gap=60.0, speed=120.0, leader_speed=120.0)
    with pytest.raises(
        InputError, match="speed is out of range in 100% .*km/h: divide both by 3.6"
    ):
        validate_pairs(steady, "t")
    with pytest.raises(InputError, match="gap is out of range in 100% .*cm or mm"):
        validate_pairs(steady.assign(gap=3000.0, speed=30.0, leader_speed=30.0), "t")


def test_pairs_of_different_time_steps_and_lengths_are_judged_together():
    parts = [followers(7, dt, pairs=3).assign(recording=f"{dt}") for dt in (0.04, 0.2, 0.5)]
    lone, brief = followers(8, pairs=1).head(1), followers(9, pairs=1)[5:7]
    table = pd.concat([*parts, lone.assign(recording="lone"), brief.assign(recording="brief")])
    validate_pairs(table, "t")
    with pytest.raises(InputError, match="km/h"):
        validate_pairs(scaled(table, 3.6, *SPEEDS), "t")


def test_millions_of_rows_take_seconds():
    table = check_format(followers(0, dt=0.1, pairs=50), "t")
    starts, steps = time_steps(table)
    copies = 50
    many = pd.concat([table] * copies, ignore_index=True)
    starts = (starts + len(table) * np.arange(copies)[:, None]).ravel()
    begin = time.process_time()
    assert not list(faults(many, starts, np.tile(steps, copies)))
    assert len(many) == 1_500_000 and time.process_time() - begin < 2.0


@pytest.fixture(scope="module", params=REAL, ids=lambda path: path.parent.name)
def real(request) -> pd.DataFrame:
    if not request.param.exists():
        pytest.skip("the real pairs are not here")
    return check_format(pd.read_parquet(request.param), "t")


def test_all_real_pairs_pass_together_and_alone(real):
    assert not list(motion_defects(real, "t"))
    for number, (_, pair) in enumerate(real.groupby(["recording", "pair_id"], sort=False)):
        if number % 5 == 0:
            assert not list(motion_defects(pair, "t"))


def test_real_pairs_pass_at_other_rates_and_with_rounding(real):
    place = real.groupby(["recording", "pair_id"], sort=False).cumcount()
    assert not list(motion_defects(real[place % 2 == 0], "t"))
    assert not list(motion_defects(real.round({"gap": 1, "speed": 1, "leader_speed": 1}), "t"))
    assert not list(motion_defects(jittered(real, 0, speed=0.3, gap=0.3), "t"))


@pytest.mark.parametrize("name", [name for name in UNITS if name != "ft/s"])
def test_real_pairs_in_other_units_are_refused(name, real):
    change, message = UNITS[name]
    with pytest.raises(InputError, match=message):
        validate_pairs(change(real), "t")


@pytest.mark.parametrize("column", ["speed", "leader_speed", "gap"])
def test_a_stray_in_real_pairs_names_its_row(column, real):
    for row in np.random.default_rng(0).integers(len(real), size=5):
        damaged = real.copy()
        damaged.iloc[row, damaged.columns.get_loc(column)] = 300.0
        found = [defect.row for defect in motion_defects(damaged, "t")]
        assert found[0] == row
