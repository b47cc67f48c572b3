"""The report of one evaluated run: all its files, and one HTML page to send to a colleague."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asbc.data.summary import DataSummary
from asbc.evaluation.results import Evaluation, write_evaluation
from asbc.evaluation.run_info import RunInfo
from asbc.reporting.figures.convergence import Convergence
from asbc.reporting.html import Page, Section, write_page
from asbc.reporting.paper import NOTE
from asbc.reporting.run_figures import all_pictures
from asbc.reporting.run_tables import (
    coverage_table,
    data_tables,
    driver_table,
    driving_table,
    headline_table,
    posterior_tables,
    settings_table,
)


def write_run(
    evaluation: Evaluation,
    info: RunInfo,
    folder: Path,
    config: Mapping[str, Any],
    data: DataSummary,
    rounds: Convergence | None = None,
    notes: tuple[str, ...] = (),
) -> None:
    """Write metrics, windows, cases, figures and `report.html` of one run into `folder`.

    Args:
        evaluation: the results.
        info: what was evaluated, saved with the metrics.
        folder: usually RUN/evaluation.
        config: the run's settings, shown in the report.
        data: summary of the evaluated data.
        rounds: the active loop's rounds, for a run that has them.
        notes: facts a reader must see first, e.g. that the data are not the training data.
    """
    evaluation.metrics["run"] = info.to_dict()
    evaluation.metrics["notes"] = list(notes)
    write_evaluation(evaluation, folder)
    write_page(
        run_page(evaluation, info, folder, config, data, rounds, notes), folder / "report.html"
    )


def run_page(
    evaluation: Evaluation,
    info: RunInfo,
    folder: Path,
    config: Mapping[str, Any],
    data: DataSummary,
    rounds: Convergence | None,
    notes: tuple[str, ...],
) -> Page:
    """The page, after drawing its figures into `folder`/figures."""
    metrics = evaluation.metrics
    pictures = dict(all_pictures(evaluation, info.method, rounds, folder / "figures"))
    tables = {
        "Predictions": [driving_table(metrics)],
        "The posterior itself": [driver_table(metrics), *posterior_tables(metrics)],
    }
    seconds = metrics["settings"]["horizon"] * metrics["data"]["dt"]
    sections = [
        Section(
            "Scores",
            _explain(seconds),
            [headline_table(metrics, info.method), coverage_table(metrics)],
        )
    ]
    sections += [
        Section(title, tables=tables.get(title, ()), pictures=shown)
        for title, shown in pictures.items()
        if shown or tables.get(title)
    ]
    sections += [
        Section("Data", (f"Source: {data.source}",), [*data_tables(data)], folded=True),
        Section("Settings", tables=[settings_table(config)], folded=True),
    ]
    facts = {
        "method": ", ".join([info.method, *info.variant]),
        "trained on": info.trained_on,
        "evaluated on": f"{info.evaluated_on}, {metrics['settings']['split']} pairs",
        "seed": "none" if info.seed is None else str(info.seed),
        "run": info.folder,
        "version": info.version,
    }
    return Page(f"{info.method}: evaluation", facts, metrics["warnings"], sections, notes)


def _explain(seconds: float) -> tuple[str, ...]:
    return (
        f"Errors of {seconds:g}-second predictions, averaged over windows; lower is better. RMSE "
        "is that of the predictive mean, ES the Energy Score of the whole predictive "
        "distribution, for the gap s (m), speed v (m/s) and acceleration a (m/s²). Brackets: 95% "
        "bootstrap interval over pairs. Windows after the context contain nothing the model has "
        "seen.",
        NOTE,
    )


def console_summary(evaluation: Evaluation, info: RunInfo, folder: Path) -> str:
    """What the terminal shows at the end: scores, warnings, where the report is."""
    rows = headline_table(evaluation.metrics, info.method)
    lines = ["", rows.to_plain(), ""]
    lines += [f"note: {text}" for text in evaluation.metrics["notes"]]
    lines += [f"warning: {text}" for text in evaluation.metrics["warnings"]]
    return "\n".join([*lines, f"report: {folder / 'report.html'}"])
