"""Figures on the posterior itself: calibration on simulated drivers, recovery, novelty."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asbc.evaluation.sbc import LEVELS, PosteriorChecks
from asbc.posterior.novelty import Novelty
from asbc.reporting.figures.style import COLOURS, DOUBLE, SINGLE, new_figure, style, symbol

PANELS_PER_ROW = 4


def rank_ecdfs(checks: PosteriorChecks) -> Figure:
    """SBC: each parameter's rank ECDF minus the diagonal, with its simultaneous band."""
    with style():
        figure, axes = parameter_panels(
            len(checks.names), "rank of the true parameter / number of draws", "ECDF difference"
        )
        for ax, name, test in zip(axes, checks.names, checks.ranks, strict=True):
            ax.sharey(axes[0])
            points = test.points
            ax.fill_between(
                points, test.low - points, test.high - points, color="#BBBBBB", alpha=0.5, lw=0
            )
            colour = COLOURS[0] if test.inside else COLOURS[1]
            ax.plot(points, test.ecdf - points, color=colour)
            ax.axhline(0, color="black", lw=0.6)
            verdict = "inside" if test.inside else "outside the band"
            ax.set_title(f"{symbol(name)}: {verdict}")
    return figure


def coverage_curves(checks: PosteriorChecks) -> Figure:
    """Expected coverage of highest-density and TARP regions against the nominal level."""
    spread = 1.96 * np.sqrt(LEVELS * (1 - LEVELS) / len(checks.truth))
    with style():
        figure = new_figure(SINGLE, SINGLE * 0.95)
        ax = figure.subplots()
        ax.fill_between(LEVELS, LEVELS - spread, LEVELS + spread, color="#BBBBBB", alpha=0.5, lw=0)
        ax.plot([0, 1], [0, 1], color="black", lw=0.6)
        ax.plot(LEVELS, checks.coverage, marker="o", ms=3, label="highest-density regions")
        ax.plot(LEVELS, checks.tarp, "--", marker="s", ms=3, label="TARP regions")
        ax.set_xlabel("credibility level")
        ax.set_ylabel("share of true parameters inside")
        ax.set_aspect("equal")
        ax.legend(loc="upper left")
    return figure


def contraction_boxes(checks: PosteriorChecks) -> Figure:
    """How much of the prior's variance the data remove, per parameter."""
    with style():
        figure = new_figure(SINGLE, 2.4)
        ax = figure.subplots()
        boxes = ax.boxplot(
            checks.contraction,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            medianprops={"color": "black"},
        )
        for patch in boxes["boxes"]:
            patch.set(facecolor=COLOURS[4], alpha=0.75)
        ax.axhline(0, color="black", lw=0.6)
        ax.set_ylim(max(-1.0, ax.get_ylim()[0]), 1.02)
        ax.set_xticks(range(1, len(checks.names) + 1), [symbol(name) for name in checks.names])
        ax.set_ylabel("posterior contraction")
        ax.grid(axis="x", visible=False)
    return figure


def recovery_scatter(checks: PosteriorChecks) -> Figure:
    """Posterior mean against the true parameter of simulated drivers."""
    with style():
        figure, axes = parameter_panels(len(checks.names), "true parameter", "posterior mean")
        for i, (ax, name) in enumerate(zip(axes, checks.names, strict=True)):
            truth, mean = checks.truth[:, i], checks.mean[:, i]
            ax.plot(truth, mean, ".", ms=2.5, alpha=0.5, color=COLOURS[0])
            ends = [truth.min(), truth.max()]
            ax.plot(ends, ends, color="black", lw=0.6)
            ax.set_title(f"{symbol(name)}: r = {checks.recovery['correlation'][i]:.2f}")
    return figure


def novelty_histogram(novelty: Novelty, distance: np.ndarray) -> Figure:
    """Distance of real contexts from simulated ones, against that of held-out simulations."""
    held_out = novelty.held_out.numpy()
    bins = np.linspace(0, max(held_out.max(), distance.max()) * 1.02, 40).tolist()
    with style():
        figure = new_figure(SINGLE, 2.7)
        ax = figure.subplots()
        ax.hist(held_out, bins, density=True, color="#BBBBBB", label="held-out simulations")
        ax.hist(
            distance,
            bins,
            density=True,
            histtype="step",
            lw=1.5,
            color=COLOURS[0],
            label="drivers",
        )
        ax.axvline(
            novelty.threshold, color=COLOURS[1], ls="--", lw=1.2, label="99% of simulations"
        )
        ax.set_xlabel("distance to simulated contexts")
        ax.set_ylabel("density")
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def parameter_panels(count: int, xlabel: str, ylabel: str) -> tuple[Figure, list[Axes]]:
    """One panel per parameter, four to a row, with labels for the whole figure."""
    rows = -(-count // PANELS_PER_ROW)
    figure = new_figure(DOUBLE, 1.8 * rows)
    axes: list[Axes] = list(figure.subplots(rows, PANELS_PER_ROW, squeeze=False).ravel())
    for ax in axes[count:]:
        ax.set_axis_off()
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    return figure, axes[:count]
