"""Cost of scoring 900 windows x 500 samples: the batched scorer against loops over windows.

Run `python benchmarks/bench_evaluation.py`; it prints a table and writes it to `--output` as well.
CPU time (user and system) of one thread. Loops are timed on a few windows and scaled up: one calls
the same scorer window by window, the other is what one would write with scoringrules.
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scoringrules
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from output import publish
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, evaluation_windows
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import observed_series, score_windows
from asbc.simulator import Simulator
from asbc.utils.random import standard_normal, stream

CONF = Path(__file__).parents[1] / "conf"
PAIRS, STEPS, DRAWS, LOOPED = 60, 331, 500, 20
PREFIX = (5, 1e-2, 0)  # steps, noise, seed


def build(residual: str) -> Simulator:
    """The simulator with the default groups of the configuration."""
    groups = ["+model=idm", "+prior=paper", "+kinematics=paper", f"+residual={residual}"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=groups)
    parts = (config.model.law, config.residual.process, config.prior, config.kinematics)
    return Simulator(*map(instantiate, parts))


def drive(simulator: Simulator) -> tuple[Pairs, Tensor]:
    """Simulated pairs that stand in for recorded ones, and parameter draws for each."""
    truth = simulator.prior.sample(PAIRS, stream(0, "truth"))
    leader = 12 + 0.2 * standard_normal(stream(0, "leader"), PAIRS, STEPS).cumsum(1)
    leader = leader.clamp_min(1)
    gap = torch.full((PAIRS,), 25.0)
    rollout = simulator.rollout(truth, leader, gap, leader[:, 0], stream(0, "noise"))
    names = tuple(f"pair {i}" for i in range(PAIRS))
    pairs = Pairs(
        pair_id=names,
        follower=names,
        recording=names,
        follower_class=names,
        dt=simulator.dt,
        offsets=torch.arange(PAIRS + 1) * STEPS,
        gap=rollout.gap.flatten(),
        speed=rollout.speed.flatten(),
        leader_speed=leader.flatten(),
        acceleration=rollout.acceleration.flatten(),
    )
    draws = simulator.prior.sample(PAIRS * DRAWS, stream(0, "draws"))
    return pairs, draws.view(PAIRS, DRAWS, -1)


def loop_with_scoringrules(
    simulator: Simulator, theta: Tensor, pairs: Pairs, windows: EvaluationWindows
) -> None:
    """RMSE, ES, CRPS and coverage of one window after the other."""
    for i in range(len(windows.pair)):
        one = EvaluationWindows(windows.pair[i : i + 1], windows.start[i : i + 1], windows.horizon)
        rollout = predict_windows(simulator, theta, pairs, one, *PREFIX)
        observed = observed_series(pairs, one)
        for name in ("gap", "speed", "acceleration"):
            samples = getattr(rollout, name)[0, :, 1:].double().numpy()
            target = observed[name][0, 1:].double().numpy()
            np.sqrt(((samples.mean(0) - target) ** 2).mean())
            scoringrules.es_ensemble(target, samples, m_axis=0, v_axis=1)
            scoringrules.crps_ensemble(target, samples, m_axis=0).mean()
            ends = np.quantile(samples, [0.025, 0.1, 0.25, 0.75, 0.9, 0.975], axis=0)
            ((target >= ends[0]) & (target <= ends[-1])).mean()


def loop_with_same_scorer(
    simulator: Simulator, theta: Tensor, pairs: Pairs, windows: EvaluationWindows
) -> None:
    """The batched scorer given one window at a time."""
    score_windows(simulator, theta, pairs, windows, chunk=1)


def cpu_seconds(function: Callable[..., object], *arguments: object) -> float:
    """CPU time of one call."""
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def measure() -> str:
    """The table, in Markdown."""
    lines = [
        "| residual | windows | method | CPU s | this / batched |",
        "|---|---:|---|---:|---:|",
    ]
    for residual in ("gaussian", "matern"):
        simulator = build(residual)
        pairs, theta = drive(simulator)
        windows = evaluation_windows(pairs)
        few = EvaluationWindows(windows.pair[:LOOPED], windows.start[:LOOPED], windows.horizon)
        scale = len(windows.pair) / LOOPED
        given = (simulator, theta, pairs)
        loop_with_scoringrules(*given, few)  # compiles its kernels
        costs = {
            "batched": cpu_seconds(score_windows, *given, windows),
            "loop, same scorer": scale * cpu_seconds(loop_with_same_scorer, *given, few),
            "loop, scoringrules": scale * cpu_seconds(loop_with_scoringrules, *given, few),
        }
        lines += [
            f"| {residual} | {len(windows.pair)} | {name} | {cost:.1f} "
            f"| {cost / costs['batched']:.2f} |"
            for name, cost in costs.items()
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return "\n".join([*lines, "", f"Peak memory of the whole process: {peak:.0f} MB."])


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = measure()
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
