"""Tables over many runs: the paper's Table 1, and what the ablations cost."""

from collections.abc import Mapping, Sequence

import pandas as pd

from asbc.reporting.collect import EvaluatedRun
from asbc.reporting.paper import METRICS, PAPER_ROWS
from asbc.reporting.text_tables import TextTable

HEADER = (
    "Method",
    "RMSE s ↓",
    "RMSE v ↓",
    "RMSE a ↓",
    "ES s ↓",
    "ES v ↓",
    "ES a ↓",
    "seeds",
    "windows",
)


def score_table(runs: Sequence[EvaluatedRun], protocol: str) -> pd.DataFrame:
    """A row per run: label, kind, seed, number of windows and the six scores."""
    return pd.DataFrame(
        [
            {
                "label": run.label,
                "kind": run.info["kind"],
                "seed": run.info["seed"],
                "n_windows": run.metrics[protocol]["n_windows"],
                **{name: run.metrics[protocol][name] for name in METRICS},
            }
            for run in runs
        ]
    )


def over_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over seeds, methods before baselines."""
    grouped = scores.groupby(["kind", "label"], sort=False)
    table = grouped["n_windows"].agg(seeds="size", n_windows="first")
    for name in METRICS:
        table[f"{name}_mean"] = grouped[name].mean()
        table[f"{name}_sd"] = grouped[name].std(ddof=1)
    return table.reset_index().sort_values(["kind", "label"], kind="stable", ignore_index=True)


def table_one(summary: pd.DataFrame) -> TextTable:
    """The paper's Table 1: our rows, the best of each column in bold, and the paper's rows."""
    means = summary[[f"{name}_mean" for name in METRICS]]
    best = means.eq(means.min()) if len(means) > 1 else means.ne(means)
    rows = [
        [
            str(row["label"]),
            *(mean_sd(row[f"{name}_mean"], row[f"{name}_sd"]) for name in METRICS),
            str(row["seeds"]),
            str(row["n_windows"]),
        ]
        for _, row in summary.iterrows()
    ]
    bold = [(r, c + 1) for r, c in zip(*best.to_numpy().nonzero(), strict=True)]
    trained = int(summary["kind"].eq("asbc").sum())
    rules = [trained] if 0 < trained < len(rows) else []
    rules.append(len(rows))
    for paper in PAPER_ROWS:
        spread = paper.sd or (float("nan"),) * len(METRICS)
        cells = [mean_sd(m, s) for m, s in zip(paper.mean, spread, strict=True)]
        rows.append([f"paper (highD): {paper.label}", *cells, "5" if paper.sd else "1", "–"])
    return TextTable(HEADER, rows, rules=tuple(rules), bold=frozenset(bold))


def mean_sd(mean: float | None, sd: float) -> str:
    """The paper's way to write a mean over seeds.

    Example:
        >>> mean_sd(2.4551, 0.2091), mean_sd(3.381, float("nan"))
        ('2.455 ± 0.209', '3.381')
    """
    if mean is None or mean != mean:
        return "–"
    return f"{mean:.3f} ± {sd:.3f}" if sd == sd else f"{mean:.3f}"


def reduction(full: float, ablated: float) -> float:
    """The paper's relative change in percent: (ES_abl - ES_full) / ES_abl * 100.

    Example:
        >>> reduction(full=9.0, ablated=12.0)
        25.0
    """
    return (ablated - full) / ablated * 100


def ablation_table(panels: Mapping[str, Mapping[str, pd.DataFrame]]) -> TextTable:
    """By how much the full method lowers each ablation's Energy Score, in percent.

    Args:
        panels: by residual model, by variant (full method first), a row per seed.
    """
    rows = []
    for title, variants in panels.items():
        full, *ablations = variants
        for name in ablations:
            changes = [
                reduction(variants[full][f"es_{x}"].mean(), variants[name][f"es_{x}"].mean())
                for x in "sva"
            ]
            rows.append([f"{title}: {name}", *(f"{change:+.1f}%" for change in changes)])
    return TextTable(("Energy Score lowered by the full method", "s", "v", "a"), rows)
