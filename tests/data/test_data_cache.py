"""Cached tables: complete or absent, rebuilt when unreadable."""

import logging

import pandas as pd
import pytest

from asbc.data.cache import cached_folder, cached_table
from asbc.data.source import Loaded


@pytest.fixture
def loaded() -> Loaded:
    return Loaded(pd.DataFrame({"gap": [0.1, 2.0 / 3.0], "name": ["ä", "b"]}), {"short": 3})


def refuse() -> Loaded:
    raise AssertionError("must come from the cache")


def test_round_trip_is_exact(tmp_path, loaded):
    cached_table(str(tmp_path), "t", {"dt": 0.2}, lambda: loaded)
    again = cached_table(str(tmp_path), "t", {"dt": 0.2}, refuse)
    pd.testing.assert_frame_equal(again.table, loaded.table)
    assert again.drops == loaded.drops
    with pytest.raises(AssertionError):
        cached_table(str(tmp_path), "t", {"dt": 0.4}, refuse)


def test_unreadable_cache_is_rebuilt(tmp_path, loaded, caplog):
    cached_table(str(tmp_path), "t", {}, lambda: loaded)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        again = cached_table(str(tmp_path), "t", {}, lambda: loaded)
    assert "building it again" in caplog.text
    pd.testing.assert_frame_equal(again.table, loaded.table)
    cached_table(str(tmp_path), "t", {}, refuse)


def test_failed_builds_leave_nothing(tmp_path):
    with pytest.raises(AssertionError):
        cached_table(str(tmp_path), "t", {}, refuse)
    assert not list(tmp_path.iterdir())


def test_folder_finished_by_another_process_is_used(tmp_path):
    def fill(folder):
        (folder / "file").write_text("mine")
        if not list(tmp_path.glob("f-*/other")):
            final = folder.with_name(folder.name.split(".")[0])
            final.mkdir()
            (final / "file").write_text("theirs")

    folder = cached_folder(str(tmp_path), "f", {}, fill)
    assert (folder / "file").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [folder]
