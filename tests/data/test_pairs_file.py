"""Pairs files, good and bad."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.pairs_file import PairsFile, read_pairs, read_table
from asbc.data.table import validate_pairs
from asbc.errors import InputError


def put(column, value, row=7):
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table[column] = table[column].astype(object)
        table.loc[row, column] = value
        return table

    return change


def shift_time(table: pd.DataFrame) -> pd.DataFrame:
    table.loc[(table["pair_id"] == "p1") & (table["time"] > 10), "time"] += 0.2
    return table


# Line 9 of a CSV is row 7 of the table: the header is line 1.
CASES = {
    "missing column": (lambda t: t.drop(columns="gap"), ["missing column gap"]),
    "no rows": (lambda t: t[:0], ["no"]),
    "NaN": (put("speed", np.nan), ["speed is nan", "{7}", "finite"]),
    "infinite": (put("leader_speed", np.inf), ["leader_speed is inf", "{7}"]),
    "gap zero": (put("gap", 0.0), ["gap is 0", "{7}", "pair p0", "positive"]),
    "negative speed": (put("speed", -3.0), ["speed is -3", "{7}", "flip the sign"]),
    "id missing": (put("follower_id", None), ["follower_id is empty", "{7}"]),
    "two followers": (put("follower_id", "f9"), ["follower_id changes from f0 to f9", "{7}"]),
    "two leaders": (
        lambda t: put("leader_id", "l9")(t.assign(leader_id="l0")),
        ["leader_id changes from l0 to l9", "{7}", "own pair_id"],
    ),
    "duplicate": (put("time", 1.2), ["duplicate (pair, time)", "pair p0", "time 1.2"]),
    "stray": (put("speed", 1e9), ["speed is 1e+09", "{7}", "pair p0", "time 1.4", "mend the row"]),
    "milliseconds": (lambda t: t.assign(time=t["time"] * 1000), ["200 s", "divide time by 1000"]),
    "time jump": (shift_time, ["non-constant time step", "0.4 s before", "pair p1", "time 10.4"]),
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("case", CASES)
def test_bad_tables_are_named(case, ending, make_table, tmp_path):
    change, expected = CASES[case]
    table = change(make_table())
    path = tmp_path / f"pairs.{ending}"
    if ending == "csv":
        table.to_csv(path, index=False)
    else:
        numbers = table.columns.intersection(["time", "gap", "speed", "leader_speed"])
        table.astype(dict.fromkeys(numbers, float)).to_parquet(path)
    with pytest.raises(InputError) as error:
        PairsFile(path=str(path)).pairs()
    assert str(path) in str(error.value)
    for part in expected:
        wanted = {"csv": "line 9", "parquet": "row 7"}[ending] if part == "{7}" else part
        assert wanted in str(error.value)


def test_damaged_csv_files_are_named(make_table, tmp_path):
    path = tmp_path / "pairs.csv"
    text = make_table().to_csv(index=False)
    lines = text.splitlines(keepends=True)
    damaged = {
        "empty file": b"",
        "no data rows": lines[0].encode(),
        r"column gap: line 4: .*'wide'": "".join([*lines[:3], "r,p0,0.4,f0,wide,8,8"]).encode(),
        r"Expected 7 columns.*line is cut": text[:-30].encode(),
        r"line 3 is not UTF-8": b"".join([*map(str.encode, lines[:2]), b"\xff", b"x\n"]),
    }
    for message, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as error:
            read_table(path)
        assert str(path) in str(error.value)


def test_wrong_paths(tmp_path):
    with pytest.raises(InputError, match="no such file.*data.path"):
        read_table(tmp_path / "absent.csv")
    (tmp_path / "pairs.xlsx").touch()
    with pytest.raises(InputError, match="unknown ending.*.csv or .parquet"):
        read_table(tmp_path / "pairs.xlsx")
    (tmp_path / "pairs.parquet").write_text("not a parquet file")
    with pytest.raises(InputError, match="not a readable Parquet"):
        read_table(tmp_path / "pairs.parquet")


def test_format_and_row_order_do_not_matter(make_table, tmp_path, same_pairs):
    table = make_table(pairs=11, follower_class="car").assign(
        pair_id=lambda t: t["pair_id"].str[1:]
    )
    shuffled = table.sample(frac=1, random_state=0)
    table.to_csv(tmp_path / "a.csv", index=False)
    shuffled.astype({"pair_id": int}).to_parquet(tmp_path / "b.parquet")
    first, second = (PairsFile(path=str(tmp_path / n)).pairs() for n in ("a.csv", "b.parquet"))
    same_pairs(first, second)
    assert first.follower_class == ("car",) * 11


def test_same_pair_id_in_two_recordings_is_two_pairs(make_table, tmp_path):
    table = pd.concat([make_table(), make_table().assign(recording="s")])
    table.to_parquet(tmp_path / "p.parquet")
    pairs = PairsFile(path=str(tmp_path / "p.parquet")).pairs()
    assert len(set(pairs.pair_id)) == len(set(pairs.follower)) == 6


def test_finer_recordings_are_decimated(make_table, tmp_path, same_pairs):
    coarse, fine = tmp_path / "5hz.csv", tmp_path / "10hz.csv"
    make_table(samples=250, step=0.2).to_csv(coarse, index=False)
    make_table(samples=500, step=0.1).to_csv(fine, index=False)
    # The optional acceleration is absent: it is the difference over dt at either rate.
    same_pairs(PairsFile(path=str(coarse)).pairs(), PairsFile(path=str(fine)).pairs(), 1e-5)


def test_a_time_step_that_is_too_coarse_is_named(make_table, tmp_path):
    make_table(step=0.6, samples=500).to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(InputError, match="pair p0.*0.6 s.*data.dt=0.2 s.*at most 0.5"):
        PairsFile(path=str(tmp_path / "p.csv")).pairs()


def test_short_pairs_are_dropped_and_counted(make_table, tmp_path):
    long = make_table(pairs=4, samples=200)  # exactly 40 s: 200 samples of 0.2 s
    short = make_table(pairs=2, samples=199).assign(recording="short")
    pd.concat([long, short]).to_csv(tmp_path / "p.csv", index=False)
    source = PairsFile(path=str(tmp_path / "p.csv"))
    assert source.pairs().lengths.tolist() == [200] * 4
    assert source._prepared.drops == {"segments shorter than 40 s": 2}


def test_context_longer_than_a_pair_names_the_setting(make_table, tmp_path):
    make_table(samples=200).to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(InputError, match="data.context_steps=201.*p0.*200 samples"):
        PairsFile(path=str(tmp_path / "p.csv"), context_steps=201).pairs()


@pytest.mark.parametrize("bad", [{"dt": 0.0}, {"context_steps": 1}, {"min_duration": -1.0}])
def test_bad_settings_fail_at_construction(bad):
    with pytest.raises(InputError, match=f"data.{next(iter(bad))}="):
        PairsFile(path="p.csv", **bad)


def test_validation_leaves_its_input_alone(make_table):
    table = make_table()
    before = table.copy()
    validate_pairs(table, "test")
    pd.testing.assert_frame_equal(table, before)


def test_tables_and_files_give_the_same_pairs(make_table, tmp_path, same_pairs):
    table = make_table(samples=30)
    table.to_csv(tmp_path / "p.csv", index=False)
    same_pairs(read_pairs(table), read_pairs(tmp_path / "p.csv"))
    with pytest.raises(InputError, match="a table in memory: speed is 1e.09 at row 7 .*pair p0"):
        read_pairs(put("speed", 1e9)(table))
    with pytest.raises(InputError, match="a table in memory: no rows"):
        read_pairs(table[:0])


def test_real_ngsim_pairs_load_and_split():
    path = Path(__file__).parents[3] / "shared/data/ngsim_i80/pairs.parquet"
    if not path.exists():
        pytest.skip("the real pairs are not here")
    splits = PairsFile(path=str(path)).splits()
    parts = (splits.train, splits.validation, splits.test)
    assert [len(part) for part in parts] == [120, 20, 60]
    drivers = [set(part.follower) for part in parts]
    assert not (drivers[0] & drivers[1] or drivers[0] & drivers[2] or drivers[1] & drivers[2])
    # Against the file itself: every second row of a pair of 10 Hz.
    raw = pd.read_parquet(path)
    recording, pair_id = splits.test.pair_id[3].split("/")
    raw = raw[(raw["recording"] == recording) & (raw["pair_id"] == int(pair_id))]
    wanted = torch.tensor(raw.sort_values("time")["gap"].to_numpy()[::2], dtype=torch.float32)
    assert torch.equal(splits.test.pair(3)["gap"], wanted)
