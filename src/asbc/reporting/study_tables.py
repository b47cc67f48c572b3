"""Which runs go into which panel of the figures over many runs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from asbc.reporting.collect import EvaluatedRun
from asbc.reporting.run_tables import METRICS, PAPER_ROWS
from asbc.reporting.text_tables import TextTable
from asbc.run import FULL_METHOD

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


CONTEXT = "data.context_steps"

Panels = dict[str, dict[str, pd.DataFrame]]


def main_methods(runs: Sequence[EvaluatedRun]) -> dict[str, list[EvaluatedRun]]:
    """Full methods and baselines without further overrides, by label, seeds in order."""
    chosen: dict[str, list[EvaluatedRun]] = {}
    for run in by_seed(runs):
        full = run.info["kind"] != "asbc" or run.info["acquisition"] == FULL_METHOD
        if full and not run.suffix:
            chosen.setdefault(run.label, []).append(run)
    if not chosen:  # every run is a variant: show them all
        for run in by_seed(runs):
            chosen.setdefault(run.label, []).append(run)
    trained_first = sorted(chosen.items(), key=lambda item: item[1][0].info["kind"] != "asbc")
    return dict(trained_first)


def ablation_panels(runs: Sequence[EvaluatedRun]) -> Panels:
    """By residual model, the full method and its ablations, a row per seed; {} without any."""
    plain = [run for run in by_seed(runs) if run.info["kind"] == "asbc" and not run.suffix]
    panels: Panels = {}
    for residual in dict.fromkeys(run.info["residual"] for run in plain):
        some = [run for run in plain if run.info["residual"] == residual]
        names = sorted({run.info["acquisition"] for run in some}, key=_full_first)
        if FULL_METHOD in names and len(names) > 1:
            title = f"ASBC-{some[0].info['residual_label']}"
            panels[title] = {
                "full" if name == FULL_METHOD else name: score_table(
                    [run for run in some if run.info["acquisition"] == name], "all_windows"
                )
                for name in names
            }
    return panels


def sweep_panels(runs: Sequence[EvaluatedRun]) -> dict[str, dict[float, pd.DataFrame]]:
    """By method, by context length in seconds, a row per seed; {} if no method has two lengths."""
    panels: dict[str, dict[float, list[EvaluatedRun]]] = {}
    for run in runs:
        others = [text for text in run.suffix if not text.startswith(CONTEXT)]
        if run.info["kind"] == "asbc" and not others:
            seconds = run.metrics["data"]["context_steps"] * run.metrics["data"]["dt"]
            panels.setdefault(run.info["method"], {}).setdefault(seconds, []).append(run)
    return {
        method: {s: score_table(some, "all_windows") for s, some in sorted(lengths.items())}
        for method, lengths in panels.items()
        if len(lengths) > 1
    }


def by_seed(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """The runs by method, then seed."""
    return sorted(runs, key=lambda run: (run.label, run.info["seed"] or 0))


def _full_first(name: str) -> tuple[bool, str]:
    return name != FULL_METHOD, name
