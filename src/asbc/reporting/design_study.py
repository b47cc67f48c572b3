"""Does active design pay? Training runs of several budgets, scored against their simulations.

Three scores of a run need no evaluation: the loss on the synthetic hold-out, the Energy Score on
real validation pairs after the context (mean of s, v and a), and C2ST between its posterior and
the exact one of simulated drivers (0.5: alike, 1: distinct). The last needs the extra `baselines`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from asbc.errors import InputError
from asbc.evaluation.monitor import validation_scores
from asbc.evaluation.protocol import EvaluationSettings
from asbc.exact.diagnostics import require_extra
from asbc.exact.reference import closeness, exact_of
from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    LINES,
    MARKERS,
    cycle,
    legend_below,
    new_figure,
    save_figure,
    style,
)
from asbc.reporting.html import Page, Picture, Section, write_page
from asbc.reporting.text_tables import TextTable, number, publish
from asbc.run import Run
from asbc.utils.progress import progress

# Ways to spend simulations, in the order of legends; others come after them.
WAYS = ("joint", "theta_only", "prior_only", "random", "npe", "stream")
SCORES = {"loss": "hold-out loss", "es": "ES, validation pairs", "c2st": "C2ST to the exact"}
NOTES = (
    "Hold-out loss: negative log density of the parameters of simulated drivers.",
    "ES: Energy Score on the validation pairs after the context, mean of s, v and a.",
    "C2ST: how well a classifier tells the posterior from the exact one; 0.5 alike, 1 distinct.",
)
CAPTION = "Scores against the number of simulations, mean and standard deviation over seeds."


def write_design_study(
    runs: Sequence[Run], folder: Path, drivers: int, exact: Path, pages: Sequence[Path] = ()
) -> list[str]:
    """Write design.csv, design.md, design.png and report.html; returns what to tell the user.

    Args:
        runs: finished training runs.
        folder: where the files go; runs that its design.csv holds are not scored again.
        drivers: simulated drivers behind C2ST.
        exact: folder in which their exact posteriors are kept.
        pages: Markdown pages whose block `design` takes the table.
    """
    table = score_runs(runs, folder / "design.csv", drivers, exact)
    summary = over_seeds(table)
    text = design_table(summary)
    (folder / "design.md").write_text(text.to_markdown() + "\n")
    for markdown in pages:
        publish(markdown, {"design": text.to_markdown()})
    picture = Picture(save_figure(design_figure(summary), folder, "design"), CAPTION)
    facts = {"runs": str(len(runs)), "drivers with exact posteriors": str(drivers)}
    sections = [Section("Scores", NOTES, [text], [picture])]
    unsure = int(table["unsure"].max())
    warning = f"The exact posteriors of {unsure} of {drivers} drivers did not converge."
    page = Page("Does active design pay?", facts, [warning] * bool(unsure), sections)
    write_page(page, folder / "report.html")
    return [text.to_plain(), f"report: {folder / 'report.html'}"]


def score_runs(runs: Sequence[Run], path: Path, drivers: int, exact: Path) -> pd.DataFrame:
    """A row per run, from `path` where the same weights were scored with as many drivers before.

    Every new row is written at once: an interrupted report goes on where it was.
    """
    require_extra()
    _require_each_once(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    known: Any = pd.read_csv(path).to_dict("records") if path.is_file() else []
    scored: dict[tuple[str, int], Any] = {(row["weights"], row["drivers"]): row for row in known}
    keys = [(run.model().fingerprint(), drivers) for run in runs]
    left = [(key, run) for key, run in zip(keys, runs, strict=True) if key not in scored]
    for key, run in progress(left, "score", total=len(left)):
        scored[key] = {"weights": key[0], "drivers": drivers, **score_run(run, drivers, exact)}
        pd.DataFrame(scored.values()).to_csv(path, index=False)
    return pd.DataFrame([scored[key] for key in keys])


def score_run(run: Run, drivers: int, exact: Path) -> dict[str, Any]:
    """One row: how the run spent its simulations, how many, and its three scores."""
    rounds: Any = pd.read_csv(run.rounds).set_index("round")
    reference = exact_of(run, drivers, exact)
    table = closeness(run.posterior, reference, run.simulator.parameter_names)
    return {
        "run": f"{run.path.parent.name}/{run.path.name}",
        "way": way(run.config),
        "budget": budget(run.config),
        "seed": run.seed,
        "simulations": int(rounds["simulations"].iloc[-1]),
        "loss": float(rounds.loc[run.selected_round, "loss"]),
        "es": _validation_es(run),
        "c2st": float(table["c2st"].mean()),
        "unsure": int((~reference.converged).sum()),
    }


def _validation_es(run: Run) -> float:
    """Energy Score on all validation pairs after the context; NaN if none is long enough."""
    pairs, steps = run.source().splits().validation, run.config["data"]["context_steps"]
    if not bool((pairs.lengths > steps + EvaluationSettings().horizon).any()):
        return math.nan
    scores = validation_scores(
        run.posterior, run.simulator, pairs, steps, len(pairs), first_start=steps
    )
    return scores["validation_es"]


def way(config: Mapping[str, Any]) -> str:
    """How a run spends its simulations: its acquisition, or npe where it has no active round."""
    return "npe" if config["training"]["rounds"] == 0 else config["acquisition"]["name"]


def budget(config: Mapping[str, Any]) -> int:
    """Simulations that a run may spend; it may stop before.

    Example:
        >>> loop = {"warmup_simulations": 4000, "rounds": 10, "pairs_per_round": 2000}
        >>> budget({"acquisition": {"name": "joint"}, "training": loop})
        24000
    """
    if "simulations" in config["acquisition"]:
        return config["acquisition"]["simulations"]
    loop = config["training"]
    return loop["warmup_simulations"] + loop["rounds"] * loop["pairs_per_round"]


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Means and standard deviations by way and budget, in the order of their simulations."""
    grouped = table.groupby(["way", "budget"])
    result = grouped[["simulations", *SCORES]].mean()
    for name in SCORES:
        result[f"{name}_std"] = grouped[name].std()
    result["seeds"] = grouped.size()
    result = result.reset_index()
    ways = dict.fromkeys([*WAYS, *sorted(set(result["way"]))])
    result["way"] = pd.Categorical(result["way"], list(ways), ordered=True)
    return result.sort_values(["simulations", "way"])


def design_table(summary: pd.DataFrame) -> TextTable:
    """A row per way and budget: simulations spent, seeds, and mean scores with their spread."""
    rows = []
    for _, row in summary.iterrows():
        cells = [str(row["way"]), f"{row['simulations']:,.0f}", str(row["seeds"])]
        for name in SCORES:
            spread = row[f"{name}_std"]
            cells.append(number(row[name]) + ("" if pd.isna(spread) else f" ± {spread:.2g}"))
        rows.append(cells)
    return TextTable(["way", "simulations", "seeds", *SCORES.values()], rows)


def design_figure(summary: pd.DataFrame) -> Figure:
    """The three scores against the number of simulations, a line for each way."""
    ways = list(summary["way"].cat.categories)
    with style():
        figure = new_figure(DOUBLE, 2.8)
        axes = figure.subplots(1, len(SCORES))
        for ax, (name, title) in zip(axes, SCORES.items(), strict=True):
            for i, way in enumerate(ways):  # each looks the same in all figures
                own = summary[summary["way"] == way]
                if own.empty:
                    continue
                ax.errorbar(
                    own["simulations"],
                    own[name],
                    yerr=own[f"{name}_std"].fillna(0.0),
                    color=cycle(COLOURS, i),
                    linestyle=cycle(LINES, i),
                    marker=cycle(MARKERS, i),
                    ms=4,
                    capsize=2,
                    label=way,
                )
            ax.set_xscale("log")
            ax.set_xlabel("simulations")
            ax.set_ylabel(title)
        legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure


def _require_each_once(runs: Sequence[Run]) -> None:
    """Raise if two runs are alike but for what a mean over seeds would hide."""
    seen: dict[tuple[str, int, int], Run] = {}
    for run in runs:
        key = (way(run.config), budget(run.config), run.seed)
        if key in seen:
            raise InputError(
                f"{run.shown} and {seen[key].shown} spend {key[1]} simulations in the same way "
                f"({key[0]}) with the same seed ({key[2]}); leave one out of runs="
            )
        seen[key] = run
