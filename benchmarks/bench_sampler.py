"""Cost of sampling and of density grids against nflows' own routines with the same weights.

Run `python benchmarks/bench_sampler.py`; it prints a table and writes it to `--output` as well.
The flow is `flow=maf` with its default sizes and D = 6; one thread, CPU time (user and system),
the best of a few turns. Sampling: 500 draws for each of 200 drivers, from the same noise, with the
largest difference between the two. Acquisition: 5000 parameter vectors x 32 contexts, once per
MC-dropout member, as a round of `acquisition=joint` does 20 times.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from output import publish
from torch import Tensor

from asbc.posterior.flow import MaskedAutoregressiveFlow

DIM, CONTEXT = 6, 64
DRIVERS, DRAWS = 200, 500
CANDIDATES, CONTEXTS = 5000, 32


def best_seconds(function: Callable[[], Tensor], turns: int) -> tuple[float, Tensor]:
    """Smallest CPU time of a call, and its result."""
    best = float("inf")
    for _ in range(turns):
        start = time.process_time()
        result = function()
        best = min(best, time.process_time() - start)
    return best, result


def make_flow() -> MaskedAutoregressiveFlow:
    """The default flow, moved off its near-identity start."""
    torch.manual_seed(0)
    flow = MaskedAutoregressiveFlow(DIM, CONTEXT).eval()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return flow


@torch.no_grad()
def measure(turns: int) -> str:
    """The table, in Markdown."""
    flow = make_flow()
    nflows = flow.flow
    context, noise = torch.randn(DRIVERS, CONTEXT), torch.randn(DRIVERS, DRAWS, DIM)
    repeated = context.repeat_interleave(DRAWS, 0)
    slow, expected = best_seconds(
        lambda: nflows._transform.inverse(noise.flatten(0, 1), repeated)[0], turns
    )
    fast, samples = best_seconds(lambda: flow.inverse(noise, context), turns)
    lines = ["| | nflows, s | ours, s | ratio | largest difference |", "|---|---:|---:|---:|---:|"]
    difference = float((samples.flatten(0, 1) - expected).abs().max())
    lines.append(
        f"| {DRAWS} x {DRIVERS} samples | {slow:.2f} | {fast:.2f} | {slow / fast:.1f} "
        f"| {difference:.1e} |"
    )
    points, contexts = torch.randn(CANDIDATES, DIM), context[:CONTEXTS]
    slow, expected = best_seconds(
        lambda: torch.stack(
            [nflows.log_prob(points, row.expand(CANDIDATES, -1)) for row in contexts]
        ),
        turns,
    )
    fast, grid = best_seconds(lambda: flow.log_prob_grid(points, contexts), turns)
    lines.append(
        f"| {CANDIDATES} x {CONTEXTS} log-densities | {slow:.2f} | {fast:.2f} "
        f"| {slow / fast:.1f} | {float((grid - expected).abs().max()):.1e} |"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs/bench_sampler.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = measure(arguments.turns)
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
