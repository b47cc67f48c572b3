"""How close refined posteriors are to NUTS on a run's own drivers, and what each costs.

Run `python benchmarks/bench_refinement.py --run RUN_DIR`; it prints a table and writes it to
`--output` too. Errors are averages over drivers and parameters: of the posterior mean in units of
NUTS's standard deviation, and of the logarithm of the standard deviation. 2000 draws have errors
of about 0.02 by chance. CPU time of one torch thread; NUTS includes its compilation.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from output import publish

from asbc.calibration.psis import RELIABLE_K_HAT, Weighting
from asbc.calibration.refinement import AutoRefinement, NoRefinement, PsisRefinement, Refinement
from asbc.run import load_model, open_run
from asbc.utils.progress import Stopwatch

DRAWS = 2000
PLAIN = Weighting(adaptive_rounds=0)


def measure(folder: str, drivers: int) -> str:
    """The table, in Markdown."""
    run = open_run(folder)
    model = load_model(run, instantiate)
    pairs = instantiate(run.config["data"]).splits().test
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
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="run folder of train.py")
    parser.add_argument("--drivers", type=int, default=12, help="drivers of the test split")
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = measure(arguments.run, arguments.drivers)
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
