"""Files with bad drivers: the run stops with a name, or skips exactly those."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.driver_store import store_drivers
from asbc.data.pairs_file import Drivers, PairsFile, PairsFrame, load_drivers
from asbc.engine import LocalEngine
from asbc.errors import InputError

DRIVERS, STEPS = 9, 30


@pytest.fixture(params=["in memory", "on disk"])
def load(request, tmp_path_factory):  # type: ignore[no-untyped-def]
    """Both ways to the drivers of a file, which say the same."""
    if request.param == "in memory":
        return load_drivers

    def through_disk(source: PairsFile, on_error: str) -> Drivers:
        folder = tmp_path_factory.mktemp("store") / "drivers"
        with LocalEngine(workers=1).pool() as pool:
            store = store_drivers(source, folder, on_error, 1.0, pool)
        pairs = store.piece(0, len(store)).pairs()
        return Drivers(pairs, store.skipped, store.drops)

    return through_disk


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.concat(
        pd.DataFrame(
            {
                "recording": "r",
                "pair_id": f"p{i}",
                "follower_id": f"f{i}",
                "time": np.arange(STEPS) * 0.2,
                "gap": rng.uniform(10, 20, STEPS).round(3),
                "speed": rng.uniform(5, 10, STEPS).round(3),
                "leader_speed": rng.uniform(5, 10, STEPS).round(3),
            }
        )
        for i in range(DRIVERS)
    ).reset_index(drop=True)


def damage(column: str, row: int, value: object):  # type: ignore[no-untyped-def]
    def apply(data: pd.DataFrame) -> pd.DataFrame:
        data = data.astype({column: object})
        data.loc[row, column] = value
        return data

    return apply


DAMAGES = {
    "nan": (damage("gap", 3 * STEPS + 4, None), "p3", "gap is"),
    "text": (damage("speed", 3 * STEPS + 4, "fast"), "p3", "fast"),
    "gap": (damage("gap", 3 * STEPS + 4, -2.0), "p3", "gap is -2"),
    "time step": (damage("time", 4 * STEPS - 1, 7.7), "p3", "non-constant time step"),
    "duplicate": (damage("time", 3 * STEPS + 4, 0.6), "p3", "duplicate"),
    "stray": (
        damage("speed", 3 * STEPS + 4, 1e9),
        "p3",
        "speed is 1e.09 at line 96 .*mend the row",
    ),
    "jump": (damage("gap", 3 * STEPS + 4, 520.0), "p3", "gap jumps by .* at line 96"),
    "follower": (damage("follower_id", 3 * STEPS + 4, "f9"), "p3", "follower_id changes"),
}


def write(data: pd.DataFrame, path: Path) -> PairsFile:
    data.to_csv(path, index=False)
    return PairsFile(path=str(path), context_steps=20, min_duration=4.0)


@pytest.mark.parametrize("kind", DAMAGES)
def test_one_bad_driver_stops_the_run_with_its_name(load, kind: str, tmp_path: Path) -> None:
    apply, name, reason = DAMAGES[kind]
    source = write(apply(table()), tmp_path / "pairs.csv")
    with pytest.raises(InputError, match=f"driver r/{name}: .*{reason}.*on_error=skip"):
        load(source, "stop")


@pytest.mark.parametrize("kind", DAMAGES)
def test_skipping_leaves_all_other_drivers_as_they_were(load, kind: str, tmp_path: Path) -> None:
    apply, name, reason = DAMAGES[kind]
    whole = load(write(table(), tmp_path / "whole.csv"), "stop").pairs
    found = load(write(apply(table()), tmp_path / "pairs.csv"), "skip")
    assert list(found.skipped) == [f"r/{name}"]
    assert re.search(reason, found.skipped[f"r/{name}"])
    kept = [i for i, p in enumerate(whole.pair_id) if p != f"r/{name}"]
    expected = whole.select(kept)
    assert found.pairs.pair_id == expected.pair_id
    for column in ("gap", "speed", "leader_speed", "acceleration"):
        assert torch.equal(getattr(found.pairs, column), getattr(expected, column))


def test_several_bad_drivers_are_all_found(load, tmp_path: Path) -> None:
    data = table()
    for row, value in ((5, None), (4 * STEPS, -1.0), (8 * STEPS + 2, 0.0)):
        data = damage("gap", row, value)(data)
    found = load(write(data, tmp_path / "pairs.csv"), "skip")
    assert set(found.skipped) == {"r/p0", "r/p4", "r/p8"} and len(found.pairs) == 6
    assert "line 7" in found.skipped["r/p0"]


def test_a_truncated_file_costs_its_last_driver_only(load, tmp_path: Path) -> None:
    source = write(table(), tmp_path / "pairs.csv")
    text = (tmp_path / "pairs.csv").read_text()
    (tmp_path / "pairs.csv").write_text(text[: text.rstrip().rindex(",") - 2])
    found = load(source, "skip")
    assert list(found.skipped) == ["r/p8"] and len(found.pairs) == 8


def test_parquet_files_are_searched_too(load, tmp_path: Path) -> None:
    data = table()
    data.loc[2 * STEPS, "gap"] = np.nan
    data.to_parquet(tmp_path / "pairs.parquet")
    source = PairsFile(path=str(tmp_path / "pairs.parquet"), context_steps=20, min_duration=4.0)
    assert list(load(source, "skip").skipped) == ["r/p2"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_tables_in_memory_are_searched_too(kind: str) -> None:
    apply, name, reason = DAMAGES[kind]
    source = PairsFrame(frame=apply(table()), context_steps=20, min_duration=4.0)
    reason = reason.replace("line 96", "row 94")
    with pytest.raises(InputError, match=f"driver r/{name}: .*{reason}.*on_error=skip"):
        load_drivers(source, "stop")
    found = load_drivers(source, "skip")
    assert list(found.skipped) == [f"r/{name}"] and len(found.pairs) == DRIVERS - 1


def test_drivers_too_short_for_the_context_are_counted(load, tmp_path: Path) -> None:
    data = table()
    data = data[~((data["pair_id"] == "p5") & (data["time"] > 3.0))]
    found = load(write(data, tmp_path / "pairs.csv"), "stop")
    assert len(found.pairs) == 8 and found.drops == {"segments shorter than 4 s": 1}


def test_a_file_that_is_bad_as_a_whole_stops_whatever_is_wanted(load, tmp_path: Path) -> None:
    source = write(table().drop(columns="gap"), tmp_path / "pairs.csv")
    with pytest.raises(InputError, match="missing column gap"):
        load(source, "skip")
    missing = PairsFile(path=str(tmp_path / "none.csv"), context_steps=20, min_duration=4.0)
    with pytest.raises(InputError, match="no such file"):
        load(missing, "skip")
    nothing = write(table().assign(gap=-1.0), tmp_path / "bad.csv")
    with pytest.raises(InputError, match="gap is -1 at line 2"):
        load(nothing, "skip")
    with pytest.raises(InputError, match="driver r/p0: .*gap is -1 at line 2"):
        load(nothing, "stop")


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_file_without_rows_is_named_with_a_remedy(
    load, ending: str, on_error: str, tmp_path: Path
) -> None:
    path = tmp_path / f"pairs.{ending}"
    empty = table()[:0]
    empty.to_csv(path, index=False) if ending == "csv" else empty.to_parquet(path)
    with pytest.raises(
        InputError, match="no (data )?rows.*(write it again|needs at least one pair)"
    ) as error:
        load(PairsFile(path=str(path)), on_error)
    assert str(path) in str(error.value) and "driver" not in str(error.value)


def driven(pairs: int = DRIVERS) -> pd.DataFrame:
    """Followers whose gap swings by several metres, as their speeds say."""
    time = np.arange(150) * 0.2
    parts = []
    for i in range(pairs):
        opening = 2.5 * np.cos(time / 3 + i)
        parts.append(
            pd.DataFrame(
                {"recording": "r", "pair_id": f"p{i}", "follower_id": i, "time": time}
            ).assign(gap=20 + 7.5 * np.sin(time / 3 + i), speed=10.0, leader_speed=10 + opening)
        )
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_wrong_unit_is_no_fault_of_single_drivers(load, on_error: str, tmp_path: Path) -> None:
    data = driven()
    data[["speed", "leader_speed"]] *= 3.6
    source = write(data, tmp_path / "pairs.csv")
    with pytest.raises(InputError, match="pairs.csv: speed.* look like km/h.*by 3.6$"):
        load(source, on_error)
    data.loc[5, "gap"] = np.nan  # a bad cell does not hide the unit, nor single out drivers
    with pytest.raises(InputError, match="pairs.csv: speed.* look like km/h.*by 3.6$"):
        load(write(data, tmp_path / "pairs.csv"), on_error)


def test_single_drivers_in_another_unit_are_left_out(load, tmp_path: Path) -> None:
    data = driven()
    odd = data["pair_id"].isin(["p2", "p7"])
    data.loc[odd, ["speed", "leader_speed"]] *= 3.6
    source = write(data, tmp_path / "pairs.csv")
    with pytest.raises(InputError, match="driver r/p2: .*km/h at line 302.*on_error=skip"):
        load(source, "stop")
    found = load(source, "skip")
    assert set(found.skipped) == {"r/p2", "r/p7"} and len(found.pairs) == 7
    assert all("look like km/h" in reason for reason in found.skipped.values())
