"""The tables over many runs, and which runs go into which panel of the figures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from asbc.evaluation.scores import HEADLINE, SCORES, Score, headline
from asbc.reporting.collect import EvaluatedRun
from asbc.reporting.run_tables import PAPER_ROWS
from asbc.reporting.text_tables import TextTable, number
from asbc.run import FULL_METHOD

# The score behind each metric of the tables, by the metric's name.
METRICS: dict[str, Score] = {
    metric: score for score in SCORES if score.table == HEADLINE for metric in score.columns
}
ARROWS = {"low": " ↓", "high": " ↑"}
HEADER = (
    "Method",
    *(f"{label}{ARROWS.get(str(METRICS[m].best), '')}" for m, label in headline().items()),
    "seeds",
    "windows",
)
COVERAGE = ("coverage95_s", "coverage95_v", "coverage95_a")
COSTS = (
    *("95% coverage s/v/a", "collisions", "weights", "fit (CPU s)"),
    *("r-hat", "bulk ESS", "divergences"),
)
# What a method costs and does wrong, averaged over seeds besides the scores.
MEANS = (*COVERAGE, "collision_rate", "weights", "fit_seconds")
LEGEND = (
    "Lower is better except for coverage, which should be 95%; bold: best of its column. "
    "Collisions: share of the predicted drives. Weights: numbers a network has learned. Fit: CPU "
    "seconds for all that a method does before it predicts; for ASBC the seconds of its training "
    "on one core. r-hat: the largest; bulk ESS: the smallest of all sampled quantities; a sampler "
    "that broke a bound (1.01, 400) says so beside its name."
)

# Rows of ASBC, and of other methods, that a short table shows.
BEST_OF_EACH = 4


def score_table(runs: Sequence[EvaluatedRun], protocol: str) -> pd.DataFrame:
    """A row per run: label, kind, seed, windows, scores, coverage, cost and convergence."""
    rows = [
        {
            "label": run.label,
            "kind": run.info["kind"],
            "seed": run.info["seed"],
            "n_windows": run.metrics[protocol]["n_windows"],
            **{name: run.metrics[protocol].get(name) for name in (*METRICS, *COVERAGE)},
            "collision_rate": run.metrics[protocol].get("collision_rate"),
            "weights": _weights(run),
            "fit_seconds": _fit_seconds(run),
            **_convergence(run),
        }
        for run in runs
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys((*METRICS, *MEANS), float))


def over_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over seeds, methods before baselines.

    Of a sampler's diagnostics the worst counts.
    """
    grouped = scores.groupby(["kind", "label"], sort=False)
    table = grouped["n_windows"].agg(seeds="size", n_windows="first")
    for name in METRICS:
        table[f"{name}_mean"] = grouped[name].mean()
        table[f"{name}_sd"] = grouped[name].std(ddof=1)
    for name in MEANS:
        table[name] = grouped[name].mean()
    table["r_hat"] = grouped["r_hat"].agg(lambda values: values.max(skipna=False))
    table["ess_bulk"] = grouped["ess_bulk"].agg(lambda values: values.min(skipna=False))
    table["divergences"] = grouped["divergences"].agg(lambda values: values.sum(skipna=False))
    return table.reset_index().sort_values(["kind", "label"], kind="stable", ignore_index=True)


def _weights(run: EvaluatedRun) -> float:
    """Numbers that its network has learned; NaN where there is none."""
    own = run.metrics.get("weights")
    return run.metrics.get("baseline", {}).get("weights", math.nan) if own is None else own


def _fit_seconds(run: EvaluatedRun) -> float:
    """CPU seconds before the first prediction; NaN where nothing recorded them."""
    if run.info["kind"] == "baseline":
        return run.metrics.get("baseline", {}).get("fit_seconds", math.nan)
    if not run.run.rounds.is_file():
        return math.nan
    seconds = pd.read_csv(run.run.rounds).filter(like="seconds_")
    return math.nan if seconds.empty else float(seconds.sum().sum())


def _convergence(run: EvaluatedRun) -> dict[str, float]:
    """The sampler's diagnostics; NaN where nothing was sampled."""
    found = run.metrics.get("baseline", {}).get("convergence")
    if found is None:
        return dict.fromkeys(("r_hat", "ess_bulk", "divergences"), math.nan)
    # A chain that never moved has no r-hat and no sample size.
    return {
        "r_hat": math.inf if found["r_hat"] is None else found["r_hat"],
        "ess_bulk": 0 if found["ess_bulk"] is None else found["ess_bulk"],
        "divergences": found["divergences"],
    }


def table_one(summary: pd.DataFrame) -> TextTable:
    """The paper's Table 1: our rows, the best of each column in bold, and the paper's rows."""
    rows = [
        [*_score_cells(row), str(row["seeds"]), str(row["n_windows"])]
        for _, row in summary.iterrows()
    ]
    trained = int(summary["kind"].eq("asbc").sum())
    rules = [trained] if 0 < trained < len(rows) else []
    rules.append(len(rows))
    for paper in PAPER_ROWS:
        cells = [mean_sd(paper.mean.get(m), paper.sd.get(m, math.nan)) for m in METRICS]
        rows.append([f"paper (highD): {paper.label}", *cells, "5" if paper.sd else "1", "–"])
    return TextTable(HEADER, rows, rules=tuple(rules), bold=_best(summary))


def comparison_table(summary: pd.DataFrame) -> TextTable:
    """A row per method: scores, coverage, cost and the sampler's diagnostics."""
    rows = [[*_score_cells(row), *_cost_cells(row)] for _, row in summary.iterrows()]
    return TextTable((*HEADER[:-2], *COSTS), rows, bold=_best(summary))


def highlights(summary: pd.DataFrame) -> TextTable:
    """At most eight rows: the best of ASBC and of the other methods by Energy Score of the gap."""
    ranked = summary.sort_values("es_s_mean", kind="stable")
    chosen = pd.concat([some.head(BEST_OF_EACH) for _, some in ranked.groupby("kind")])
    rows = [[*_score_cells(row), _cost_cells(row)[0]] for _, row in chosen.iterrows()]
    return TextTable((*HEADER[:-2], COSTS[0]), rows, bold=_best(chosen))


def cost_table(summary: pd.DataFrame) -> TextTable:
    """A row per method: coverage, cost and the sampler's diagnostics."""
    rows = [[str(row["label"]), *_cost_cells(row)] for _, row in summary.iterrows()]
    return TextTable(("Method", *COSTS), rows)


def _score_cells(row: pd.Series) -> list[str]:
    scores = (mean_sd(row[f"{name}_mean"], row[f"{name}_sd"]) for name in METRICS)
    return [str(row["label"]), *scores]


def _cost_cells(row: pd.Series) -> list[str]:
    """What `COSTS` names, of one method."""
    coverage = [row[name] for name in COVERAGE]
    r_hat = "∞" if math.isinf(row["r_hat"]) else _fixed(row["r_hat"], 3)
    return [
        "–" if any(map(math.isnan, coverage)) else "/".join(f"{100 * x:.0f}" for x in coverage),
        "–" if math.isnan(row["collision_rate"]) else f"{row['collision_rate']:.2%}",
        "–" if math.isnan(row["weights"]) else f"{row['weights']:,.0f}",
        _fixed(row["fit_seconds"]),
        r_hat,
        _fixed(row["ess_bulk"]),
        _fixed(row["divergences"]),
    ]


def _fixed(value: float, digits: int = 0) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _losses(summary: pd.DataFrame) -> pd.DataFrame:
    """How far every mean is from the best one, a column per metric: the smaller, the better."""
    return pd.DataFrame({m: summary[f"{m}_mean"].map(METRICS[m].loss) for m in METRICS})


def _best(summary: pd.DataFrame) -> frozenset[tuple[int, int]]:
    """Row and column of the best methods; a single method is best at nothing."""
    losses = _losses(summary)
    best = losses.eq(losses.min()).to_numpy() & (len(losses) > 1)
    return frozenset((int(r), int(c) + 1) for r, c in zip(*best.nonzero(), strict=True))


def verdict(summary: pd.DataFrame) -> list[str]:
    """In plain words, the cells in which a baseline beats the best ASBC row.

    Args:
        summary: from `over_seeds`, with rows of both kinds.
    """
    losses, ours = _losses(summary), summary["kind"].eq("asbc")
    if ours.all() or not ours.any():
        return ["Nothing to compare: the runs hold no ASBC row or no baseline."]
    if losses.isna().to_numpy().all():
        return ["Nothing to compare: the runs hold no window of this protocol."]
    lines = []
    for metric, label in headline().items():
        best = losses.loc[ours, metric].idxmin()
        better = losses.loc[~ours & (losses[metric] < losses.loc[ours, metric].min()), metric]
        names = [
            f"{summary.loc[i, 'label']} ({number(summary.loc[i, f'{metric}_mean'])})"
            for i in [*better.sort_values().index, best]
        ]
        if len(names) > 1:
            lines.append(f"{label}: {', '.join(names[:-1])} beat {names[-1]}.")
    count = len(METRICS) - len(lines)
    return [f"ASBC is best in {count} of {len(METRICS)} columns.", *lines]


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
