"""Every benchmark says what it measures, and its table lands between its own marks."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))


@pytest.fixture
def script(monkeypatch):
    """A function that imports one of the scripts."""
    pytest.importorskip("scoringrules")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_what_is_measured(name, script, monkeypatch, capsys):
    module = script(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as left:
        module.main()
    shown = capsys.readouterr().out
    assert left.value.code == 0 and module.__doc__.strip() in shown and "--publish" in shown


def test_a_table_is_added_once_and_replaced_in_place(script, monkeypatch, tmp_path):
    common = script("common")
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n")
    monkeypatch.setattr(common, "PAGE", page)
    for name, table in (("first", "| 1 |"), ("second", "| 2 |"), ("first", "| 3 |")):
        argv = [f"benchmarks/bench_{name}.py", "--publish", "--run", str(tmp_path), "--turns", "2"]
        monkeypatch.setattr(sys, "argv", argv)
        common.report("Speed: of this.\n\nHow it is measured.\n", table, publish=True)
    block = (
        "\n<!-- {0} -->\n## Speed: of this\n\nHow it is measured.\n\n"
        "`python benchmarks/bench_{0}.py --run RUN --turns 2`\n\n{1}\n<!-- end -->\n"
    )
    expected = block.format("first", "| 3 |") + block.format("second", "| 2 |")
    assert page.read_text() == "# Benchmarks\n" + expected
    common.report("Speed: of this.", "| 4 |", publish=False)
    assert "| 4 |" not in page.read_text()


def test_what_many_drivers_cost_follows_from_the_slope(script):
    """Worked out by hand: 4 ms of a worker and 0.1 ms of the main process a driver."""
    scale = script("bench_scale")

    def line(drivers: int, workers: int):
        main = 5 + (1e-4 * drivers if workers > 1 else 4e-3 * drivers)
        worker = 3 + 4e-3 * drivers if workers > 1 else 0.0
        wall = 5 + (2.1e-3 if workers > 1 else 4e-3) * drivers
        return scale.Line(drivers, 700 * drivers, workers, scale.Cost(wall, main, worker, 700, 0))

    lines = [line(n, workers) for n in (2_000, 100_000) for workers in (1, 2)]
    text = scale.projection(lines, bytes_each=2e4)
    # 1e8 * 4 ms = 111.1 h; on 64 cores 1e8 * (0.1 + 4 / 64) ms = 4.5 h
    assert "| one core | 67 min | 111.1 h |" in text
    assert "64 cores | 3 min | 4.5 h |" in text
    assert "4.0 ms of a worker and 0.10 ms of the main process" in text
    assert "20 GB for 1,000,000 and 2,000 GB for 100,000,000" in text
    again = scale.from_table(scale.as_table(lines))
    assert [(a.drivers, a.rows, a.workers) for a in again] == [x[:3] for x in lines]
    for mine, read in zip(lines, again, strict=True):
        assert read.cost == pytest.approx(mine.cost, rel=0.02, abs=2.1)
    with pytest.raises(SystemExit, match="no table"):
        scale.from_table(scale.as_table(lines[:1]))
