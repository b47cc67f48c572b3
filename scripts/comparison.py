"""What beats what: `python scripts/comparison.py FOLDER` over the runs of a comparison.

Writes FOLDER/comparison.md: the scores of all methods under both protocols, in plain words where a
baseline beats ASBC, what each method cost and whether it converged, and how far the amortized
posteriors are from NUTS driver by driver. `make comparison DATA=FILE` makes the runs first.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from asbc.evaluation.results import PROTOCOLS
from asbc.reporting.collect import EvaluatedRun, find_runs, require_comparable, with_suffixes
from asbc.reporting.paper import METRICS
from asbc.reporting.run_figures import PROTOCOL_TITLES
from asbc.reporting.study_tables import over_seeds, score_table, table_one
from asbc.reporting.text_tables import TextTable, number

NAMES = dict(zip(METRICS, ("RMSE s", "RMSE v", "RMSE a", "ES s", "ES v", "ES a"), strict=True))


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


def cost_table(runs: Sequence[EvaluatedRun]) -> TextTable:
    """Seconds to fit each baseline, and the sampler's diagnostics."""
    rows = []
    for run in runs:
        record = run.metrics.get("baseline")
        if record is None:
            continue
        found = record.get("convergence", {})
        rows.append(
            [
                run.info["method"],
                f"{record['fit_seconds']:.0f}",
                *(f"{found[name]:{style}}" if found else "–" for name, style in DIAGNOSTICS),
                "–" if not found else "yes" if found["converged"] else run.info["remark"],
            ]
        )
    header = ("Baseline", "fit (s)", "largest r-hat", "least bulk ESS", "divergences", "converged")
    return TextTable(header, rows)


DIAGNOSTICS = (("r_hat", ".3f"), ("ess_bulk", ".0f"), ("divergences", "d"))


def agreement_table(runs: Sequence[EvaluatedRun]) -> TextTable:
    """How far the amortized posteriors are from NUTS, and the seconds per driver of both."""
    rows = []
    for run in runs:
        found = run.metrics.get("baseline", {}).get("agreement")
        if found is None:
            continue
        overlap = ", ".join(f"{k} {v:.2f}" for k, v in found["interval_overlap"].items())
        rows.append(
            [
                run.info["residual"],
                str(found["drivers"]),
                f"{found['c2st_mean']:.3f} (worst {found['c2st_worst']:.3f})",
                overlap,
                f"{found['nuts_seconds_per_driver']:.2g}",
                f"{found['amortized_seconds_per_driver']:.2g}",
                f"{found['speed_up']:.0f}",
            ]
        )
    header = ("ASBC against NUTS", "drivers", "C2ST", "overlap of 90% intervals")
    return TextTable((*header, "NUTS s/driver", "ASBC s/driver", "times faster"), rows)


def write_comparison(folder: Path) -> Path:
    """Write comparison.md over the evaluated runs below `folder`; returns its path."""
    runs = find_runs(str(folder / "*"))
    require_comparable(runs)
    runs = with_suffixes(runs)
    parts = [f"# Comparison on {runs[0].info['evaluated_on']}"]
    for protocol in PROTOCOLS:
        summary = over_seeds(score_table(runs, protocol))
        parts += [f"## Windows: {PROTOCOL_TITLES[protocol]}", table_one(summary).to_markdown()]
        parts.append("\n".join(f"- {line}" for line in verdict(summary)))
    parts += ["## Cost and convergence", cost_table(runs).to_markdown()]
    agreement = agreement_table(runs)
    if agreement.rows:
        parts += ["## The amortized posterior against the exact one", agreement.to_markdown()]
    path = folder / "comparison.md"
    path.write_text("\n\n".join(parts) + "\n")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="output= of the study")
    written = write_comparison(parser.parse_args().folder)
    print(written.read_text())
    print(f"written to {written}")
