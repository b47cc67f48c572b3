"""Cost of a 10 s rollout: the batched simulator against a loop over trajectories and SUMO.

Run `python benchmarks/bench_simulator.py`; it prints a table and writes it to `--output` as well.
All figures are CPU time (user and system) of one thread, best of several repetitions.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from output import publish
from torch import Tensor

from asbc.simulator import Simulator
from asbc.utils.random import standard_normal, stream, uniform

CONF = Path(__file__).parents[1] / "conf"
STEPS, DT = 50, 0.2
BATCHES = (1, 100, 10_000, 100_000)
LOOPED = 40
# CPU time of a 10 s IDM rollout in SUMO 1.28, in process (libsumo), many followers per step;
# measured by this project on a 2-core machine in November 2026. A single follower takes 1.05 ms.
SUMO_MICROSECONDS = 500.0

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def build(residual: str) -> Simulator:
    """The simulator with the default groups of the configuration."""
    groups = ["+model=idm", "+prior=paper", "+kinematics=paper", f"+residual={residual}"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=groups)
    parts = (config.model.law, config.residual.process, config.prior, config.kinematics)
    return Simulator(*map(instantiate, parts))


def scenario(simulator: Simulator, batch: int) -> Arguments:
    """Theta from the prior, wandering leaders, and initial states."""
    theta = simulator.prior.sample(batch, stream(0, "theta"))
    leader = 12 + 0.3 * standard_normal(stream(0, "leader"), batch, STEPS).cumsum(1)
    gap = 15 + 20 * uniform(stream(0, "gap"), batch)
    return theta, leader.clamp_min(0), gap, leader[:, 0].clamp_min(0).contiguous()


def loop(
    theta: Tensor, leader: Tensor, gap: Tensor, speed: Tensor, rng: np.random.Generator
) -> None:
    """The same model one trajectory at a time, as one would write it from the paper."""
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


def measure(seconds: float) -> str:
    """The table, in Markdown."""
    lines = [
        "| residual | batch | us per rollout | loop / this | SUMO / this |",
        "|---|---:|---:|---:|---:|",
    ]
    for residual in ("gaussian", "matern"):
        simulator = build(residual)
        looped = cpu_microseconds(loop, scenario(simulator, LOOPED), seconds)
        costs = {"loop": looped}
        for batch in BATCHES:
            arguments = scenario(simulator, batch)
            costs[f"{batch:,}"] = cpu_microseconds(simulator.rollout, arguments, seconds)
        lines += [
            f"| {residual} | {batch} | {cost:.2f} | {looped / cost:.3g} "
            f"| {SUMO_MICROSECONDS / cost:.3g} |"
            for batch, cost in costs.items()
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU time per table row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = measure(arguments.seconds)
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
