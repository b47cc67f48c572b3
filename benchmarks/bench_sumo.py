"""SUMO's own models: 15 s rollouts in one step loop of many pairs, beside our simulator.

CPU time of one core, everything included: types and states written and loaded, leaders imposed,
speeds read. The best of several repetitions, models in turn, all in the same run. Each pair has
its own parameters from the prior and follows a wandering leader for 75 steps of 0.2 s.
"""

import argparse
import math
import time
from contextlib import nullcontext

import torch
from common import parse, parser_of, report, sumo_here
from torch import Tensor

from asbc.config import build, compose
from asbc.simulator import Simulator
from asbc.simulator.sumo_models import SumoModel
from asbc.utils.random import standard_normal, stream, uniform

STEPS, DT = 75, 0.2
MODELS = ("idm_box", "krauss", "eidm", "w99", "acc", "idm_action")
OWN = {"gaussian": "model=sumo_idm", "matern": "model=sumo_idm"}


def scenario(simulator: Simulator, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Theta from the prior, wandering leaders, and initial states."""
    theta = simulator.prior.sample(batch, stream(0, "theta"))
    leader = 12 + 0.3 * standard_normal(stream(0, "leader"), batch, STEPS).cumsum(1)
    gap = 15 + 20 * uniform(stream(0, "gap"), batch)
    return theta, leader.clamp_min(0), gap, leader[:, 0].clamp_min(0).contiguous()


def seconds(simulator: Simulator, batch: int) -> float:
    """CPU time of one batch."""
    arguments = scenario(simulator, batch)
    start = time.process_time()
    simulator.rollout(*arguments, stream(0, "noise"))
    return (time.process_time() - start) / batch


def simulators(pairs: int) -> dict[str, tuple[Simulator, int]]:
    """By name: the simulator, and how many rollouts of it to time at once."""
    found: dict[str, tuple[Simulator, int]] = {}
    for name in MODELS:
        config = compose("train", [f"model=sumo_{name}", f"model.law.pairs={pairs}"])
        simulator = build(config.simulator)
        found[f"SUMO, {simulator.law.model}" + (", action step" if "action" in name else "")] = (
            simulator,
            pairs,
        )
    for residual, model in OWN.items():
        own = build(compose("train", [model, f"residual={residual}"]).simulator)
        found[f"ours, IDM {residual}"] = (own, 10_000)
    return found


def measure(pairs: int, repetitions: int) -> str:
    """The table, in Markdown."""
    best: dict[str, float] = {}
    for name, (simulator, batch) in simulators(pairs).items():
        with sumo_here(simulator) if isinstance(simulator.law, SumoModel) else nullcontext():
            seconds(simulator, batch)
            best[name] = min(seconds(simulator, batch) for _ in range(repetitions))
    lines = ["| simulator | us per 15 s rollout | a second | this / ours, IDM gaussian |"]
    lines.append("|---|---:|---:|---:|")
    ours = best["ours, IDM gaussian"]
    for name, value in best.items():
        lines.append(f"| {name} | {1e6 * value:.3g} | {1 / value:,.0f} | {value / ours:.3g} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser: argparse.ArgumentParser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=256, help="in one loop of SUMO")
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parse(parser)
    torch.set_num_threads(1)
    assert math.isclose(STEPS * DT, 15)
    report(__doc__, measure(arguments.pairs, arguments.repetitions), arguments.publish)


if __name__ == "__main__":
    main()
