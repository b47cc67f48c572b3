"""Fig. 5 of the paper: how a run develops over the rounds of its active loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from asbc.evaluation.scores import HEADLINE, SCORES
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

# Column of rounds.csv -> what it is; the target loss needs callbacks=target, scores the monitor.
# The loss is the best of a round's own epochs, also where the round declined it.
PANELS = {
    "trained_loss": "hold-out loss",
    "target_loss_median": "target loss, median",
    "predictive_score": "score of validation drivers",
    **{
        f"validation_{score.name}": f"{score.title}, mean of $s, v, a$"
        for score in SCORES
        if score.table == HEADLINE
    },
}


@dataclass(frozen=True)
class Rounds:
    """The rounds of one run and the round whose weights were kept."""

    rounds: pd.DataFrame
    selected: int


def read_rounds(path: Path, selected: int | None) -> Rounds | None:
    """The rounds of a run from its rounds.csv; None where there is none."""
    if selected is None or not path.is_file():
        return None
    table = pd.read_csv(path)
    if "trained_loss" not in table:  # of a loop in which no round declines
        table = table.assign(trained_loss=table["loss"])
    return Rounds(table, selected)


def convergence(runs: Mapping[str, Rounds]) -> Figure:
    """Hold-out loss and, where recorded, real validation scores against the round."""
    shown = {
        column: title
        for column, title in PANELS.items()
        if any(column in run.rounds for run in runs.values())
    }
    with style():
        figure = new_figure(DOUBLE * max(0.5, len(shown) / 3), 2.5)
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for ax, (column, title) in zip(axes, shown.items(), strict=True):
            for i, (label, run) in enumerate(runs.items()):
                colour = cycle(COLOURS, i)
                if column not in run.rounds:
                    continue
                ax.plot(
                    run.rounds["round"],
                    run.rounds[column],
                    color=colour,
                    linestyle=cycle(LINES, i),
                    marker=cycle(MARKERS, i),
                    ms=4,
                    label=label,
                )
                ax.axvline(run.selected, color=colour, linestyle=(0, (4, 3)), lw=1)
            ax.set_xlabel("round (dashed: selected)")
            ax.set_ylabel(title)
            ax.xaxis.get_major_locator().set_params(integer=True)
        if len(runs) > 1:
            legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure
