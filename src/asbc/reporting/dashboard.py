"""The dashboard's panels, declared once: for W&B, and for a picture made from run folders."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asbc.reporting.collect import EvaluatedRun
from asbc.reporting.figures.style import COLOURS, cycle, legend_below, new_figure, style


@dataclass(frozen=True)
class Lines:
    """A metric of rounds.csv (W&B: round/*) against the round, averaged over seeds."""

    title: str
    metric: str


@dataclass(frozen=True)
class Bars:
    """Scores of `metrics.json` (W&B: eval/all_windows/*) by method, averaged over seeds."""

    title: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Images:
    """Figures of an evaluation (W&B: eval/*), by name."""

    title: str
    names: tuple[str, ...]


Panel = Lines | Bars | Images

PANELS: dict[str, tuple[Panel, ...]] = {
    "Convergence": (
        Lines("hold-out loss", "loss"),
        Lines("RMSE on validation pairs", "validation_rmse"),
        Lines("Energy Score on validation pairs", "validation_es"),
    ),
    "Ablation": (
        Bars("Energy Score", ("es_s", "es_v", "es_a")),
        Bars("RMSE", ("rmse_s", "rmse_v", "rmse_a")),
    ),
    "Calibration": (
        Bars("coverage of 95% intervals", ("coverage95_s", "coverage95_v", "coverage95_a")),
        Images("simulation-based calibration", ("sbc_ranks", "expected_coverage")),
    ),
    "Case studies": (Images("best, median, worst", ("case_best", "case_median", "case_worst")),),
}


def draw_dashboard(runs: Sequence[EvaluatedRun]) -> Figure:
    """All panels in one picture, a row per section; figures are those of the first run."""
    labels = list(dict.fromkeys(run.label for run in runs))
    columns = 3
    with style():
        figure = new_figure(12.0, 3.0 * len(PANELS))
        axes = figure.subplots(len(PANELS), columns, squeeze=False)
        for row, (section, panels) in zip(axes, PANELS.items(), strict=True):
            drawn = [part for panel in panels for part in _split(panel)][:columns]
            for ax, panel in zip(row, drawn, strict=False):
                _draw(ax, panel, runs, labels)
            for ax in row[len(drawn) :]:
                ax.set_axis_off()
            row[0].set_title(f"{section}: {row[0].get_title()}")
        handles = [plt.Line2D([], [], color=cycle(COLOURS, i)) for i in range(len(labels))]
        legend_below(figure, handles, labels)
    return figure


def _split(panel: Panel) -> list[Panel]:
    """One axes for each picture."""
    if isinstance(panel, Images):
        return [Images(name.replace("_", " "), (name,)) for name in panel.names]
    return [panel]


def _draw(ax: Axes, panel: Panel, runs: Sequence[EvaluatedRun], labels: Sequence[str]) -> None:
    ax.set_title(panel.title)
    if isinstance(panel, Images):
        ax.set_axis_off()
        picture = runs[0].folder / "figures" / f"{panel.names[0]}.png"
        if picture.is_file():
            ax.imshow(plt.imread(picture), aspect="equal")
        return
    for i, label in enumerate(labels):
        some = [run for run in runs if run.label == label]
        if isinstance(panel, Lines):
            _draw_rounds(ax, panel, some, i)
        else:
            _draw_bars(ax, panel, some, i, len(labels))


def _draw_rounds(ax: Axes, panel: Lines, runs: list[EvaluatedRun], i: int) -> None:
    tables = [run.rounds.rounds for run in runs if run.rounds is not None]
    tables = [table for table in tables if panel.metric in table]
    if tables:
        mean = pd.concat(tables).groupby("round")[panel.metric].mean()
        ax.plot(mean.index, mean, marker=".", color=cycle(COLOURS, i))
    ax.set_xlabel("round")


def _draw_bars(ax: Axes, panel: Bars, runs: list[EvaluatedRun], i: int, count: int) -> None:
    values = np.array(
        [[run.metrics["all_windows"][m] for m in panel.metrics] for run in runs], float
    )
    place = np.arange(len(panel.metrics)) + (i - (count - 1) / 2) * 0.8 / count
    ax.bar(place, values.mean(0), 0.8 / count, yerr=values.std(0), color=cycle(COLOURS, i))
    ax.set_xticks(np.arange(len(panel.metrics)), panel.metrics)
