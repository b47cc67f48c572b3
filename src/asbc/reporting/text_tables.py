"""Small tables of text as Markdown, LaTeX, CSV and for the HTML template."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextTable:
    """Header and rows of text; `rules` are row positions with a line above them."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    rules: Sequence[int] = field(default=())

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
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)])

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
        lines += [_latex_row(self.header), r"\midrule"]
        for i, row in enumerate(self.rows):
            lines += [r"\midrule"] * (i in self.rules) + [_latex_row(row)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def to_csv(self) -> str:
        """Comma-separated text."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerows([self.header, *self.rows])
        return buffer.getvalue()


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


# Text that means something else to LaTeX, in the order of replacement.
_LATEX = {
    "\\": r"\textbackslash ",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "±": r"$\pm$",
    "é": r"\'e",
    "²": r"$^2$",
    "↓": r"$\downarrow$",
}


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_escape(cell) for cell in cells) + r" \\"


def _escape(text: str) -> str:
    for plain, latex in _LATEX.items():
        text = text.replace(plain, latex)
    return text
