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
