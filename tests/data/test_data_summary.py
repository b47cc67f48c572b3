"""The data summary against direct counts."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

from asbc.data import write_summary
from asbc.data.pairs_file import PairsFile


@pytest.fixture
def source(make_table, tmp_path) -> PairsFile:
    table = pd.concat(
        [
            make_table(pairs=20, follower_class="car"),
            make_table(pairs=2, samples=50).assign(recording="s"),
        ]
    )
    table.to_csv(tmp_path / "pairs.csv", index=False)
    return PairsFile(path=str(tmp_path / "pairs.csv"))


def test_numbers(source):
    summary = source.splits().summary
    assert summary.splits["all"] == {"pairs": 20, "followers": 20, "hours": 20 * 50 / 3600}
    assert [summary.splits[n]["pairs"] for n in ("train", "validation", "test")] == [12, 2, 6]
    gap = source.pairs().gap.double().numpy()
    np.testing.assert_allclose(
        summary.ranges["gap"],
        [gap.min(), *np.percentile(gap, [5, 50, 95]), gap.max()],
        rtol=1e-6,
    )
    assert summary.ranges["duration"] == [50.0] * 5
    assert summary.drops == {"segments shorter than 40 s": 2}
    assert summary.classes == {"car": 20}


def test_files_and_log(source, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        splits = source.splits()
    assert "20 pairs of 20 followers, 0.28 h (train 12" in caplog.text
    assert "2 segments shorter than 40 s" in caplog.text
    json_path, page, figure = write_summary(splits, tmp_path / "run")
    stored = json.loads(json_path.read_text())
    assert stored == json.loads(json.dumps(splits.summary.to_dict()))
    text = page.read_text()
    for part in (
        "| all | 20 | 20 | 0.28 |",
        "| segments shorter than 40 s | 2 |",
        "| gap (m) | 1",
    ):
        assert part in text
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert figure.stat().st_size > 20_000
