"""Does active design pay? `python scripts/design_study.py FOLDER`, over runs of conf/design.yaml.

Scores every finished run three ways: its loss on the synthetic hold-out, the Energy Score on real
validation pairs after the context (mean of s, v and a), and C2ST between its posterior and the
exact one of 20 simulated drivers (0.5: alike, 1: distinct). Writes design.csv, design.md and
design.png into FOLDER; runs that are in design.csv already are not scored again. `make design
DATA=FILE` makes the runs first. Needs the extra `baselines`.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.utils import instantiate
from matplotlib.figure import Figure

from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.evaluation.monitor import validation_scores
from asbc.exact.reference import closeness, exact_of
from asbc.reporting.figures.style import COLOURS, DOUBLE, LINES, MARKERS, cycle, new_figure, style
from asbc.reporting.text_tables import TextTable, number
from asbc.run import load_posterior, open_run
from asbc.utils.progress import progress

WAYS = ("joint", "theta_only", "prior_only", "random", "npe", "stream")
SCORES = {"loss": "hold-out loss", "es": "ES, validation pairs", "c2st": "C2ST to the exact"}


def name_of(folder: Path) -> str:
    """A run's variant and seed."""
    return f"{folder.parent.name}/{folder.name}"


def score_run(folder: Path, drivers: int, cache: Path) -> dict[str, Any]:
    """One row: how the run spent its simulations, how many, and its three scores."""
    run = open_run(folder)
    posterior = instantiate(run.config["estimator"])
    selected = load_posterior(posterior, run)
    rounds = pd.read_csv(folder / "rounds.csv").set_index("round")
    pairs: Pairs = instantiate(run.config["data"]).splits().validation
    simulator, steps = instantiate(run.config["simulator"]), run.config["data"]["context_steps"]
    scores = validation_scores(
        posterior.eval(), simulator, pairs, steps, len(pairs), first_start=steps
    )
    exact = exact_of(run.config, instantiate, drivers, cache)
    table = closeness(posterior, exact, simulator.parameter_names)
    return {
        "run": name_of(folder),
        "way": folder.parent.name.rpartition("_")[0],
        "budget": folder.parent.name.rpartition("_")[2],
        "seed": run.seed,
        "simulations": int(rounds["simulations"].iloc[-1]),
        "loss": float(rounds.loc[selected, "loss"]),
        "es": scores["validation_es"],
        "c2st": float(table["c2st"].mean()),
    }


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Means and standard deviations by way and budget, in the order of their simulations."""
    grouped = table.groupby(["way", "budget"])
    result = grouped[["simulations", *SCORES]].mean()
    for name in SCORES:
        result[f"{name}_std"] = grouped[name].std()
    result["seeds"] = grouped.size()
    result = result.reset_index()
    result["way"] = pd.Categorical(result["way"], WAYS, ordered=True)
    return result.sort_values(["simulations", "way"])


def to_markdown(summary: pd.DataFrame) -> str:
    """The table for the docs."""
    rows = []
    for _, row in summary.iterrows():
        cells = [str(row["way"]), f"{row['simulations']:,.0f}", str(row["seeds"])]
        for name in SCORES:
            spread = row[f"{name}_std"]
            cells.append(number(row[name]) + ("" if pd.isna(spread) else f" ± {spread:.2g}"))
        rows.append(cells)
    return TextTable(["way", "simulations", "seeds", *SCORES.values()], rows).to_markdown()


def draw(summary: pd.DataFrame) -> Figure:
    """The three scores against the number of simulations, a line for each way."""
    with style():
        figure = new_figure(DOUBLE, 2.8)
        axes = figure.subplots(1, len(SCORES))
        for ax, (name, title) in zip(axes, SCORES.items(), strict=True):
            for i, way in enumerate(WAYS):
                own = summary[summary["way"] == way]
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
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(WAYS))
    return figure


def main() -> None:
    """Score the runs that are not scored yet, and write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=Path("outputs/exact_posterior"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = arguments.folder.glob("*/*/checkpoints/best.ckpt")
    folders = sorted(path.parent.parent for path in models)
    if not folders:
        raise InputError(f"{arguments.folder}: no finished runs; see conf/design.yaml")
    path = arguments.folder / "design.csv"
    rows = pd.read_csv(path).to_dict("records") if path.is_file() else []
    scored = {row["run"] for row in rows}
    new = [f for f in folders if name_of(f) not in scored]
    for folder in progress(new, "score", total=len(new)):
        rows.append(score_run(folder, arguments.drivers, arguments.cache))
        pd.DataFrame(rows).to_csv(path, index=False)
    table = pd.DataFrame(rows)
    summary = over_seeds(table)
    text = to_markdown(summary)
    (arguments.folder / "design.md").write_text(f"{text}\n")
    draw(summary).savefig(arguments.folder / "design.png", dpi=200)
    print(text)
    print(f"written to {arguments.folder}: design.csv, design.md, design.png")


if __name__ == "__main__":
    main()
