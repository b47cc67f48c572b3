"""Tables as Markdown, LaTeX and plain text."""

import shutil
import subprocess

import pytest

from asbc.reporting.text_tables import TextTable, publish

TABLE = TextTable(
    ["Method", "ES s ↓"],
    [["ASBC-Matérn, a_b=50%", "1.0 ± 0.1"], ["x", "2"]],
    rules=(1,),
    bold={(0, 1)},
)


def test_markdown_marks_the_best_cell() -> None:
    assert TABLE.to_markdown().splitlines()[2:] == [
        "| ASBC-Matérn, a_b=50% | **1.0 ± 0.1** |",
        "| x | 2 |",
    ]


def test_latex_escapes_and_rules() -> None:
    lines = TABLE.to_latex().splitlines()
    assert lines[:4] == [
        r"\begin{tabular}{lc}",
        r"\toprule",
        r"Method & ES s $\downarrow$ \\",
        r"\midrule",
    ]
    assert lines[4] == r"ASBC-Mat\'ern, a\_b=50\% & \textbf{1.0 $\pm$ 0.1} \\"
    assert lines[5:] == [r"\midrule", r"x & 2 \\", r"\bottomrule", r"\end{tabular}"]
    nasty = TextTable(["a"], [[r"$\{~^"]]).to_latex().splitlines()[4]
    assert nasty == r"\$\textbackslash{}\{\textasciitilde{}\textasciicircum{} \\"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles(tmp_path) -> None:
    source = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + TABLE.to_latex()
    (tmp_path / "t.tex").write_text(source + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


def test_plain_text_is_aligned() -> None:
    lines = TABLE.to_plain().splitlines()
    assert len({line.rstrip()[-1] != " " and len(line) for line in lines}) == 1


def test_a_page_takes_the_blocks_it_has_marks_for(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- ONE -->\nold\nold\n<!-- end -->\nb\n<!-- TWO -->\n<!-- end -->\n")
    block = "1 \\d \\1 \\g<2>\n| 2 |\n\n"  # nothing in it is special
    assert publish(page, {"ONE": block, "THREE": "x"}) == ["ONE"]
    expected = "a\n<!-- ONE -->\n1 \\d \\1 \\g<2>\n| 2 |\n<!-- end -->\nb\n<!-- TWO -->\n"
    assert page.read_text() == f"{expected}<!-- end -->\n"
    before = page.stat().st_mtime_ns
    assert publish(page, {"THREE": "x"}) == [] and page.stat().st_mtime_ns == before
