"""Figs. 6 and 7 of the paper: ablation bars and the sweep over the context's length."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from asbc.evaluation.scores import named
from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    HATCHES,
    LABELS,
    MARKERS,
    cycle,
    new_figure,
    style,
)

ScoreTable = pd.DataFrame  # a row per run, columns es_s ... rmse_a


def ablation_bars(panels: Mapping[str, Mapping[str, ScoreTable]]) -> Figure:
    """Mean Energy Score of the full method and its ablations, bars with one sd over seeds.

    Args:
        panels: by panel title (the residual model), by variant, one row per seed; the full
            method first.
    """
    with style():
        figure = new_figure(DOUBLE, 2.3 * len(panels) + 0.3)
        axes = figure.subplots(len(panels), len(LABELS), squeeze=False)
        for row, (title, variants) in enumerate(panels.items()):
            for ax, metric in zip(axes[row], named("es").columns, strict=True):
                scores = [table[metric] for table in variants.values()]
                means = [score.mean() for score in scores]
                spread = [score.std(ddof=1) for score in scores]  # NaN, hence no bar, for one
                bars = ax.bar(
                    range(len(scores)),
                    means,
                    yerr=spread,
                    capsize=3,
                    color=[cycle(COLOURS, i) for i in range(len(scores))],
                    alpha=0.85,
                    edgecolor="black",
                    linewidth=0.6,
                )
                for i, bar in enumerate(bars):
                    bar.set_hatch(cycle(HATCHES, i))
                ax.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
                ax.margins(y=0.15)
                ax.set_xticks(range(len(scores)), list(variants), rotation=20, ha="right")
                ax.grid(axis="x", visible=False)
            axes[row, 0].set_ylabel(f"({'abcdef'[row]}) {title}\n{named('es').title}")
        for ax, label in zip(axes[0], LABELS.values(), strict=True):
            ax.set_title(label)
    return figure


def context_sweep(panels: Mapping[str, Mapping[float, ScoreTable]]) -> Figure:
    """RMSE and Energy Score, averaged over s, v, a, against the context's length.

    Args:
        panels: by method, by context length in seconds, one row per seed.
    """
    with style():
        figure = new_figure(DOUBLE * 0.8, 2.7)
        axes = figure.subplots(1, 2)
        for ax, score in zip(axes, (named("rmse"), named("es")), strict=True):
            for i, (label, lengths) in enumerate(panels.items()):
                values = {
                    seconds: table[list(score.columns)].mean(axis=1)
                    for seconds, table in sorted(lengths.items())
                }
                mean = np.array([v.mean() for v in values.values()])
                sd = np.array([v.std(ddof=1) if len(v) > 1 else 0.0 for v in values.values()])
                colour = cycle(COLOURS, i)
                ax.plot(list(values), mean, marker=cycle(MARKERS, i), color=colour, label=label)
                ax.fill_between(list(values), mean - sd, mean + sd, color=colour, alpha=0.2, lw=0)
            ax.set_xlabel("context length $T_E$ (s)")
            ax.set_ylabel(f"{score.title}, mean of $s, v, a$")
        axes[0].legend(title="mean ± sd over seeds", title_fontsize=8)
    return figure
