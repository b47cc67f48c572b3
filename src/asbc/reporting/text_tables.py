"""Small tables of text as Markdown, LaTeX, plain text and for HTML, and where docs take them."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asbc.utils.files import write_text


@dataclass(frozen=True)
class TextTable:
    """Header and rows of text.

    Attributes:
        header, rows: the cells.
        rules: row positions with a line above them.
        bold: (row, column) of cells to stress.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    rules: Sequence[int] = ()
    bold: Collection[tuple[int, int]] = ()

    def to_markdown(self) -> str:
        """A GitHub table, first column left, the others right.

        Example:
            >>> print(TextTable(["method", "ES"], [["ours", "1.2"]]).to_markdown())
            | method | ES |
            |:---|---:|
            | ours | 1.2 |
        """
        ruler = "|".join([":---", *["---:"] * (len(self.header) - 1)])
        lines = [f"| {' | '.join(self.header)} |", f"|{ruler}|"]
        body = self._rendered(str, lambda cell: f"**{cell}**")
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in body)])

    def to_plain(self) -> str:
        """Aligned columns for a terminal."""
        lines = [list(self.header), *map(list, self.rows)]
        widths = [max(len(line[c]) for line in lines) for c in range(len(self.header))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if c == 0 else cell.rjust(width)
                for c, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def to_latex(self) -> str:
        """A booktabs tabular."""
        lines = [rf"\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}", r"\toprule"]
        lines += [_latex_row(list(map(_escape, self.header))), r"\midrule"]
        body = self._rendered(_escape, lambda cell: rf"\textbf{{{_escape(cell)}}}")
        for i, row in enumerate(body):
            lines += [r"\midrule"] * (i in self.rules) + [_latex_row(row)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def _rendered(
        self, plain: Callable[[str], str], stressed: Callable[[str], str]
    ) -> list[list[str]]:
        return [
            [(stressed if (r, c) in self.bold else plain)(cell) for c, cell in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]


def number(value: float | None) -> str:
    """A number with about three digits, or a dash where there is none.

    Example:
        >>> number(13.452), number(2.4551), number(0.30211), number(0.004), number(None)
        ('13.5', '2.46', '0.302', '0.004', '–')
    """
    if value is None or value != value:
        return "–"
    size = abs(value)
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


# Text that means something else to LaTeX; one pass, so that no replacement is replaced again.
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "±": r"$\pm$",
        "é": r"\'e",
        "²": r"$^2$",
        "↓": r"$\downarrow$",
        "–": "--",
        **{character: f"\\{character}" for character in "&%_#${}"},
    }
)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return text.translate(_LATEX)


def publish(page: Path, blocks: Mapping[str, str]) -> list[str]:
    """Put texts between their marks in a Markdown page; returns the names of those it holds.

    A block NAME stands between the lines `<!-- NAME -->` and `<!-- end -->`, and only a command
    writes it: what a page says was measured is then what was measured.
    """
    text = page.read_text(encoding="utf-8")
    written = []
    for name, block in blocks.items():
        marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        plain = block.rstrip().replace("\\", r"\\")  # a backslash of a table is no group
        text, count = marks.subn(rf"\g<1>{plain}\n\g<2>", text)
        written += [name] * bool(count)
    if written:
        write_text(page, text)
    return written
