"""Fig. 3 of the paper: per-window error distributions."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asbc.evaluation.scores import named
from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    HATCHES,
    LABELS,
    cycle,
    legend_below,
    new_figure,
    style,
)

ROWS = ("es", "rmse")  # as in the paper


def error_distributions(windows: Mapping[str, pd.DataFrame]) -> Figure:
    """Boxes of ES and RMSE over windows, per variable and method.

    Args:
        windows: by method, the rows of `windows.parquet` of one protocol.
    """
    with style():
        figure = new_figure(DOUBLE, 3.6 + 0.17 * len(windows))
        axes = figure.subplots(len(ROWS), len(LABELS))
        for row, score in enumerate(map(named, ROWS)):
            for ax, metric in zip(axes[row], score.columns, strict=True):
                _boxes(ax, {method: table[metric] for method, table in windows.items()})
            axes[row, 0].set_ylabel(f"({'ab'[row]}) {score.title}")
        for ax, label in zip(axes[0], LABELS.values(), strict=True):
            ax.set_title(label)
        if len(windows) > 1:
            handles = [axes[0, 0].patches[i] for i in range(len(windows))]
            legend_below(figure, handles, list(windows))
    return figure


def _boxes(ax: Axes, values: Mapping[str, pd.Series]) -> None:
    boxes = ax.boxplot(
        [series.to_numpy() for series in values.values()],
        whis=(5, 95),
        showfliers=False,
        widths=0.5,
        patch_artist=True,
        medianprops={"color": "black", "linewidth": 1.4},
    )
    for i, patch in enumerate(boxes["boxes"]):
        patch.set(facecolor=cycle(COLOURS, i), alpha=0.75, hatch=cycle(HATCHES, i))
    for i, series in enumerate(values.values()):
        ax.annotate(
            f"{series.median():.2f}",
            (i + 1, series.quantile(0.95)),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    ax.set_ylim(0, 1.12 * float(max(series.quantile(0.95) for series in values.values())))
    ax.set_xlim(min(0.5, len(values) / 2 - 0.5), max(len(values) + 0.5, 2.0))
    ax.set_xticks([])
    ax.grid(axis="x", visible=False)
