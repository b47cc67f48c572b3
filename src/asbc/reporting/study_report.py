"""The report over many runs: Table 1, what beats what, Figs. 3 to 7, one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from asbc.baselines.unpooled import compare_runs
from asbc.errors import InputError
from asbc.evaluation.results import PROTOCOL_TITLES, PROTOCOLS, pair_ranking
from asbc.reporting.collect import (
    EvaluatedRun,
    group_comparable,
    require_comparable,
    with_suffixes,
)
from asbc.reporting.figures.case_study import case_study
from asbc.reporting.figures.comparison import ablation_bars, context_sweep
from asbc.reporting.figures.convergence import convergence
from asbc.reporting.figures.style import save_figure
from asbc.reporting.figures.window_errors import error_distributions
from asbc.reporting.html import Page, Picture, Section, write_page
from asbc.reporting.run_tables import NOTE
from asbc.reporting.study_tables import (
    CONTEXT,
    LEGEND,
    ablation_panels,
    ablation_table,
    agreement_table,
    by_seed,
    comparison_table,
    cost_table,
    highlights,
    main_methods,
    over_seeds,
    score_table,
    sweep_panels,
    table_one,
    verdict,
)
from asbc.reporting.text_tables import TextTable, publish
from asbc.run import Run

# More boxes than this in one panel cannot be told apart.
MOST_METHODS = 6
COMPARISON = "comparison.md"
AGAINST_EXACT = "The amortized posterior against the exact one"


def write_studies(
    runs: Sequence[EvaluatedRun],
    folder: Path,
    mixed: str = "refuse",
    pair: str | None = None,
    agreement: bool = True,
    pages: Sequence[Path] = (),
    prefix: str = "",
) -> list[str]:
    """Write one report per group of comparable runs; returns what to tell the user.

    Args:
        runs: evaluated runs.
        folder: the report's folder; with several groups, each gets a folder below it.
        mixed: "refuse" runs of other data or protocol, or "separate" them.
        pair: id of the case study's pair.
        agreement: whether to compare posteriors with exact draws, where the runs hold some.
        pages: Markdown pages whose marked blocks take the tables of the largest group.
        prefix: before the names of these blocks.
    """
    if mixed not in ("refuse", "separate"):
        raise InputError(f"mixed={mixed}; expected refuse or separate")
    if mixed == "refuse":
        require_comparable(runs)
    groups = group_comparable(runs)
    lines = []
    for i, group in enumerate(groups):
        place = folder if len(groups) == 1 else folder / f"group_{i + 1}"
        given = () if i else pages
        lines += write_study(with_suffixes(group), place, pair, agreement, given, prefix)
        lines += ["", (place / "table1.md").read_text()]
        lines += [f"what beats what: {place / COMPARISON}", f"report: {place / 'report.html'}"]
    return lines


def write_study(
    runs: Sequence[EvaluatedRun],
    folder: Path,
    pair: str | None = None,
    agreement: bool = True,
    pages: Sequence[Path] = (),
    prefix: str = "",
) -> list[str]:
    """Write tables, figures and `report.html` over comparable, labelled runs.

    Args:
        runs: from `with_suffixes`.
        folder: where everything goes.
        pair: id of the case study's pair; None for the median pair of the first method.
        agreement: whether to compare posteriors with exact draws, where the runs hold some.
        pages: Markdown pages whose marked blocks take the tables.
        prefix: before the names of these blocks, for a page with tables of several reports.

    Returns:
        What was left out, and what it would need.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    summaries = {name: over_seeds(score_table(runs, name)) for name in PROTOCOLS}
    agreements = compare_posteriors(runs, missing) if agreement else []
    write_comparison(runs, summaries, agreements, folder)
    for page in pages:
        blocks = _blocks(summaries, agreements)
        publish(page, {f"{prefix}{name}": block for name, block in blocks.items()})
    sections = [
        Section(
            f"Table 1, {PROTOCOL_TITLES[name]}",
            verdict(summary),
            [_write_table_one(summary, name, folder), cost_table(summary)],
        )
        for name, summary in summaries.items()
    ]
    sections.append(Section("How to read the tables", (NOTE, LEGEND)))
    if agreements:
        sections.append(Section(AGAINST_EXACT, (), [agreement_table(agreements)]))
    sections += _ablations(runs, folder)
    pictures = [
        Picture(save_figure(figure, folder / "figures", name), caption)
        for name, figure, caption in _figures(runs, pair, missing)
    ]
    sections.append(Section("Figures", missing, pictures=pictures))
    remarks = [f"{_name(run)}: {text}" for run in runs for text in _remarks(run)]
    sections.append(Section("Runs", remarks, [_run_list(runs)], folded=True))
    warned = sum(bool(_remarks(run)) for run in runs)
    warnings = [f"{warned} of {len(runs)} runs come with warnings: see Runs below."] * bool(warned)
    facts = {"runs": str(len(runs)), "data": runs[0].info["evaluated_on"]}
    write_page(Page("Comparison of runs", facts, warnings, sections), folder / "report.html")
    return missing


def compare_posteriors(
    runs: Sequence[EvaluatedRun], missing: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Name and agreement of each training run with saved NUTS draws of the same posterior.

    Args:
        runs: of any kind.
        missing: gets a line for each comparison that could not be made.
    """
    found = []
    for exact in runs:
        if "seconds_per_driver" not in exact.metrics.get("baseline", {}):
            continue  # no draws driver by driver
        for run in (run for run in by_seed(runs) if run.info["kind"] == "asbc"):
            try:
                trained = Run.open(run.run.path)
                if not trained.differences(exact.run.config):
                    found.append((_name(run), compare_runs(exact.run, trained, run.folder)))
            except InputError as error:  # e.g. the data are on another machine
                missing.append(f"Agreement of {_name(run)} with {exact.label}: {error}")
    return found


def write_comparison(
    runs: Sequence[EvaluatedRun],
    summaries: Mapping[str, pd.DataFrame],
    agreements: Sequence[tuple[str, Mapping[str, Any]]],
    folder: Path,
) -> None:
    """Write comparison.md: all scores with cost and convergence, and in plain words who wins.

    Args:
        runs: comparable ones.
        summaries: from `over_seeds`, by protocol.
        agreements: from `compare_posteriors`.
        folder: where the file goes.
    """
    parts = [f"# Comparison on {runs[0].info['evaluated_on']}", LEGEND]
    for protocol, summary in summaries.items():
        windows = runs[0].metrics[protocol]["n_windows"]
        parts.append(f"## Windows: {PROTOCOL_TITLES[protocol]} ({windows})")
        parts.append(comparison_table(summary).to_markdown())
        parts.append("\n".join(f"- {line}" for line in verdict(summary)))
    if agreements:
        parts += [f"## {AGAINST_EXACT}", agreement_table(agreements).to_markdown()]
    (folder / COMPARISON).write_text("\n\n".join(parts) + "\n")


def _blocks(
    summaries: Mapping[str, pd.DataFrame], agreements: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, str]:
    """The tables of the docs, by the name of their block."""
    tables = {name: comparison_table(summary) for name, summary in summaries.items()}
    tables["results"] = highlights(summaries["after_context"])
    if agreements:
        tables["agreement"] = agreement_table(agreements)
    return {name: table.to_markdown() for name, table in tables.items()}


def _write_table_one(summary: pd.DataFrame, protocol: str, folder: Path) -> TextTable:
    table = table_one(summary)
    name = "table1" if protocol == "all_windows" else f"table1_{protocol}"
    (folder / f"{name}.md").write_text(f"{table.to_markdown()}\n\n{NOTE}\n")
    (folder / f"{name}.tex").write_text(table.to_latex() + "\n")
    summary.to_csv(folder / f"{name}.csv", index=False)
    return table


def _ablations(runs: Sequence[EvaluatedRun], folder: Path) -> list[Section]:
    """The ablations' section, and its table as files; nothing without ablations."""
    panels = ablation_panels(runs)
    if not panels:
        return []
    table = ablation_table(panels)
    (folder / "ablation.md").write_text(table.to_markdown() + "\n")
    (folder / "ablation.tex").write_text(table.to_latex() + "\n")
    text = "(ES of the ablation - ES of the full method) / ES of the ablation, all windows."
    return [Section("Ablations", (text,), [table])]


def _figures(
    runs: Sequence[EvaluatedRun], pair: str | None, missing: list[str]
) -> list[tuple[str, Figure, str]]:
    figures: list[tuple[str, Figure, str]] = []
    methods = main_methods(runs)
    windows = {
        label: pd.concat([run.windows[run.windows["all_windows"]] for run in some])
        for label, some in list(methods.items())[:MOST_METHODS]
    }
    caption = "Fig. 3: per-window errors, all windows and seeds. Boxes: quartiles and median."
    if len(methods) > len(windows):
        caption += f" The first {len(windows)} of {len(methods)} methods; the tables have all."
    figures.append(("fig3_error_distributions", error_distributions(windows), caption))

    trained = {k: some[0] for k, some in methods.items() if some[0].info["kind"] == "asbc"}
    shown = trained or {k: some[0] for k, some in list(methods.items())[:2]}
    chosen = pair or _median_pair(next(iter(shown.values())))
    figures.append(
        (
            "fig4_case_study",
            case_study({label: run.cases for label, run in shown.items()}, chosen),
            f"Fig. 4: pair {chosen}. Rollouts with 95% intervals, and the posterior behind them.",
        )
    )
    rounds = {label: run.rounds for label, run in trained.items() if run.rounds is not None}
    if rounds:
        caption = "Fig. 5: the active loop, round by round (first seed of each method)."
        figures.append(("fig5_convergence", convergence(rounds), caption))
    else:
        missing.append("Fig. 5 (convergence) needs a run of asbc train with its rounds.csv.")
    panels = ablation_panels(runs)
    if panels:
        caption = "Fig. 6: ablations, mean and standard deviation over seeds, all windows."
        figures.append(("fig6_ablation", ablation_bars(panels), caption))
    else:
        missing.append(
            "Fig. 6 (ablations) needs runs with acquisition=joint and theta_only or prior_only."
        )
    sweep = sweep_panels(runs)
    if sweep:
        caption = "Fig. 7: length of the encoder's context, all windows."
        figures.append(("fig7_context_sweep", context_sweep(sweep), caption))
    else:
        missing.append(f"Fig. 7 (T_E sweep) needs runs with two or more values of {CONTEXT}.")
    return figures


def _median_pair(run: EvaluatedRun) -> str:
    ranking = pair_ranking(run.windows[run.windows["all_windows"]])
    return str(ranking.index[len(ranking) // 2])


def _name(run: EvaluatedRun) -> str:
    seed = run.info["seed"]
    return run.label if seed is None else f"{run.label}, seed {seed}"


def _remarks(run: EvaluatedRun) -> list[str]:
    return [*run.metrics["notes"], *run.metrics["warnings"]]


def _run_list(runs: Sequence[EvaluatedRun]) -> TextTable:
    rows = [
        [run.label, str(run.info["seed"]), run.info["version"], run.info["folder"]]
        for run in by_seed(runs)
    ]
    return TextTable(("method", "seed", "version", "folder"), rows)
