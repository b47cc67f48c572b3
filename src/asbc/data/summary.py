"""A one-page summary of the data behind a run, with a figure of sample trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asbc.data.pairs import Pairs

if TYPE_CHECKING:
    from asbc.data.source import Splits


QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
QUANTITIES = {
    "gap": "m",
    "speed": "m/s",
    "leader_speed": "m/s",
    "acceleration": "m/s^2",
    "duration": "s",
}


@dataclass(frozen=True)
class DataSummary:
    """Counts, ranges and drops; `splits` counts pairs, followers and hours."""

    source: str
    dt: float
    recordings: int
    splits: dict[str, dict[str, float]]
    classes: dict[str, int]  # follower class -> pairs
    ranges: dict[str, list[float]]  # quantity -> values at QUANTILES
    drops: dict[str, int]  # what was left out or mended, and why -> count

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"quantiles": list(QUANTILES)}

    def headline(self) -> str:
        """The summary in one line, for the log."""
        whole = self.splits["all"]
        parts = ", ".join(
            f"{name} {count['pairs']:.0f}" for name, count in self.splits.items() if name != "all"
        )
        dropped = "; ".join(f"{count} {reason}" for reason, count in self.drops.items())
        return (
            f"{self.source}: {whole['pairs']:.0f} pairs of {whole['followers']:.0f} followers, "
            f"{whole['hours']:.2f} h ({parts}); dropped: {dropped or 'nothing'}"
        )

    def to_markdown(self) -> str:
        """The whole page."""
        lines = ["# Data summary", "", f"Source: `{self.source}`  "]
        lines += [f"Time step {self.dt:g} s, {self.recordings} recording(s).", ""]
        lines += ["| split | pairs | followers | hours |", "|---|---|---|---|"]
        for name, count in self.splits.items():
            lines.append(
                f"| {name} | {count['pairs']:.0f} | {count['followers']:.0f} "
                f"| {count['hours']:.2f} |"
            )
        lines += ["", "| quantity | min | 5% | median | 95% | max |", "|---|---|---|---|---|---|"]
        for name, unit in QUANTITIES.items():
            values = " | ".join(f"{value:.2f}" for value in self.ranges[name])
            lines.append(f"| {name} ({unit}) | {values} |")
        lines += ["", "| follower class | pairs |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in self.classes.items()]
        lines += ["", "| dropped or mended | count |", "|---|---|"]
        lines += [f"| {reason} | {count} |" for reason, count in self.drops.items()]
        if not self.drops:
            lines.append("| nothing | 0 |")
        return "\n".join(lines) + "\n"


def summarise(
    source: str, pairs: Pairs, splits: Mapping[str, Pairs], drops: Mapping[str, int]
) -> DataSummary:
    """Count and measure all pairs and each split."""
    columns = {name: getattr(pairs, name).numpy() for name in QUANTITIES if name != "duration"}
    columns["duration"] = pairs.lengths.numpy() * pairs.dt
    classes = sorted(set(pairs.follower_class))
    return DataSummary(
        source=source,
        dt=pairs.dt,
        recordings=len(set(pairs.recording)),
        splits={name: _counts(part) for name, part in {"all": pairs, **splits}.items()},
        classes={name: pairs.follower_class.count(name) for name in classes},
        ranges={name: np.quantile(values, QUANTILES).tolist() for name, values in columns.items()},
        drops=dict(drops),
    )


def write_summary(splits: Splits, directory: str | Path) -> list[Path]:
    """Write `data_summary.json`, `.md` and `.png` into `directory`; returns the three paths."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"data_summary.{ending}" for ending in ("json", "md", "png")]
    paths[0].write_text(json.dumps(splits.summary.to_dict(), indent=2) + "\n")
    paths[1].write_text(splits.summary.to_markdown())
    plot_trajectories(splits.train, paths[2])
    return paths


def plot_trajectories(pairs: Pairs, path: str | Path, count: int = 6) -> None:
    """Gap, speeds and acceleration of up to `count` pairs, evenly spread over their mean speed."""
    # The object interface, not pyplot: no global state, no display needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = _spread_by_speed(pairs, count)
    figure = Figure(figsize=(2.6 * len(chosen), 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(chosen), sharex="col", sharey="row", squeeze=False)
    for column, index in enumerate(chosen):
        pair = pairs.pair(index)
        time = np.arange(len(pair["gap"])) * pairs.dt
        axes[0, column].plot(time, pair["gap"], color="C0")
        axes[1, column].plot(time, pair["leader_speed"], color="0.6", label="leader")
        axes[1, column].plot(time, pair["speed"], color="C1", label="follower")
        axes[2, column].plot(time, pair["acceleration"], color="C2")
        axes[0, column].set_title(pairs.pair_id[index], fontsize=8)
        axes[2, column].set_xlabel("time (s)")
    for row, label in enumerate(("gap (m)", "speed (m/s)", "acceleration (m/s$^2$)")):
        axes[row, 0].set_ylabel(label)
    axes[1, 0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def _spread_by_speed(pairs: Pairs, count: int) -> list[int]:
    means = [float(pairs.pair(index)["speed"].mean()) for index in range(len(pairs))]
    order = np.argsort(means, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return order[places].tolist()


def _counts(pairs: Pairs) -> dict[str, float]:
    return {
        "pairs": len(pairs),
        "followers": len(set(pairs.follower)),
        "hours": int(pairs.lengths.sum()) * pairs.dt / 3600,
    }
