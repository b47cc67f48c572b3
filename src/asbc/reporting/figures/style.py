"""One look for all figures: colour-blind safe, readable in print, PNG and PDF."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from asbc.evaluation.scores import VARIABLES

# Okabe and Ito's palette: distinct under all common forms of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999")
# For lines, so that a figure survives a black-and-white printer.
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")

# Every PDF would otherwise log each table of each font.
logging.getLogger("fontTools").setLevel(logging.WARNING)

OBSERVED = "#000000"
LEADER = "#E69F00"
DPI = 180  # of PNGs
SINGLE, DOUBLE = 3.5, 7.16  # inches: one and two columns of a journal page

LETTERS = 13  # of a legend that fit an inch

# Of variables: what an axis is called.
LABELS = {
    x: f"{variable.series} ${x}$ ({variable.unit.replace('²', '$^2$')})"
    for x, variable in VARIABLES.items()
}
SYMBOLS = {
    "v0": "$v_0$",
    "s0": "$s_0$",
    "T": "$T$",
    "a_max": "$a_{max}$",
    "b": "$b$",
    "sigma": r"$\sigma$",
    "ell": r"$\ell$",
}

SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text in the PDF
    "svg.fonttype": "none",
    "axes.prop_cycle": cycler(color=COLOURS),
}


def style() -> AbstractContextManager[None]:
    """The project's settings, for the duration of a `with` block."""
    return mpl.rc_context(SETTINGS)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure outside pyplot: no display, no global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under all panels, in as many columns, 4 at the most, as the figure has room for."""
    wrapped = [fill(label, int(LETTERS * figure.get_figwidth())) for label in labels]
    for columns in (4, 3, 2, 1):
        legend = figure.legend(handles, wrapped, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def save_figure(figure: Figure, folder: Path, name: str) -> Path:
    """Write `name`.png and `name`.pdf; returns the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(folder / f"{name}.png", dpi=DPI)
        # The layout is the slow part of figures with many panels; the PDF reuses the PNG's.
        figure.set_layout_engine("none")
        figure.savefig(folder / f"{name}.pdf")
    return folder / f"{name}.png"


def symbol(name: str) -> str:
    """A parameter's symbol, or its name where it has none."""
    return SYMBOLS.get(name, name)


def cycle(values: Sequence[Any], index: int) -> Any:
    """The value at `index`, starting again at the end."""
    return values[index % len(values)]
