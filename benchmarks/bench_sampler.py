"""Sampler: draws and density grids against nflows' own routines with the same weights.

The flows are `flow=maf` and `flow=nsf` with their default sizes and D = 6; one thread, CPU time,
the best of a few turns, which the two flows take by turns. Samples: 500 draws for each of 200
drivers, from the same noise, with the largest difference between the two; nflows' splines are
computed in double precision, in single they fail on their own assertion. Log-densities: 5000
parameter vectors x 32 contexts, once per MC-dropout member, as a round of `acquisition=joint` does
20 times.
"""

import time
from collections.abc import Callable

import torch
from common import parse, parser_of, report
from torch import Tensor

from asbc.posterior.flow import ConditionalFlow, MaskedAutoregressiveFlow, NeuralSplineFlow

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


def make_flow(
    kind: type[ConditionalFlow] = MaskedAutoregressiveFlow,
) -> ConditionalFlow:
    """The default flow, moved off its near-identity start."""
    torch.manual_seed(0)
    flow = kind(DIM, CONTEXT).eval()  # type: ignore[call-arg, arg-type]
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
        f"| {DRAWS} x {DRIVERS} samples, maf | {slow:.2f} | {fast:.2f} | {slow / fast:.1f} "
        f"| {difference:.1e} |"
    )
    splines, exact = make_flow(NeuralSplineFlow), make_flow(NeuralSplineFlow).double().flow
    some = slice(0, DRAWS * DRIVERS // 10)
    slow, expected = best_seconds(
        lambda: exact._transform.inverse(
            noise.double().flatten(0, 1)[some], repeated.double()[some]
        )[0],
        1,
    )
    affine = spline = float("inf")
    for _ in range(2 * turns):  # by turns, so that other work on the machine is shared
        affine = min(affine, best_seconds(lambda: flow.inverse(noise, context), 1)[0])
        once, samples = best_seconds(lambda: splines.inverse(noise, context), 1)
        spline = min(spline, once)
    difference = float((samples.flatten(0, 1)[some] - expected).abs().max())
    lines.append(
        f"| {DRAWS} x {DRIVERS} samples, nsf | {10 * slow:.2f} | {spline:.2f} "
        f"| {10 * slow / spline:.1f} | {difference:.1e} |"
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
        f"| {CANDIDATES} x {CONTEXTS} log-densities, maf | {slow:.2f} | {fast:.2f} "
        f"| {slow / fast:.1f} | {float((grid - expected).abs().max()):.1e} |"
    )
    lines += ["", f"A draw of `flow=nsf` costs {spline / affine:.2f} times one of `flow=maf`."]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parse(parser)
    report(__doc__, measure(arguments.turns), arguments.publish)


if __name__ == "__main__":
    main()
