"""Refinement: how close refined posteriors are to NUTS on a run's own drivers, and their cost.

Errors are averages over drivers and parameters: of the posterior mean in units of NUTS's standard
deviation, and of the logarithm of the standard deviation. 2000 draws have errors of about 0.02 by
chance. CPU time of one torch thread; NUTS includes its compilation. Without `--run` a run of
`experiment=quick` on the embedded data is trained first.
"""

import time
from pathlib import Path

import numpy as np
import torch
from common import parse, parser_of, report

import asbc
from asbc.calibration.psis import Weighting
from asbc.calibration.refinement import AutoRefinement, NoRefinement, PsisRefinement, Refinement
from asbc.simulator.weighted_draws import RELIABLE_K_HAT
from asbc.utils.progress import Stopwatch

DRAWS = 2000
PLAIN = Weighting(adaptive_rounds=0)
# Of the run that is trained where none is given, so that it is trained once.
OWN_RUN = Path("outputs/benchmarks/quick")


def open_run(folder: str | None) -> asbc.Run:
    """The run that was asked for, or one of our own."""
    if folder is None and not (OWN_RUN / "novelty.pt").exists():
        return asbc.train(folder=OWN_RUN, experiment="quick", ckpt_path="last")
    return asbc.Run.open(folder or OWN_RUN)


def measure(run: asbc.Run, drivers: int) -> str:
    """The table, in Markdown."""
    model = run.model()
    pairs = run.source().splits().test
    chosen = pairs.select(np.linspace(0, len(pairs) - 1, min(drivers, len(pairs))).astype(int))
    # No k-hat is low enough: every driver goes to NUTS.
    everyone = AutoRefinement(weighting=PLAIN, max_k_hat=-np.inf, drivers_at_once=len(chosen))
    methods: dict[str, Refinement] = {
        "NUTS": everyone,
        "refine=none": NoRefinement(),
        "refine=psis, adaptive_rounds=0": PsisRefinement(weighting=PLAIN),
        "refine=psis": PsisRefinement(),
    }
    lines = [
        "| method | error of mean | error of log sd | k-hat > 0.7 | CPU ms per driver |",
        "|---|---:|---:|---:|---:|",
    ]
    mean = sd = torch.zeros(0)
    for name, method in methods.items():
        start = time.process_time()
        refined = method(model, chosen, DRAWS, 0, Stopwatch())
        cost = 1000 * (time.process_time() - start) / len(chosen)
        theta = refined.theta.double()
        if name == "NUTS":
            mean, sd = theta.mean(1), theta.std(1)
            converged = int(refined.columns["nuts_converged"].sum())
            lines.append(f"| NUTS ({converged} of {len(chosen)} converged) | | | | {cost:.3g} |")
            continue
        location = float(((theta.mean(1) - mean) / sd).abs().mean())
        scale = float((theta.std(1) / sd).log().abs().mean())
        k_hat = refined.columns.get("k_hat")
        high = "" if k_hat is None else f"{int((~(k_hat <= RELIABLE_K_HAT)).sum())}"
        lines.append(f"| {name} | {location:.2f} | {scale:.2f} | {high} | {cost:.3g} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--run", help="folder of a trained run")
    parser.add_argument("--drivers", type=int, default=12, help="drivers of the test split")
    arguments = parse(parser)
    run = open_run(arguments.run)
    report(__doc__, measure(run, arguments.drivers), arguments.publish)


if __name__ == "__main__":
    main()
