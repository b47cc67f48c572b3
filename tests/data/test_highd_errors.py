"""Bad highD input: each error names the place and a remedy; nothing is dropped silently."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from asbc.data.highd import HighD
from asbc.errors import InputError


def edit(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        table = pd.read_csv(root / name, dtype=str, keep_default_na=False)
        change(table).to_csv(root / name, index=False)

    return apply


def cell(column: str, value: str, row: int = 3) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[row, column] = value
        return table

    return change


def cut_last_line(root: Path) -> None:
    path = root / "01_tracks.csv"
    path.write_text(path.read_text().rstrip("\n")[:-20])


def cut_at_a_line(root: Path) -> None:
    path = root / "01_tracks.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-50]))


def wrong_bytes(root: Path) -> None:
    """In a column that the loader does not even read."""
    path = root / "01_tracks.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].rstrip(b"\r\n") + b"\xff\xfe\n"
    path.write_bytes(b"".join(lines))


def in_frame(vehicle: int, frame: int, column: str, value: float):
    def change(table: pd.DataFrame) -> pd.DataFrame:
        at = (table["id"] == str(vehicle)) & (table["frame"] == str(frame))
        table.loc[at, column] = str(value)
        return table

    return change


TRACKS, META, RATE = "01_tracks.csv", "01_tracksMeta.csv", "01_recordingMeta.csv"
CASES = {
    "missing tracksMeta": (lambda r: (r / META).unlink(), ["recording 01", META]),
    "missing recordingMeta": (lambda r: (r / RATE).unlink(), ["recording 01", RATE]),
    "missing tracks": (lambda r: (r / TRACKS).unlink(), ["recording 01", TRACKS]),
    "missing column": (
        edit(TRACKS, lambda t: t.drop(columns="precedingId")),
        [TRACKS, "missing column precedingId"],
    ),
    "missing meta column": (
        edit(META, lambda t: t.drop(columns="drivingDirection")),
        [META, "missing column drivingDirection"],
    ),
    "empty file": (lambda r: (r / TRACKS).write_text(""), [TRACKS, "empty file"]),
    "header only": (edit(TRACKS, lambda t: t[:0]), [TRACKS, "no data rows"]),
    "text in a number": (
        edit(TRACKS, cell("x", "12,5m")),
        [TRACKS, "column x", "line 5", "12,5m"],
    ),
    "text in an id": (
        edit(TRACKS, cell("precedingId", "abc")),
        [TRACKS, "precedingId", "line 5", "abc"],
    ),
    "NaN": (edit(TRACKS, cell("xVelocity", "NaN")), [TRACKS, "xVelocity", "line 5", "finite"]),
    "empty cell": (edit(TRACKS, cell("frame", "")), [TRACKS, "frame", "line 5"]),
    "infinite": (edit(TRACKS, cell("x", "inf")), [TRACKS, "x is inf", "line 5"]),
    "NaN in meta": (edit(META, cell("width", "nan")), [META, "width", "line 5"]),
    "wrong direction": (edit(META, cell("drivingDirection", "3")), [META, "3", "1 (to -x)"]),
    "vehicle twice in meta": (
        edit(META, lambda t: pd.concat([t, t[:1]])),
        [META, "appears twice", "line 10"],
    ),
    "vehicle not in meta": (
        edit(META, lambda t: t[t["id"] != "21"]),
        [TRACKS, "vehicle 21", META],
    ),
    "frame rate zero": (edit(RATE, cell("frameRate", "0", row=0)), [RATE, "frameRate", "Hz"]),
    "frame rate does not fit": (
        edit(RATE, cell("frameRate", "24", row=0)),
        ["recording 01", "0.0416667", "data.dt=0.2"],
    ),
    "duplicate frame": (
        edit(TRACKS, in_frame(7, 100, "frame", 99)),
        [TRACKS, "vehicle 7", "frame 99 twice", "line"],
    ),
    "frame missing": (
        edit(TRACKS, lambda t: t[(t["id"] != "7") | (t["frame"] != "100")]),
        [TRACKS, "vehicle 7 has 439 rows", "numFrames=440"],
    ),
    "unknown leader": (
        edit(TRACKS, in_frame(7, 100, "precedingId", 99)),
        [TRACKS, "vehicle 7 at frame 100", "vehicle 99", "skip_defects"],
    ),
    "gap below zero": (
        edit(TRACKS, in_frame(7, 101, "x", 400.0)),
        [TRACKS, "gap <= 0", "pair 7-11@0.0", "time 20", "skip_defects"],
    ),
    "backwards": (
        edit(TRACKS, in_frame(7, 101, "xVelocity", -10.0)),
        [TRACKS, "driving direction", "pair 7-11@0.0", "time 20"],
    ),
    "stray speed": (
        edit(TRACKS, in_frame(7, 101, "xVelocity", 300.0)),
        [TRACKS, "speed is 300 at line", "pair 7-11@0.0", "time 20", "skip_defects"],
    ),
    "truncated last line": (cut_last_line, [TRACKS, "Expected 25 columns", "line is cut"]),
    "truncated at a line": (cut_at_a_line, [TRACKS, "numFrames", "incomplete"]),
    "not UTF-8": (wrong_bytes, [TRACKS, "line 6", "UTF-8"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case, write_highd, tmp_path):
    root = write_highd(every=5)
    damage, expected = CASES[case]
    damage(root)
    with pytest.raises(InputError) as error:
        HighD(root=str(root), cache_dir=str(tmp_path / "cache")).pairs()
    for part in expected:
        assert part in str(error.value)
    assert not list((tmp_path / "cache").glob("*")), "a failed load must leave no cache"


def test_folder_without_recordings(tmp_path):
    with pytest.raises(InputError, match="no recordings in .*NN_tracks.csv"):
        HighD(root=str(tmp_path)).pairs()
    with pytest.raises(InputError, match="not a folder.*data.root"):
        HighD(root=str(tmp_path / "absent")).pairs()


@pytest.mark.parametrize(
    ("column", "value", "reason", "kept"),
    [
        ("x", 400.0, "segments with overlapping vehicles (gap <= 0)", 4),
        ("xVelocity", -10.0, "segments with a vehicle driving backwards", 4),
        ("precedingId", 99, "segments whose leader id is unknown", 4),
        ("xVelocity", 300.0, "segments that move as no road vehicle does", 4),
    ],
)
def test_skipped_defects_are_counted(column, value, reason, kept, write_highd, tmp_path):
    root = write_highd(every=5)
    edit(TRACKS, in_frame(7, 101, column, value))(root)
    source = HighD(root=str(root), cache_dir=str(tmp_path / "cache"), skip_defects=True)
    assert len(source.pairs()) == kept
    assert source._prepared.drops[reason] == 1


def test_nothing_long_enough_says_what_was_dropped(write_highd, tmp_path):
    source = HighD(root=str(write_highd(every=5)), cache_dir=str(tmp_path), min_duration=100.0)
    with pytest.raises(InputError, match="no usable pair.*6 segments shorter than 100 s"):
        source.pairs()
