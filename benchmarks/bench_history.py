"""History: a training step on sets of segments against one on single trajectories.

A batch of drivers as `experiment=history` draws them (one segment or several, 3 to 15 s each) and
a batch of single trajectories of 15 s as `experiment=robust_stream` draws them, both behind the
embedded recordings' leaders. "Equal length" is a batch of so many single trajectories that both
have the same number of samples; "equal drivers" as many trajectories as drivers, with fewer
samples. Simulation, forward and backward pass and optimiser; one thread, CPU time, medians of many
turns that the two take by turns.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import parse, parser_of, report
from torch import Tensor

from asbc.config import build, compose
from asbc.data.segments import Segments
from asbc.data.windows import LeaderWindows, leader_windows
from asbc.posterior.estimator import PosteriorEstimator
from asbc.simulator.robust import simulate_drivers, simulate_histories

BATCH, TURNS = 128, 15
Batch = tuple[Tensor, Tensor | Segments]


class Training:
    """An estimator and its optimiser, as an experiment has them."""

    def __init__(self, experiment: str) -> None:
        torch.manual_seed(0)
        cfg = compose("train", [f"experiment={experiment}", "residual=matern"])
        self.cfg, self.simulator = cfg, build(cfg.robust)
        self.law = build(cfg.history.law)
        self.estimator: PosteriorEstimator = build(cfg.estimator)
        self.optimizer: Any = self.estimator.configure_optimizers()

    def simulate(self, windows: LeaderWindows, count: int, seed: int) -> Batch:
        """A batch, by what the experiment is trained on."""
        if self.law is None:
            return simulate_drivers(self.simulator, windows, count, seed)
        return simulate_histories(self.simulator, windows, count, seed, self.law.draw)

    def step(self, batch: Batch) -> None:
        """One gradient step."""
        self.optimizer.zero_grad()
        (-self.estimator.posterior.training_log_prob(*batch).mean()).backward()
        self.optimizer.step()


def milliseconds(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """CPU time of a call, and what it returned."""
    start = time.process_time()
    result = function(*arguments)
    return 1e3 * (time.process_time() - start), result


def measure(turns: int) -> str:
    """The table, in Markdown."""
    several, single = Training("history"), Training("robust_stream")
    data = several.cfg.data
    windows = leader_windows(build(data).splits().train, data.context_steps, 50)
    names = ("sets of segments", "equal length", "equal drivers")
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    samples: dict[str, list[int]] = {name: [] for name in names}
    for turn in range(turns + 2):
        spent, batch = milliseconds(several.simulate, windows, BATCH, turn)
        if turn == 0:
            several.estimator.posterior.set_scaling(*batch)
            single.estimator.posterior.set_scaling(*single.simulate(windows, BATCH, 0))
        total = int(batch[1].total.sum())
        sizes = {"equal length": round(total / data.context_steps), "equal drivers": BATCH}
        found = {"sets of segments": (spent, milliseconds(several.step, batch)[0], total)}
        for name, size in sizes.items():
            spent, other = milliseconds(single.simulate, windows, size, turn)
            step = milliseconds(single.step, other)[0]
            found[name] = (spent, step, size * data.context_steps)
        for name, (simulated, step, count) in found.items() if turn >= 2 else ():  # warm
            costs[name].append((simulated, step))
            samples[name].append(count)
    lines = [
        "| batch | samples | simulation, ms | gradient step, ms | sets of segments / this |",
        "|---|---:|---:|---:|---:|",
    ]
    ours = statistics.median(sum(cost) for cost in costs["sets of segments"])
    for name in names:
        simulated, step = (statistics.median(part) for part in zip(*costs[name], strict=True))
        whole = statistics.median(sum(cost) for cost in costs[name])
        lines.append(
            f"| {name} | {statistics.mean(samples[name]):.0f} | {simulated:.0f} | {step:.0f} "
            f"| {ours / whole:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    arguments = parse(parser)
    report(__doc__, measure(arguments.turns), arguments.publish)


if __name__ == "__main__":
    main()
