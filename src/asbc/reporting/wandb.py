"""What W&B shows: the dashboard, and an evaluation in the W&B run of its training.

The dashboard's panels are declared once, in `PANELS`. `build_workspace` makes them a W&B workspace
(needs the extra `dashboard`), `draw_dashboard` a picture from run folders, for those without an
account. `log_evaluation` puts an evaluation's summary, tables and figures where the panels find
them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asbc.evaluation.results import PROTOCOLS, Evaluation
from asbc.evaluation.scores import HEADLINE, SCORES, named
from asbc.reporting.collect import EvaluatedRun
from asbc.reporting.figures.style import COLOURS, cycle, legend_below, new_figure, style
from asbc.training.loggers import wandb_identity

NAME = "ASBC"  # of the workspace
GROUP = "method"  # config key that `announce` sets: residual and acquisition


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
        *(
            Lines(f"{score.title} on validation pairs", f"validation_{score.name}")
            for score in SCORES
            if score.table == HEADLINE
        ),
    ),
    "Ablation": tuple(
        Bars(score.title, score.columns) for score in SCORES if score.table == HEADLINE
    ),
    "Calibration": (
        Bars(named("coverage95").title, named("coverage95").columns),
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


def build_workspace(entity: str, project: str) -> Any:
    """A `wandb_workspaces.workspaces.Workspace`; `.save()` puts it on the server."""
    import wandb_workspaces.workspaces as ws

    sections = [
        ws.Section(name=name, panels=[_panel(panel) for panel in panels], is_open=True)
        for name, panels in PANELS.items()
    ]
    return ws.Workspace(entity=entity, project=project, name=NAME, sections=sections)


def workspace_json(workspace: Any) -> str:
    """What `.save()` would send."""
    # The client has no public export.
    return workspace._to_model().model_dump_json(by_alias=True, indent=2)


def _panel(panel: Panel) -> Any:
    import wandb_workspaces.reports.v2 as wr

    over_seeds: dict[str, Any] = {
        "groupby": GROUP,
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    if isinstance(panel, Lines):
        own: dict[str, Any] = {"x": "round/round", "y": [f"round/{panel.metric}"]}
        return wr.LinePlot(title=panel.title, **own, **over_seeds)
    if isinstance(panel, Bars):
        own = {"metrics": [f"eval/all_windows/{name}" for name in panel.metrics]}
        return wr.BarPlot(title=panel.title, orientation="v", **own, **over_seeds)
    return wr.MediaBrowser(title=panel.title, media_keys=[f"eval/{n}" for n in panel.names])


def log_evaluation(evaluation: Evaluation, run: Path, output: Path) -> bool:
    """Add an evaluation to the run's W&B run; False if the run was not logged to W&B.

    Args:
        evaluation: the results.
        run: the run folder.
        output: the evaluation's folder, with its figures.
    """
    identity = wandb_identity(run)
    if identity is None:
        return False
    import wandb

    with wandb.init(
        id=identity["id"],
        project=identity["project"],
        entity=identity["entity"],
        mode="offline" if identity["offline"] else "online",
        dir=run,
        resume="allow",
    ) as session:
        figures = sorted((output / "figures").glob("*.png"))
        session.log(
            {
                "eval/windows": wandb.Table(dataframe=plain_table(evaluation.windows)),
                "eval/drivers": wandb.Table(dataframe=driver_table(evaluation)),
                **{f"eval/{path.stem}": wandb.Image(str(path)) for path in figures},
            }
        )
        session.summary.update(dict(summary_values(evaluation.metrics)))
    return True


def summary_values(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The scores of each protocol under the name W&B shows, e.g. eval/all_windows/es_s."""
    for protocol in PROTOCOLS:
        for name, value in metrics[protocol].items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                yield f"eval/{protocol}/{name}", value


def driver_table(evaluation: Evaluation) -> pd.DataFrame:
    """A row per driver: mean scores over its windows and posterior mean of each parameter."""
    shown = [score for score in evaluation.scores if score.table and not score.percent]
    columns = [metric for score in shown for metric in score.columns]
    means = evaluation.windows.groupby("pair_id")[columns].mean()
    cases = evaluation.cases
    theta = pd.DataFrame(
        cases.theta.mean(1),
        index=pd.Index(cases.pair_id.astype(str), name="pair_id"),
        columns=[f"posterior mean {name}" for name in cases.names],
    )
    means.index = means.index.astype(str)
    return plain_table(means.join(theta).reset_index())


def plain_table(table: pd.DataFrame) -> pd.DataFrame:
    """The same with plain strings and floats, the types W&B tables know."""
    return table.astype(
        {
            name: float if pd.api.types.is_numeric_dtype(column) else str
            for name, column in table.items()
        }
    )
