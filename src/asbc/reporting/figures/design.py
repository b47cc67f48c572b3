"""The design study's figure: what each way of spending simulations reaches with how many."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    LINES,
    MARKERS,
    cycle,
    legend_below,
    new_figure,
    style,
)

SHOWN = ("loss", "target", "c2st")


def design_figure(summary: pd.DataFrame, floor: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Scores against the number of simulations: a row per residual, a line for each way.

    Args:
        summary: mean and standard deviation of each score by residual, way and budget.
        floor: what the prior scores, by residual.
        titles: of the scores.
    """
    ways = list(summary["way"].cat.categories)
    residuals = list(summary["residual"].unique())
    with style():
        figure = new_figure(DOUBLE, 2.6 * len(residuals))
        grid = figure.subplots(len(residuals), len(SHOWN), squeeze=False)
        for axes, residual in zip(grid, residuals, strict=True):
            own = summary[summary["residual"] == residual]
            for ax, name in zip(axes, SHOWN, strict=True):
                _draw_ways(ax, own, name, ways)
                if residual in floor.index and name in floor:
                    _draw_floor(ax, float(floor.loc[residual, name]))
                ax.set_xscale("log")
                _tick_budgets(ax, own["budget"].value_counts().index.tolist())
                ax.set_xlabel("simulations")
                ax.set_ylabel(f"{titles[name]} ({residual})")
        handles = {
            label: handle
            for ax in grid.flat
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        legend_below(figure, list(handles.values()), list(handles))
    return figure


def _draw_ways(ax: Axes, summary: pd.DataFrame, name: str, ways: Sequence[str]) -> None:
    for i, one in enumerate(ways):  # each looks the same in all figures
        own = summary[summary["way"] == one]
        if own.empty:
            continue
        ax.errorbar(
            own["simulations"],
            own[name],
            yerr=own[f"{name}_std"].fillna(0.0),
            color=cycle(COLOURS, i),
            linestyle=cycle(LINES, i),
            marker=cycle(MARKERS, i),
            ms=4,
            capsize=2,
            label=one,
        )


def _draw_floor(ax: Axes, value: float) -> None:
    """What the prior scores: a line, or, where it would flatten all others, a number."""
    low, high = ax.get_ylim()
    if value < high + 0.5 * (high - low):
        ax.axhline(value, color="0.4", linestyle=":", lw=1)
        return
    text = ax.annotate(f"prior: {value:.2f}", (0.98, 0.98), xycoords="axes fraction")
    text.set(color="0.4", fontsize="small", ha="right", va="top")


def _tick_budgets(ax: Axes, budgets: Sequence[float]) -> None:
    """Ticks at the budgets, the commonest first; one whose label would touch others has none."""
    ticks: list[float] = []
    for budget in budgets:
        if all(max(budget, tick) >= 2 * min(budget, tick) for tick in ticks):
            ticks.append(budget)
    ax.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
