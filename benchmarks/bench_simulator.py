"""Simulator: a 10 s rollout in a batch, in a loop over trajectories, and in SUMO.

CPU time of one thread, the best of several repetitions. "Loop" is the same model one trajectory
at a time, as one would write it from the paper. SUMO drives its own IDM, without residuals, as
`model=sumo_idm_box` does: in batches through libsumo, states and leaders set, speeds read, in the
same run. Where SUMO is not installed its column is empty.
"""

import importlib.util
import math
import time
from collections.abc import Callable

import numpy as np
from common import parse, parser_of, report, simulator_of, sumo_here
from torch import Tensor

from asbc.config import build, compose
from asbc.simulator import Simulator
from asbc.utils.random import standard_normal, stream, uniform

STEPS, DT = 50, 0.2
BATCHES = (1, 100, 10_000, 100_000)
LOOPED = 40

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def scenario(simulator: Simulator, batch: int) -> Arguments:
    """Theta from the prior, wandering leaders, and initial states."""
    theta = simulator.prior.sample(batch, stream(0, "theta"))
    leader = 12 + 0.3 * standard_normal(stream(0, "leader"), batch, STEPS).cumsum(1)
    gap = 15 + 20 * uniform(stream(0, "gap"), batch)
    return theta, leader.clamp_min(0), gap, leader[:, 0].clamp_min(0).contiguous()


def loop(
    theta: Tensor, leader: Tensor, gap: Tensor, speed: Tensor, rng: np.random.Generator
) -> None:
    """The same model one trajectory at a time."""
    lags = DT * np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
    rows = zip(theta.tolist(), leader.tolist(), gap.tolist(), speed.tolist(), strict=True)
    for (v0, s0, headway, a_max, b, sigma, *length), leader_speed, s, v in rows:
        residual = sigma * rng.standard_normal(STEPS)
        if length:
            r = math.sqrt(5) * lags / length[0]
            kernel = (1 + r + r**2 / 3) * np.exp(-r) + 1e-3 * np.eye(STEPS)
            residual = np.linalg.cholesky(kernel) @ residual
        states = []
        for v_leader, noise in zip(leader_speed, residual.tolist(), strict=True):
            states.append((s, v, v - v_leader))
            desired = s0 + v * headway + v * (v - v_leader) / (2 * math.sqrt(a_max * b))
            a = a_max * (1 - (v / v0) ** 4 - (desired / max(s, 0.1)) ** 2) + noise
            a = max(min(max(a, -9.0), 5.0), -v / DT)
            s += (v_leader - v) * DT - 0.5 * a * DT**2
            v = max(v + a * DT, 0.0)


def cpu_microseconds(
    function: Callable[..., object], arguments: Arguments, seconds: float
) -> float:
    """Least CPU time per rollout over repeated calls that take about `seconds` altogether."""
    function(*arguments, stream(0))
    best, end = math.inf, time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time()
        function(*arguments, stream(0))
        best = min(best, time.process_time() - start)
    return 1e6 * best / len(arguments[0])


def sumo_microseconds(seconds: float) -> float:
    """CPU time of a 10 s rollout of SUMO's IDM in a batch."""
    simulator = build(compose("train", ["model=sumo_idm_box"]).simulator)
    with sumo_here(simulator):
        arguments = scenario(simulator, simulator.law.pairs)
        return cpu_microseconds(simulator.rollout, arguments, seconds)


def measure(seconds: float) -> str:
    """The table, in Markdown."""
    lines = [
        "| residual | batch | us per rollout | loop / this | SUMO / this |",
        "|---|---:|---:|---:|---:|",
    ]
    sumo = sumo_microseconds(seconds) if importlib.util.find_spec("libsumo") else None
    for residual in ("gaussian", "matern"):
        simulator = simulator_of(residual)
        looped = cpu_microseconds(loop, scenario(simulator, LOOPED), seconds)
        costs = {"loop": looped}
        for batch in BATCHES:
            arguments = scenario(simulator, batch)
            costs[f"{batch:,}"] = cpu_microseconds(simulator.rollout, arguments, seconds)
        lines += [
            f"| {residual} | {batch} | {cost:.2f} | {looped / cost:.3g} "
            f"| {'' if sumo is None else f'{sumo / cost:.3g}'} |"
            for batch, cost in costs.items()
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU time per table row")
    arguments = parse(parser)
    report(__doc__, measure(arguments.seconds), arguments.publish)


if __name__ == "__main__":
    main()
