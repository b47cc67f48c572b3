"""What beats what: `python scripts/comparison.py FOLDER` over the runs of a comparison.

Writes FOLDER/comparison.md: the scores of all methods under both protocols with their cost and
convergence, in plain words where a baseline beats ASBC, and how far the amortized posteriors are
from the saved draws of NUTS, driver by driver. `make comparison DATA=FILE` makes the runs first.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra.utils import instantiate

from asbc.baselines.unpooled import compare_runs
from asbc.evaluation.results import PROTOCOL_TITLES, PROTOCOLS
from asbc.reporting.collect import EvaluatedRun, find_runs, require_comparable, with_suffixes
from asbc.reporting.run_tables import METRICS
from asbc.reporting.study_tables import over_seeds, score_table, table_one
from asbc.reporting.text_tables import TextTable, number
from asbc.run import open_run, posterior_differences

NAMES = dict(zip(METRICS, ("RMSE s", "RMSE v", "RMSE a", "ES s", "ES v", "ES a"), strict=True))
COLUMNS = ("95% coverage s/v/a", "fit (CPU s)", "r-hat", "bulk ESS", "divergences")
LEGEND = """Lower is better except for coverage, which should be 95%; bold: best of its column.
Fit: CPU seconds for all that a method does before it predicts; for ASBC the seconds of its
training on one core. r-hat: the largest; bulk ESS: the smallest of all sampled quantities; a
sampler that broke a bound (1.01, 400) says so beside its name."""


def verdict(summary: pd.DataFrame) -> list[str]:
    """In plain words, the cells in which a baseline beats the best ASBC row.

    Args:
        summary: from `over_seeds`, with rows of both kinds.
    """
    ours, theirs = (summary[summary["kind"] == kind] for kind in ("asbc", "baseline"))
    if ours.empty or theirs.empty:
        return ["Nothing to compare: the runs hold no ASBC row or no baseline."]
    lines = []
    for metric in METRICS:
        best = ours.loc[ours[f"{metric}_mean"].idxmin()]
        better = theirs[theirs[f"{metric}_mean"] < best[f"{metric}_mean"]]
        names = [
            f"{row['label']} ({number(row[f'{metric}_mean'])})"
            for _, row in better.sort_values(f"{metric}_mean").iterrows()
        ]
        if names:
            reference = f"{best['label']} ({number(best[f'{metric}_mean'])})"
            lines.append(f"{NAMES[metric]}: {', '.join(names)} beat {reference}.")
    count = len(METRICS) - len(lines)
    return [f"ASBC is best in {count} of {len(METRICS)} columns.", *lines]


def comparison_table(runs: Sequence[EvaluatedRun], protocol: str) -> TextTable:
    """A row per method: scores, coverage, cost and the sampler's diagnostics."""
    summary = over_seeds(score_table(runs, protocol))
    scores = table_one(summary)
    rows = []
    for label, cells in zip(summary["label"], scores.rows, strict=False):
        members = [run for run in runs if run.label == label]
        rows.append([*cells[: len(METRICS) + 1], *_further_cells(members, protocol)])
    header = (*scores.header[: len(METRICS) + 1], *COLUMNS)
    return TextTable(header, rows, bold=scores.bold)


def _further_cells(runs: Sequence[EvaluatedRun], protocol: str) -> list[str]:
    """What `COLUMNS` names, of one method's runs; diagnostics of the worst of them."""
    coverage = [
        sum(run.metrics[protocol][f"coverage95_{x}"] for run in runs) / len(runs) for x in "sva"
    ]
    seconds = [_fit_seconds(run) for run in runs]
    found = [run.metrics.get("baseline", {}).get("convergence") for run in runs]
    cells = [
        "/".join(f"{100 * share:.0f}" for share in coverage),
        f"{sum(seconds) / len(seconds):.0f}",
    ]
    if None in found:
        return [*cells, "–", "–", "–"]
    # A chain that never moved has no r-hat and no sample size.
    r_hat, ess = ([each[name] for each in found] for name in ("r_hat", "ess_bulk"))
    return [
        *cells,
        "∞" if None in r_hat else f"{max(r_hat):.3f}",
        "0" if None in ess else f"{min(ess):.0f}",
        str(sum(each["divergences"] for each in found)),
    ]


def _fit_seconds(run: EvaluatedRun) -> float:
    if run.info["kind"] == "baseline":
        return run.metrics["baseline"]["fit_seconds"]
    rounds = pd.read_csv(run.folder.parent / "rounds.csv")
    return float(rounds.filter(like="seconds_").sum().sum())


def compare_posteriors(runs: Sequence[EvaluatedRun]) -> list[tuple[str, dict[str, Any]]]:
    """Label and agreement of each training run with saved NUTS draws of the same posterior."""
    found = []
    for exact in runs:
        if "seconds_per_driver" not in exact.metrics.get("baseline", {}):
            continue
        config = yaml.safe_load((exact.folder.parent / "config.yaml").read_text())
        for run in (run for run in runs if run.info["kind"] == "asbc"):
            trained = open_run(run.folder.parent)
            if not posterior_differences(trained.config, config):
                summary = compare_runs(exact.folder.parent, trained, instantiate, run.folder)
                found.append((run.label, summary))
    return found


def agreement_table(agreements: Sequence[tuple[str, Mapping[str, Any]]]) -> TextTable:
    """How far the amortized posteriors are from NUTS, and the seconds per driver of both."""
    rows = []
    for label, found in agreements:
        overlap = ", ".join(f"{k} {v:.2f}" for k, v in found["interval_overlap"].items())
        rows.append(
            [
                label,
                str(found["drivers"]),
                f"{found['c2st_mean']:.3f} (worst {found['c2st_worst']:.3f})",
                overlap,
                f"{found['nuts_seconds_per_driver']:.2g}",
                f"{found['amortized_seconds_per_driver']:.2g}",
                f"{found['speed_up']:.0f}",
            ]
        )
    header = ("Against NUTS", "drivers", "C2ST", "overlap of 90% intervals")
    return TextTable((*header, "NUTS CPU s/driver", "ASBC CPU s/driver", "times faster"), rows)


def write_comparison(folder: Path) -> Path:
    """Write comparison.md over the evaluated runs below `folder`; returns its path."""
    runs = find_runs(str(folder / "*"))
    require_comparable(runs)
    runs = with_suffixes(runs)
    parts = [f"# Comparison on {runs[0].info['evaluated_on']}", LEGEND]
    for protocol in PROTOCOLS:
        windows = runs[0].metrics[protocol]["n_windows"]
        parts.append(f"## Windows: {PROTOCOL_TITLES[protocol]} ({windows})")
        parts.append(comparison_table(runs, protocol).to_markdown())
        lines = verdict(over_seeds(score_table(runs, protocol)))
        parts.append("\n".join(f"- {line}" for line in lines))
    if agreements := compare_posteriors(runs):
        parts.append("## The amortized posterior against the exact one")
        parts.append(agreement_table(agreements).to_markdown())
    path = folder / "comparison.md"
    path.write_text("\n\n".join(parts) + "\n")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="output= of the study")
    written = write_comparison(parser.parse_args().folder)
    print(written.read_text())
    print(f"written to {written}")
