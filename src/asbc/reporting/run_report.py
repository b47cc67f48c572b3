"""The report of one evaluated run: all its files, and one HTML page to send to a colleague."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from asbc.data.summary import DataSummary
from asbc.evaluation.results import (
    PROTOCOL_TITLES,
    Evaluation,
    choices,
    pair_ranking,
    write_evaluation,
)
from asbc.evaluation.scores import HEADLINE, VARIABLES, Score
from asbc.reporting.figures.case_study import case_study
from asbc.reporting.figures.convergence import Rounds, convergence
from asbc.reporting.figures.posterior_checks import (
    contraction_boxes,
    coverage_curves,
    novelty_histogram,
    rank_ecdfs,
    recovery_scatter,
)
from asbc.reporting.figures.predictions import driving_measures, predictive_calibration
from asbc.reporting.figures.seconds_known import attention_by_age, narrowing_curves
from asbc.reporting.figures.style import save_figure
from asbc.reporting.figures.window_errors import error_distributions
from asbc.reporting.html import Page, Picture, Section, write_page
from asbc.reporting.run_tables import (
    NOTE,
    data_tables,
    driver_table,
    driving_table,
    further_table,
    headline_table,
    posterior_tables,
    settings_table,
)


def main_protocol(windows: pd.DataFrame) -> str:
    """The protocol to show where only one fits: after the context, if there is any window."""
    return "after_context" if windows["after_context"].any() else "all_windows"


def draw_predictions(evaluation: Evaluation, folder: Path) -> list[Picture]:
    """Error distributions, honesty of the intervals, driving measures."""
    windows = evaluation.windows
    protocol = main_protocol(windows)
    rows = windows[protocol].to_numpy()
    where = f"Windows {PROTOCOL_TITLES[protocol]}."
    return _save(
        folder,
        (
            "error_distributions",
            error_distributions(
                {
                    title: windows[windows[name]]
                    for name, title in PROTOCOL_TITLES.items()
                    if windows[name].any()
                }
            ),
            "Per-window errors. Boxes: quartiles and median (written above); whiskers: 5% to 95%.",
        ),
        (
            "predictive_calibration",
            predictive_calibration(windows[rows]),
            f"{where} Left: where the observation falls in the predictive distribution at the "
            "window's end; flat is right, a U means intervals that are too narrow. Right: share "
            "of all observed steps inside central intervals; on the line is right.",
        ),
        (
            "driving_measures",
            driving_measures(
                windows[rows], {name: x[rows] for name, x in evaluation.simulated.items()}
            ),
            f"{where} Is simulated driving like observed driving? Curves should agree.",
        ),
    )


def draw_posterior(evaluation: Evaluation, folder: Path) -> list[Picture]:
    """Calibration on simulated drivers and novelty of the real ones, where there are any."""
    if evaluation.novelty is None or evaluation.distance is None:
        return []
    novelty = (
        "novelty",
        novelty_histogram(evaluation.novelty, evaluation.distance),
        "How unlike the training simulations each driver's context is, in the encoder's "
        "space. Right of the dashed line: less like them than 99% of simulations.",
    )
    checks = evaluation.checks
    if checks is None:  # of a predictive posterior: its predictions are what can be checked
        return _save(folder, novelty)
    count = len(checks.truth)
    return _save(
        folder,
        (
            "sbc_ranks",
            rank_ecdfs(checks),
            f"Simulation-based calibration on {count} simulated drivers. A curve that leaves the "
            "grey band is evidence that this parameter's posterior is wrong; all bands together "
            "hold a correct posterior with 95% probability.",
        ),
        (
            "expected_coverage",
            coverage_curves(checks),
            "How often credible regions hold the true parameters. Below the line: overconfident.",
        ),
        (
            "contraction",
            contraction_boxes(checks),
            "Share of the prior's variance removed by one context; 0 means nothing was learned.",
        ),
        ("recovery", recovery_scatter(checks), "Posterior mean against the true parameter."),
        novelty,
    )


def draw_narrowing(evaluation: Evaluation, folder: Path) -> list[Picture]:
    """What seconds are worth, of a posterior that reads everything known about a driver."""
    found = evaluation.narrowing
    if found is None:
        return []
    reached = ", ".join(
        f"{count} with {seconds:g} s"
        for seconds, count in zip(found.seconds, found.drivers, strict=True)
    )
    return _save(
        folder,
        (
            "narrowing",
            narrowing_curves(found),
            "How the posterior narrows as seconds arrive: its standard deviation over the "
            "prior's, median and quartiles over the drivers who have so many; on the line "
            f"nothing is learned. Drivers: {reached}.",
        ),
        (
            "attention",
            attention_by_age(found),
            "Which seconds the posterior attends to, given all of each driver: attention to a "
            "second by its age, mean over drivers; on the line all seconds count alike.",
        ),
    )


def draw_cases(evaluation: Evaluation, label: str, folder: Path) -> list[Picture]:
    """The best, median and worst pair by Energy Score, and the pairs asked for."""
    cases = evaluation.cases
    chosen = case_pairs(evaluation)
    return _save(
        folder,
        *(
            (
                f"case_{_file_name(name)}",
                case_study({label: cases}, pair),
                f"Pair {pair} ({name}): one window with the 95% prediction interval, the "
                "posterior from its context, and the parameters' correlations.",
            )
            for name, pair in chosen.items()
        ),
    )


def case_pairs(evaluation: Evaluation) -> dict[str, str]:
    """Pairs to show by why they are shown, ranked by the very window that is drawn."""
    windows, cases = evaluation.windows, evaluation.cases
    drawn = pd.DataFrame({"pair_id": cases.pair_id, "start": cases.start})
    shown = windows.merge(drawn, on=["pair_id", "start"])
    ranking = pair_ranking(shown if len(shown) else windows[windows[main_protocol(windows)]])
    order = [str(name) for name in ranking.index]
    chosen = {"best": order[0], "median": order[len(order) // 2], "worst": order[-1]}
    for pair in evaluation.metrics["settings"]["pairs"]:
        chosen[f"pair {pair}"] = str(cases.pair_id[cases.index(pair)])
    return chosen


def draw_rounds(label: str, rounds: Rounds | None, folder: Path) -> list[Picture]:
    """The run's convergence, where it has rounds."""
    if rounds is None:
        return []
    figure = convergence({label: rounds})
    return _save(folder, ("convergence", figure, "The active loop, round by round."))


def _save(folder: Path, *figures: tuple[str, Figure, str]) -> list[Picture]:
    return [
        Picture(save_figure(figure, folder, name), caption) for name, figure, caption in figures
    ]


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)


def all_pictures(
    evaluation: Evaluation, label: str, rounds: Rounds | None, folder: Path
) -> Iterator[tuple[str, list[Picture]]]:
    """Every figure of a run under the heading it belongs to."""
    yield "Predictions", draw_predictions(evaluation, folder)
    yield "Case studies", draw_cases(evaluation, label, folder)
    yield "What seconds are worth", draw_narrowing(evaluation, folder)
    yield "The posterior itself", draw_posterior(evaluation, folder)
    yield "Training", draw_rounds(label, rounds, folder)


def write_run(
    evaluation: Evaluation,
    folder: Path,
    config: Mapping[str, Any],
    data: DataSummary,
    rounds: Rounds | None = None,
) -> None:
    """Write metrics, windows, cases, figures and `report.html` of one run into `folder`.

    Args:
        evaluation: the results.
        folder: usually RUN/evaluation.
        config: the run's settings, shown in the report.
        data: summary of the evaluated data.
        rounds: the active loop's rounds, for a run that has them.
    """
    write_evaluation(evaluation, folder)
    write_page(run_page(evaluation, folder, config, data, rounds), folder / "report.html")


def run_page(
    evaluation: Evaluation,
    folder: Path,
    config: Mapping[str, Any],
    data: DataSummary,
    rounds: Rounds | None,
) -> Page:
    """The page, after drawing its figures into `folder`/figures."""
    metrics, info = evaluation.metrics, evaluation.metrics["run"]
    method = ", ".join([info["method"], *choices(metrics)])
    pictures = dict(all_pictures(evaluation, method, rounds, folder / "figures"))
    tables = {
        "Predictions": [driving_table(metrics)],
        "The posterior itself": [driver_table(metrics), *posterior_tables(metrics)],
    }
    seconds = metrics["settings"]["horizon"] * metrics["data"]["dt"]
    sections = [
        Section(
            "Scores",
            _explain(seconds, evaluation.scores),
            [
                headline_table(metrics, method, evaluation.scores),
                further_table(metrics, evaluation.scores),
            ],
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
        "method": ", ".join([method, *info["variant"]]),
        "trained on": info["trained_on"],
        "evaluated on": f"{info['evaluated_on']}, {metrics['settings']['split']} pairs",
        "seed": "none" if info["seed"] is None else str(info["seed"]),
        "run": info["folder"],
        "version": info["version"],
    }
    return Page(f"{method}: evaluation", facts, metrics["warnings"], sections, metrics["notes"])


def _explain(seconds: float, scores: Sequence[Score]) -> tuple[str, ...]:
    """What the tables of scores show, in words."""
    shown = [score for score in scores if score.table == HEADLINE]
    lower = "; lower is better" if all(score.best == "low" for score in shown) else ""
    meanings = "; ".join(f"{score.label}: {score.about}" for score in shown if score.about)
    *first, last = (f"{v.series} {x} ({v.unit})" for x, v in VARIABLES.items())
    return (
        f"Errors of {seconds:g}-second predictions of the {', '.join(first)} and {last}, averaged "
        f"over windows{lower}. {meanings}. Brackets: 95% bootstrap interval over pairs. Windows "
        "after the context contain nothing the model has seen.",
        NOTE,
    )


def console_summary(evaluation: Evaluation, folder: Path) -> str:
    """What the terminal shows at the end: scores, warnings, where the report is."""
    metrics = evaluation.metrics
    method = ", ".join([metrics["run"]["method"], *choices(metrics)])
    table = headline_table(metrics, method, evaluation.scores)
    lines = ["", table.to_plain(), ""]
    lines += [f"note: {text}" for text in metrics["notes"]]
    lines += [f"warning: {text}" for text in metrics["warnings"]]
    return "\n".join([*lines, f"report: {folder / 'report.html'}"])
