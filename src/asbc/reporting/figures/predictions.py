"""Figures on predictions: are the intervals honest, is the driving like people's?"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from asbc.evaluation.driving import MEASURES
from asbc.evaluation.scores import COVERAGE_LEVELS, VARIABLES, coverage_name
from asbc.reporting.figures.style import COLOURS, DOUBLE, LINES, MARKERS, new_figure, style


def predictive_calibration(windows: pd.DataFrame) -> Figure:
    """PIT histograms at the window's end, and coverage of central intervals over all steps."""
    with style():
        figure = new_figure(DOUBLE, 2.3)
        axes = figure.subplots(1, 4)
        for i, (x, variable) in enumerate(VARIABLES.items()):
            ax = axes[i]
            values = windows[f"pit_{x}"]
            ax.hist(values, bins=np.linspace(0, 1, 13), density=True, color=COLOURS[i], alpha=0.8)
            ax.axhline(1, color="black", lw=0.8)
            ax.set_xlabel(f"PIT of {variable.series} ${x}$")
            coverage = [windows[f"{coverage_name(level)}_{x}"].mean() for level in COVERAGE_LEVELS]
            axes[3].plot(
                COVERAGE_LEVELS,
                coverage,
                LINES[i],
                marker=MARKERS[i],
                ms=4,
                color=COLOURS[i],
                label=f"${x}$",
            )
        axes[0].set_ylabel("density")
        axes[3].plot([0.4, 1], [0.4, 1], color="black", lw=0.6)
        axes[3].set_xlabel("nominal level")
        axes[3].set_title("interval coverage")
        axes[3].legend()
    return figure


def driving_measures(windows: pd.DataFrame, simulated: Mapping[str, np.ndarray]) -> Figure:
    """Distribution functions of driving measures, simulated against observed windows."""
    with style():
        figure = new_figure(DOUBLE, 2.3)
        # Hard braking is rare: its share is a number for the table, not a curve.
        shown = {name: title for name, title in MEASURES.items() if name != "hard_braking"}
        axes = figure.subplots(1, len(shown))
        for ax, (name, title) in zip(axes, shown.items(), strict=True):
            ax.ecdf(windows[f"observed_{name}"], color="black", label="observed")
            ax.ecdf(simulated[name].ravel(), color=COLOURS[0], ls="--", label="simulated")
            ax.set_xlabel(title)
        axes[0].set_ylabel("share of windows below")
        axes[0].legend()
    return figure
