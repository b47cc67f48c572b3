"""Fig. 4 of the paper: one pair's rollouts with 95% intervals, and its posterior."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from asbc.evaluation.cases import Cases
from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    LABELS,
    LEADER,
    OBSERVED,
    cycle,
    new_figure,
    style,
    symbol,
)

# The paper shows the law's five parameters; residual hyperparameters have no shared meaning.
SHOWN = ("v0", "s0", "T", "a_max", "b")


def case_study(cases: Mapping[str, Cases], pair_id: str) -> Figure:
    """Rollouts and posterior structure of one pair, a row per method."""
    with style():
        figure = new_figure(DOUBLE * 1.15, 4.3 * len(cases))
        parts = figure.subfigures(
            len(cases), 2, width_ratios=(1, 1.15), squeeze=False, wspace=0.03
        )
        rollouts = []
        for row, (label, case) in enumerate(cases.items()):
            index = case.index(pair_id)
            colour = cycle(COLOURS, row)
            rollouts.append(draw_rollouts(parts[row, 0], case, index, colour))
            parts[row, 0].suptitle(
                f"{label}, pair {case.pair_id[index]}, from {case.start[index] * case.dt:.0f} s",
                fontsize=9,
            )
            if not len(case.names):
                parts[row, 1].suptitle("no parameters", fontsize=9)
                continue
            draw_posterior(parts[row, 1], *_shown(case, index), colour)
            parts[row, 1].suptitle("posterior: marginals, draws, correlations", fontsize=9)
        for panels in zip(*rollouts, strict=True):
            _same_limits(panels)
    return figure


def draw_rollouts(part: SubFigure, case: Cases, index: int, colour: str) -> list[Axes]:
    """Observed and predicted gap, speed and acceleration of one window; returns the panels."""
    axes = part.subplots(len(LABELS), 1, sharex=True)
    time = np.arange(case.mean.shape[-1]) * case.dt
    for row, (variable, label) in enumerate(LABELS.items()):
        ax, band = axes[row], (case.low[index, row], case.high[index, row])
        ax.fill_between(time, *band, color=colour, alpha=0.25, lw=0, label="95% interval")
        ax.plot(time, case.mean[index, row], color=colour, label="predictive mean")
        ax.plot(time, case.observed[index, row], color=OBSERVED, lw=1.1, label="observed")
        if variable == "v":
            ax.plot(time, case.leader_speed[index], "--", color=LEADER, label="leader")
        ax.set_ylabel(label.replace(" (", "\n("))
    axes[-1].set_xlabel("time in the window (s)")
    part.align_ylabels()
    handles, labels = axes[1].get_legend_handles_labels()
    part.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7, handlelength=1.4)
    return list(axes)


def draw_posterior(part: SubFigure, names: list[str], draws: np.ndarray, colour: str) -> None:
    """Histograms on the diagonal, draws below it, the correlation matrix above it."""
    count = len(names)
    axes: Any = part.subplots(count, count, squeeze=False)
    correlation = _correlation(draws)
    for i, j in np.ndindex(count, count):
        ax: Axes = axes[i, j]
        ax.grid(False)
        ax.tick_params(labelsize=6.5, length=2, pad=1)
        if j > i:
            _correlation_cell(ax, float(correlation[i, j]))
            continue
        if i == j:
            ax.hist(draws[:, i], bins=25, color=colour, alpha=0.75)
            ax.set_yticks([])
        else:
            # Points as one image: a PDF with thousands of dots is slow to open.
            ax.plot(draws[:, j], draws[:, i], ".", ms=1.3, alpha=0.4, c=colour, rasterized=True)
            ax.sharex(axes[j, j])
        ax.tick_params(labelbottom=i == count - 1, labelleft=j == 0 and i > 0)
        if i == count - 1:
            ax.set_xlabel(symbol(names[j]), labelpad=1)
        if j == 0:
            ax.set_ylabel(symbol(names[i]), labelpad=1)
    part.align_ylabels()


def _same_limits(panels: Sequence[Axes]) -> None:
    """One scale for the same variable under different methods."""
    ends = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def _correlation_cell(ax: Axes, value: float) -> None:
    ax.set(xticks=[], yticks=[], facecolor=mpl.colormaps["PuOr"]((value + 1) / 2))
    ax.spines[:].set_visible(False)
    ax.text(
        *(0.5, 0.5, f"{value:.2f}"),
        transform=ax.transAxes,
        ha="center",
        va="center",
        fontsize=8,
        color="white" if abs(value) > 0.6 else "black",
    )


def _shown(case: Cases, index: int) -> tuple[list[str], np.ndarray]:
    names = [str(name) for name in case.names]
    shown = SHOWN if set(SHOWN) <= set(names) else names  # another law: all it has
    columns = [i for i, name in enumerate(names) if name in shown]
    return [names[i] for i in columns], case.theta[index][:, columns]


def _correlation(draws: np.ndarray) -> np.ndarray:
    # A point estimate has no spread; its correlations are shown as 0.
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = np.atleast_2d(np.corrcoef(draws, rowvar=False))
    return np.nan_to_num(matrix)
