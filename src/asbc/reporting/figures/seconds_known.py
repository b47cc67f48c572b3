"""Figures on what seconds of a driver are worth: the posterior as they arrive, and attention."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from asbc.evaluation.narrowing import Narrowing
from asbc.reporting.figures.posterior_checks import parameter_panels
from asbc.reporting.figures.style import COLOURS, SINGLE, new_figure, style, symbol


def narrowing_curves(found: Narrowing) -> Figure:
    """Each parameter's posterior spread over the prior's, against the seconds known."""
    with style():
        figure, axes = parameter_panels(
            len(found.names), "seconds known of the driver", "posterior sd / prior sd"
        )
        low, median, high = found.spread
        for i, (ax, name) in enumerate(zip(axes, found.names, strict=True)):
            ax.fill_between(
                found.seconds, low[:, i], high[:, i], color=COLOURS[4], alpha=0.35, lw=0
            )
            ax.plot(found.seconds, median[:, i], marker="o", ms=3, color=COLOURS[0])
            ax.axhline(1, color="black", lw=0.6)
            ax.set_xscale("log")
            ax.set_xticks([s for s in (3, 10, 30, 120) if s <= found.seconds.max()])
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.xaxis.set_minor_formatter(NullFormatter())
            # What drivers may change by can be more than what the prior allows for.
            ax.set_ylim(0, max(1.15, 1.05 * high[:, i].max()))
            ax.set_title(symbol(name))
    return figure


def attention_by_age(found: Narrowing) -> Figure:
    """Attention to a second by how long ago it was, and to one of earlier drives."""
    known = np.isfinite(found.attention)
    with style():
        figure = new_figure(SINGLE, 2.6)
        ax = figure.subplots()
        last = found.age[1:][known].max() if known.any() else 1.0
        values = np.where(known, found.attention, 0)
        ax.stairs(values, found.age, baseline=None, lw=1.5, color=COLOURS[0])
        if np.isfinite(found.earlier):
            ax.axhline(
                found.earlier, color=COLOURS[1], ls="--", label="earlier drives, age unknown"
            )
            ax.legend(loc="lower right")
        ax.axhline(1, color="black", lw=0.6)
        ax.set_xlim(0, last)
        ax.set_ylim(0, None)
        ax.set_xlabel("seconds before the latest sample")
        ax.set_ylabel("attention to a second (mean: 1)")
    return figure
