"""Alarms: how often a driver who has not changed is called changed.

Drivers are watched by `run.follow()`, and `now.changed` is asked at every step. "One theta" drives
by the model's simulator, with constant parameters of the prior and without errors of measurement.
"Moods" are the drivers of its training: four segments of 15 s, each behind another leader, with
parameters about the driver's own and errors of measurement. "Recorded" are the validation drivers
of a file, of whom nobody knows whether they change; predicted gaps also with the recording's own
error (`observation="recorded"`). Means over seeds of the forecasts, the smallest and largest of
them. At the level of 0.01, a driver of a posterior that is right is called changed 1% of the time.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from common import parse, parser_of, report

import asbc
from asbc.arguments import override_text
from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.data.windows import LeaderWindows, leader_windows
from asbc.run import Run
from asbc.simulator.robust import simulate_drivers, simulate_histories

# Segments of a driver; with one theta they are one drive.
SEGMENTS, SEEDS = 4, (0, 1, 2)
Drive = list[list[float]]  # samples of gap, speed and leader speed
Driver = list[Drive]  # the oldest drive first


def one_theta(run: Run, leaders: LeaderWindows, count: int) -> Iterator[Driver]:
    """Drivers of the simulator, a drive each."""
    drivers = simulate_drivers(run.simulator, leaders, count, seed=0)
    return ([drive] for drive in _samples(drivers.states))


def moods(run: Run, leaders: LeaderWindows, count: int) -> Iterator[Driver]:
    """Drivers of the training, a drive for each segment."""

    def all_full(
        n: int, steps: int, dt: float, _: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        age = steps * dt * torch.arange(SEGMENTS, dtype=torch.float32)
        return torch.full((n, SEGMENTS), steps), age.expand(n, -1).clone()

    segments = simulate_histories(run.training, leaders, count, 0, all_full).states
    return (list(_samples(own.flip(0))) for own in segments.states)


def recorded(pairs: Pairs) -> Iterator[Driver]:
    """Drivers of a file, a drive for each pair."""
    columns = ("gap", "speed", "leader_speed")
    drives = (pairs.pair(i) for i in range(len(pairs)))
    return ([torch.stack([one[n] for n in columns], dim=1).tolist()] for one in drives)


def _samples(states: torch.Tensor) -> Iterator[Drive]:
    gap, speed, approach = states.unbind(-1)
    # A gap measured as none is no sample that could be watched.
    return iter(torch.stack([gap.clamp_min(0.01), speed, speed - approach], dim=-1).tolist())


def watch(run: Run, drivers: Iterable[Driver], seed: int, observation: str) -> np.ndarray:
    """Steps after the first check, and those of them at which it is called changed, by driver."""
    found = []
    for number, drives in enumerate(drivers):
        live = run.follow(f"driver {number}", seed=seed, observation=observation)
        steps = alarms = 0
        for place, drive in enumerate(drives):
            if place:
                live.pause(live.dt)
            for sample in drive:
                now = live.update(*sample)
                steps += not np.isnan(now.surprise)
                alarms += now.changed
        found.append((steps, alarms))
    return np.array(found)


def row(run: Run, label: str, drivers: list[Driver], observation: str = "exact") -> str:
    """A line of the table."""
    found = np.stack([watch(run, drivers, seed, observation) for seed in SEEDS])
    steps, alarms = found[..., 0], found[..., 1]
    minutes = steps[0].sum() * run.simulator.dt / 60
    cells = [
        f"{100 * share.mean():.1f}% ({100 * share.min():.1f} to {100 * share.max():.1f})"
        for share in (alarms.sum(1) / steps.sum(1), (alarms > 0).mean(1))
    ]
    return f"| {label} | {observation} | {len(drivers)} | {minutes:.0f} | {' | '.join(cells)} |"


def measure(run: Run, count: int, file: str | None) -> str:
    """The table, in Markdown."""
    pairs, steps = run.source().splits().validation, run.config["data"]["context_steps"]
    short, long = (leader_windows(pairs, n, steps) for n in (steps, SEGMENTS * steps))
    lines = [
        "| drivers | observation | number | minutes watched | time called changed | "
        "drivers ever called so |",
        "|---|---|---:|---:|---:|---:|",
        row(run, "one theta", list(one_theta(run, long, count))),
        row(run, "moods", list(moods(run, short, count))),
    ]
    if file:
        data = build(compose("train", ["data=pairs", f"data.path={override_text(file)}"]).data)
        for observation in ("exact", "recorded"):
            drivers = list(recorded(data.splits().validation))
            lines.append(row(run, "recorded", drivers, observation))
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--run", default="idm_matern", help="a shipped model, or a run's folder")
    parser.add_argument("--pairs", help="Parquet file of recorded drivers")
    parser.add_argument("--drivers", type=int, default=150, help="simulated ones")
    arguments = parse(parser)
    run = asbc.Run.open(arguments.run)
    report(__doc__, measure(run, arguments.drivers, arguments.pairs), arguments.publish)


if __name__ == "__main__":
    main()
