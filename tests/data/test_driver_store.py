"""Tables of any size and order: the drivers that reading them at once would give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from asbc.data import driver_store, row_batches, sorted_buckets
from asbc.data.driver_store import GivenDrivers, StoredDrivers, store_drivers
from asbc.data.pairs import STATE_COLUMNS, Pairs
from asbc.data.pairs_file import PairsFile
from asbc.data.row_batches import RowBatches
from asbc.engine import LocalEngine
from asbc.engine.pool import OwnProcess
from asbc.errors import InputError

STEPS = 30


def table(pairs: int = 40, seed: int = 0) -> pd.DataFrame:
    """Pairs of several recordings, some of them short, at two time steps."""
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(pairs):
        steps, dt = (STEPS, 0.2) if i % 3 else (2 * STEPS, 0.1)
        steps = 10 if i % 7 == 6 else steps
        parts.append(
            pd.DataFrame(
                {
                    "recording": f"r{i % 4}",
                    "pair_id": i,
                    "follower_id": 100 + i,
                    "time": np.arange(steps) * dt,
                    "gap": rng.uniform(10, 20, steps).round(3),
                    "speed": rng.uniform(5, 7, steps).round(3),
                    "leader_speed": rng.uniform(5, 7, steps).round(3),
                    "follower_class": "car" if i % 2 else "truck",
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def source(path: Path | str) -> PairsFile:
    return PairsFile(path=str(path), context_steps=20, min_duration=4.0)


def stored(path: Path | str, folder: Path, workers: int = 1, on_error="stop") -> StoredDrivers:
    with LocalEngine(workers=workers).pool() as pool:
        return store_drivers(source(path), folder, on_error, 1.0, pool)


def divided(
    path: str, folder: Path, rows: int, by: str = "pair_id"
) -> list[sorted_buckets.Bucket]:
    with LocalEngine(workers=1).pool() as pool:
        stretches = RowBatches.of(path).stretches()
        return sorted_buckets.sorted_buckets(stretches, folder, rows, pool, by)


@pytest.fixture
def small_steps(monkeypatch):
    """Batches and buckets of a few rows, so that a small table is divided, and divided again."""
    monkeypatch.setattr(row_batches, "BATCH", 50)
    monkeypatch.setattr(row_batches, "CSV_BLOCK", 2000)
    monkeypatch.setattr(row_batches, "STRETCH", 200)
    monkeypatch.setattr(sorted_buckets, "MOST_BUCKETS", 4)
    monkeypatch.setattr(sorted_buckets, "FILE_ROWS", 120)
    original = driver_store.sorted_buckets

    def smaller(stretches, folder, bucket_rows, pool, by):
        return original(stretches, folder, 60, pool, by)

    monkeypatch.setattr(driver_store, "sorted_buckets", smaller)


def equal(one: Pairs, other: Pairs) -> bool:
    names = ("pair_id", "follower", "recording", "follower_class", "dt")
    return all(getattr(one, n) == getattr(other, n) for n in names) and all(
        torch.equal(getattr(one, n), getattr(other, n)) for n in (*STATE_COLUMNS, "offsets")
    )


def write_as(data: pd.DataFrame, kind: str, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    half = len(data) // 2
    if kind == "csv":
        data.to_csv(folder / "pairs.csv", index=False)
        return str(folder / "pairs.csv")
    if kind == "parquet":
        data.to_parquet(folder / "pairs.parquet")
        return str(folder / "pairs.parquet")
    data[:half].to_csv(folder / "a.csv", index=False)
    data[half:].to_parquet(folder / "b.parquet")
    return str(folder) if kind == "folder" else str(folder / "*.[cp]*")


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder", "glob"])
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_any_order_and_format_gives_what_one_table_in_memory_gives(
    kind, order, small_steps, tmp_path
):
    data = table()
    data.to_csv(tmp_path / "whole.csv", index=False)
    whole = source(tmp_path / "whole.csv")
    if order == "shuffled":
        data = data.sample(frac=1, random_state=1)
    store = stored(write_as(data, kind, tmp_path / "data"), tmp_path / "store")
    assert len(store) == len(whole.pairs()) and store.drops == whole.drops
    assert equal(store.piece(0, len(store)).pairs(), whole.pairs())
    assert len(list((tmp_path / "store").glob("*.parquet"))) > 8
    assert store.fingerprint == GivenDrivers(whole.pairs()).fingerprint
    for start, stop in ((0, 1), (3, 17), (len(store) - 2, len(store))):
        assert equal(store.piece(start, stop).pairs(), whole.pairs().select(range(start, stop)))


def test_no_bucket_is_larger_than_asked_for_unless_one_pair_is(small_steps, tmp_path):
    path = write_as(table().sample(frac=1, random_state=0), "csv", tmp_path / "d")
    buckets = divided(path, tmp_path / "b", 60)
    assert sum(b.rows for b in buckets) == len(table())
    keys = [
        set(zip(*(b.read()[n].to_pylist() for n in ("recording", "pair_id")), strict=True))
        for b in buckets
    ]
    assert all(b.rows <= 120 or len(k) == 1 for b, k in zip(buckets, keys, strict=True))
    flat = [key for some in keys for key in sorted(some)]
    assert flat == sorted(flat) and len(flat) == 40  # in order, each pair in one bucket


def test_rows_are_kept_together_by_another_key(tmp_path):
    data = table().assign(follower_id=lambda t: t["pair_id"] // 4)
    path = write_as(data.sample(frac=1, random_state=0), "parquet", tmp_path / "d")
    buckets = divided(path, tmp_path / "b", 150, by="follower_id")
    keys = [
        set(zip(*(b.read()[n].to_pylist() for n in ("recording", "follower_id")), strict=True))
        for b in buckets
    ]
    assert len(buckets) > 4 and sum(map(len, keys)) == len(set.union(*keys)) == 40


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_file_and_row_of_a_bad_cell_are_named(kind, small_steps, tmp_path):
    data = table()
    data["gap"] = data["gap"].astype(object)
    data.loc[900, "gap"] = "wide"
    data["gap"] = data["gap"].astype(str) if kind != "csv" else data["gap"]
    path = write_as(data, kind, tmp_path / "data")
    label = {"csv": "line 902", "parquet": "row 900", "folder": f"row {900 - len(data) // 2} of b"}
    with pytest.raises(InputError, match=f"driver r.*: gap is wide at {label[kind]}.*on_error=sk"):
        stored(path, tmp_path / "store")
    store = stored(path, tmp_path / "store", on_error="skip")
    bad = data.loc[900]
    assert list(store.skipped) == [f"{bad['recording']}/{bad['pair_id']}"]


def test_a_line_that_was_cut_is_named(small_steps, tmp_path):
    path = Path(write_as(table(), "csv", tmp_path / "data"))
    lines = path.read_text().splitlines()
    lines[500] = lines[500][: lines[500].rindex(",") - 9]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="at line 501"):
        stored(path, tmp_path / "store")
    assert len(stored(path, tmp_path / "store", on_error="skip").skipped) == 1
    lines[600] += ",7"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="Expected 8 columns, got 9.*extra separators"):
        stored(path, tmp_path / "store")


def test_columns_must_agree_between_files(tmp_path):
    path = write_as(table(), "folder", tmp_path / "data")
    table().assign(acceleration=0.0).to_csv(tmp_path / "data" / "c.csv", index=False)
    with pytest.raises(InputError, match="c.csv: column acceleration is not in all files"):
        stored(path, tmp_path / "store")
    table().drop(columns="gap").to_csv(tmp_path / "data" / "c.csv", index=False)
    with pytest.raises(InputError, match="c.csv: missing column gap"):
        stored(path, tmp_path / "store")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no CSV or Parquet file in it"):
        stored(tmp_path / "empty", tmp_path / "store")


def test_the_whole_table_is_judged_by_some_of_its_buckets(small_steps, monkeypatch, tmp_path):
    monkeypatch.setattr(driver_store, "JUDGED_ROWS", 400)
    time = np.arange(150) * 0.2
    parts = [
        pd.DataFrame({"recording": "r", "pair_id": i, "follower_id": i, "time": time}).assign(
            gap=20 + 7.5 * np.sin(time / 3 + i),
            speed=36.0,
            leader_speed=3.6 * (10 + 2.5 * np.cos(time / 3 + i)),
        )
        for i in range(12)
    ]
    path = write_as(pd.concat(parts), "csv", tmp_path / "data")
    for on_error in ("stop", "skip"):
        with pytest.raises(InputError, match="pairs.csv: speed.* look like km/h.*by 3.6$"):
            stored(path, tmp_path / "store", on_error=on_error)


def test_a_store_is_used_again_until_its_files_change(tmp_path, monkeypatch):
    path = Path(write_as(table(), "csv", tmp_path / "data"))
    first = stored(path, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(driver_store, "prepare", lambda *_: 1 / 0)
        assert stored(path, tmp_path / "store").fingerprint == first.fingerprint
        first.remove()
        with pytest.raises(ZeroDivisionError):
            stored(path, tmp_path / "store")
    table(seed=1).to_csv(path, index=False)
    assert stored(path, tmp_path / "store").fingerprint != first.fingerprint


def test_workers_give_the_same_store(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "pairs.parquet"
    table().sample(frac=1, random_state=2).to_parquet(path, row_group_size=100)
    monkeypatch.setattr(row_batches, "STRETCH", 250)
    assert len(RowBatches.of(str(path)).stretches()) > 3
    original = driver_store.sorted_buckets
    monkeypatch.setattr(
        driver_store,
        "sorted_buckets",
        lambda stretches, folder, _, pool, by: original(stretches, folder, 300, pool, by),
    )
    one, two = stored(path, tmp_path / "1"), stored(path, tmp_path / "2", workers=2)
    assert one.fingerprint == two.fingerprint
    files = sorted(file.name for file in one.folder.iterdir())
    assert len(files) > 4 and files == sorted(file.name for file in two.folder.iterdir())
    for name in files[:-1]:
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_a_worker_that_does_not_see_the_files_says_so(tmp_path):
    store = stored(write_as(table(), "csv", tmp_path / "data"), tmp_path / "store")
    piece = store.piece(0, 5)
    store.remove()
    with pytest.raises(InputError, match="on storage that all machines share"):
        piece.pairs()


def test_memory_does_not_grow_with_the_table(small_steps, tmp_path):
    data = table(200)
    data.to_parquet(tmp_path / "pairs.parquet", row_group_size=100)
    [*_, last] = RowBatches.of(str(tmp_path / "pairs.parquet")).stretches()
    rows = Watched(replace(last, groups=(0, last.groups[1], 0)))  # all of the file
    with LocalEngine(workers=1).pool() as pool:
        sorted_buckets.sorted_buckets([rows], tmp_path / "b", 60, pool)
    assert 0 < rows.most < data.memory_usage(deep=False).sum() / 2


class Watched:
    """Rows that notice how much memory Arrow holds while they are read."""

    def __init__(self, rows: row_batches.Stretch) -> None:
        self.rows, self.before, self.most = rows, pa.total_allocated_bytes(), 0

    def batches(self, only=None):
        for batch in self.rows.batches(only):
            yield batch
            self.most = max(self.most, pa.total_allocated_bytes() - self.before)


def test_workers_divide_large_buckets_side_by_side_and_again_after_a_death(small_steps, tmp_path):
    """What a dead worker left does not disturb, and the parts are those of one process."""
    path = tmp_path / "table.parquet"
    table().sample(frac=1, random_state=1).to_parquet(path)
    stretches = row_batches.RowBatches.of(str(path)).stretches()
    asked = []

    class Watched(OwnProcess):
        def map(self, function, pieces, *arguments):
            asked.append((function, list(pieces)))
            return super().map(function, asked[-1][1], *arguments)

    with Watched(None) as pool:
        buckets = sorted_buckets.sorted_buckets(stretches, tmp_path / "b", 60, pool)
    [(_, jobs)] = [(f, p) for f, p in asked if f is sorted_buckets.divide and p]
    assert len(jobs) > 1  # all at once, in one map
    for _, job in jobs:
        (job.folder / "half-written").touch()
        again = sorted_buckets.divide(None, job)
        assert set(again) <= set(buckets) and not (job.folder / "half-written").exists()
