"""The tables of a run's report, from the content of its metrics.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asbc.data.summary import QUANTITIES, DataSummary
from asbc.evaluation.driving import MEASURES
from asbc.evaluation.results import PROTOCOL_TITLES
from asbc.evaluation.scores import FURTHER, HEADLINE, SCORES, VARIABLES, Score, headline
from asbc.reporting.text_tables import TextTable, number

NOTE = (
    "Paper rows: highD, all windows, five seeds for ASBC. They are for reference only: other data "
    "are another task."
)


@dataclass(frozen=True)
class PaperRow:
    """Mean and, where the paper gives one, standard deviation over seeds of its metrics."""

    label: str
    mean: Mapping[str, float]
    sd: Mapping[str, float] = field(default_factory=dict)

    def cell(self, metric: str) -> str:
        """What a table writes for a metric; a dash for one the paper does not have."""
        sd = self.sd.get(metric)
        return number(self.mean.get(metric)) + ("" if sd is None else f" ± {number(sd)}")


def _paper(label: str, mean: Sequence[float], sd: Sequence[float] = ()) -> PaperRow:
    columns = ("rmse_s", "rmse_v", "rmse_a", "es_s", "es_v", "es_a")  # as the paper prints them
    return PaperRow(label, *(dict(zip(columns, values, strict=False)) for values in (mean, sd)))


PAPER_ROWS = (
    _paper(
        "ASBC-Gaussian",
        (2.633, 0.627, 0.291, 15.510, 3.571, 1.590),
        (0.150, 0.035, 0.018, 1.141, 0.248, 0.093),
    ),
    _paper(
        "ASBC-Matérn",
        (2.455, 0.628, 0.302, 13.452, 3.367, 1.511),
        (0.209, 0.077, 0.031, 0.489, 0.278, 0.179),
    ),
    _paper("Pooled MA-IDM", (3.381, 1.088, 0.399, 24.591, 6.340, 2.378)),
    _paper("Pooled B-IDM", (3.957, 1.044, 0.439, 26.709, 7.033, 2.744)),
)


def headline_table(
    metrics: Mapping[str, Any], method: str, scores: Sequence[Score] = SCORES
) -> TextTable:
    """Both protocols with bootstrap intervals, above the paper's rows."""
    shown = [score for score in scores if score.table == HEADLINE]
    cells = [(metric, score) for score in shown for metric in score.columns]
    rows: list[list[str]] = []
    for name, title in PROTOCOL_TITLES.items():
        means = metrics[name]
        label = f"{method}, {title} ({means['n_windows']})"
        rows.append([label, *(written(means[metric], score) for metric, score in cells)])
        if means["n_windows"]:
            ends = means["interval95"]
            rows.append(["", *(_interval(ends[metric], score) for metric, score in cells)])
    rule = len(rows)
    for row in PAPER_ROWS:
        rows.append([f"paper (highD): {row.label}", *(row.cell(metric) for metric, _ in cells)])
    return TextTable(("", *headline(scores).values()), rows, rules=(rule,))


def written(value: float | None, score: Score) -> str:
    """A mean as tables write it."""
    return _percent(value) if score.percent else number(value)


def _interval(ends: Sequence[float], score: Score) -> str:
    return f"[{written(ends[0], score)}, {written(ends[1], score)}]"


def further_table(metrics: Mapping[str, Any], scores: Sequence[Score] = SCORES) -> TextTable:
    """CRPS, and how often central intervals hold the observation, by protocol."""
    shown = [score for score in scores if score.table == FURTHER]
    first, *others = VARIABLES
    header = [cell for score in shown for cell in (f"{score.label} {first}", *others)]
    rows = [
        [
            title,
            *(
                written(metrics[name][metric], score)
                for score in shown
                for metric in score.columns
            ),
        ]
        for name, title in PROTOCOL_TITLES.items()
    ]
    return TextTable(("observations inside intervals", *header), rows)


def driving_table(metrics: Mapping[str, Any]) -> TextTable:
    """Simulated against observed driving, and the share of simulated collisions."""
    name = "after_context" if metrics["after_context"]["n_windows"] else "all_windows"
    scores = metrics[name]
    rows = [
        [
            title,
            *(number(scores["driving"][key][c]) for c in ("simulated_mean", "observed_mean")),
            *(number(scores["driving"][key][c]) for c in ("wasserstein", "ks")),
        ]
        for key, title in MEASURES.items()
    ]
    rows.append(["share of drives with a collision", number(scores["collision_rate"]), "0"])
    rows[-1] += ["–", "–"]
    return TextTable(
        (
            f"driving, windows {PROTOCOL_TITLES[name]}",
            "simulated",
            "observed",
            "Wasserstein",
            "KS",
        ),
        rows,
    )


def posterior_tables(metrics: Mapping[str, Any]) -> list[TextTable]:
    """Checks per parameter on simulated drivers, and on data whose parameters are known."""
    tables = []
    columns = ("contraction", "correlation", "rmse", "coverage50", "coverage95", "sbc_p_value")
    titles = ("contraction", "r(mean, truth)", "RMSE", "50% cover", "95% cover", "SBC p")
    checks = metrics.get("simulated_drivers")
    if checks:
        rows = [
            [name, *(number(values[c]) for c in columns)]
            for name, values in checks["parameters"].items()
        ]
        tables.append(TextTable((f"{checks['n_drivers']} simulated drivers", *titles), rows))
    known = metrics.get("recovery")
    if known:
        shown = [c for c in columns if c in next(iter(known.values()))]
        rows = [[name, *(number(values[c]) for c in shown)] for name, values in known.items()]
        names = [titles[columns.index(c)] for c in shown]
        tables.append(TextTable(("drivers of the data", *names), rows))
    return tables


def driver_table(metrics: Mapping[str, Any]) -> TextTable:
    """What is known about the posteriors of the evaluated drivers."""
    posterior, novelty = metrics["posterior"], metrics.get("novelty", {})
    target = metrics.get("target_loss", {})
    known = {
        "target_loss": "target loss: -log q at exact posterior draws, mean",
        "target_loss_median": "the same, median over drivers",
        "target_loss_of_prior": "the same of the prior, mean",
    }
    learned = posterior.get("contraction", {})
    rows = [
        ["draws outside the prior's range, redrawn", _percent(posterior.get("leak_rate"))],
        ["drivers unlike the training simulations", _percent(novelty.get("share_flagged"))],
        *([title, number(target[name])] for name, title in known.items() if name in target),
        *([f"median contraction of {name}", number(value)] for name, value in learned.items()),
    ]
    return TextTable((f"{metrics['data']['n_pairs']} evaluated drivers", ""), rows)


def data_tables(data: DataSummary) -> list[TextTable]:
    """Counts per split and ranges per quantity."""
    splits = [
        [name, *(f"{count[c]:.0f}" for c in ("pairs", "followers")), f"{count['hours']:.2f}"]
        for name, count in data.splits.items()
    ]
    ranges = [
        [f"{name} ({unit})", *(number(value) for value in data.ranges[name])]
        for name, unit in QUANTITIES.items()
    ]
    return [
        TextTable(("split", "pairs", "followers", "hours"), splits),
        TextTable(("quantity", "min", "5%", "median", "95%", "max"), ranges),
    ]


def settings_table(config: Mapping[str, Any]) -> TextTable:
    """Every setting by its full name."""
    return TextTable(("setting", "value"), [[k, v] for k, v in _flatten(config)])


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += _flatten(value, f"{name}.")
        else:
            rows.append((name, value if isinstance(value, str) else json.dumps(value)))
    return rows


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
