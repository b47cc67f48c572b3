"""Closeness: trained posteriors against the exact ones of simulated drivers.

With `--run RUN ...` finished runs are scored, a row each. Without it our estimator is compared
with the `sbi` package's NPE (the extra `benchmarks`): as many simulations of the same simulator
behind the same leaders, the same encoder, the same inputs to it and a MAF of the same sizes; ours
is `asbc train` with `acquisition=random training.rounds=0 transform=bounded`, sbi has its
defaults. sbi stops by itself once its validation loss has not improved for 20 epochs; with fewer
epochs than that it has not converged, and the comparison is one at equal cost.

Drivers come from the prior and follow leaders of the data's test split. Their exact posteriors
(NUTS) are computed once and kept below `--cache`, by simulator and data. The table has the C2ST
accuracy (mean and worst over drivers; 0.5: alike, 1: distinct) and, by parameter, the mean
absolute error of the posterior mean in standard deviations of the exact posterior. 1000 draws have
errors of about 0.03 by chance. "Converged" says for how many drivers the sampler passed its own
checks. The row "prior" shows what knowing nothing scores. CPU time, of one thread, is that of
training.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import cpu_seconds, parse, parser_of, report
from peers import BATCH, SbiPosterior
from torch import Tensor

import asbc
from asbc.config import build
from asbc.exact.reference import ExactPosteriors, closeness, exact_of
from asbc.posterior.posterior import PosteriorSamples
from asbc.reporting.text_tables import TextTable
from asbc.simulator.robust import simulate_drivers
from asbc.utils.random import uniform


class PriorDraws:
    """The prior in place of a posterior."""

    def __init__(self, prior: asbc.Prior) -> None:
        self.prior = prior

    def sample(self, states: Tensor, n: int, rng: Any) -> PosteriorSamples:
        """n draws for each trajectory."""
        theta = self.prior.icdf(uniform(rng, len(states), n, self.prior.dim))
        return PosteriorSamples(theta, torch.zeros(len(states)))


def row(
    name: str, seconds: float, posterior: Any, exact: ExactPosteriors, names: tuple[str, ...]
) -> dict[str, str]:
    """One line of the table."""
    table = closeness(posterior, exact, names)
    errors = table.filter(like="shift_").abs().mean()
    line = {
        "posterior": name,
        "training, CPU s": f"{seconds:.0f}" if seconds else "",
        "C2ST": f"{table['c2st'].mean():.3f}",
        "worst": f"{table['c2st'].max():.3f}",
        "converged": f"{int(exact.converged.sum())} of {len(exact.converged)}",
        "mean error": f"{errors.mean():.2f}",
        **{str(key).removeprefix("shift_"): f"{value:.2f}" for key, value in errors.items()},
    }
    print(*line.values(), file=sys.stderr)  # the others may take minutes
    return line


def score_runs(folders: list[str], drivers: int, cache: Path) -> list[dict[str, str]]:
    """A row for each finished run."""
    rows = []
    for run in map(asbc.Run.open, folders):
        exact = exact_of(run, drivers, cache)
        name = f"{run.label} {' '.join(run.variant)}".strip()
        rows.append(row(name, 0, run.posterior, exact, run.simulator.parameter_names))
    return rows


def compare(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """The prior, our estimator and sbi's, on as many simulations."""
    rows = []
    for count in arguments.simulations:
        epochs = max(1, arguments.updates * BATCH // count)
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            run = train_ours(arguments, Path(folder) / "run", count, epochs)
            seconds = time.process_time() - start
            exact = exact_of(run, arguments.drivers, arguments.cache)
            names = run.simulator.parameter_names
            if not rows:
                rows.append(row("prior", 0, PriorDraws(run.simulator.prior), exact, names))
            rows.append(row(f"ours, {count} simulations", seconds, run.posterior, exact, names))
            if not arguments.without_sbi:
                most = arguments.patience * epochs
                theirs, seconds = train_sbi(run, count, most, arguments.seed)
                name = f"sbi, {count} simulations, {theirs.epochs} epochs"
                rows.append(row(name, seconds, theirs, exact, names))
    return rows


def train_ours(arguments: argparse.Namespace, folder: Path, count: int, epochs: int) -> asbc.Run:
    """Plain NPE as a user trains it: one set of simulations, the best epoch of all."""
    settings = {
        "training.rounds": 0,
        "training.warmup_simulations": count,
        "training.buffer_capacity": count,
        "training.batch_size": BATCH,
        "training.max_epochs": epochs,
        "training.patience": epochs,
        "encoder.dropout": 0.05,
        "flow.dropout": 0.05,
        "estimator.learning_rate": 2e-3,
    }
    return asbc.train(
        folder=folder,
        overrides=settings,
        residual=arguments.residual,
        encoder=arguments.encoder,
        acquisition="random",
        transform="bounded",
        callbacks="none",
        seed=arguments.seed,
    )


def train_sbi(run: asbc.Run, count: int, epochs: int, seed: int) -> tuple[SbiPosterior, float]:
    """sbi's NPE on simulations behind the leaders of a run, and its CPU time."""
    windows = run.leaders(run.config["data"]["context_steps"])
    assert windows is not None
    theta, states = simulate_drivers(run.simulator, windows, count, seed=1)
    torch.manual_seed(seed)
    encoder = build(run.config["encoder"])
    theirs = SbiPosterior(run.simulator.prior, encoder, encoder.features)
    return theirs, cpu_seconds(theirs.train, theta, states, epochs)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--run", nargs="+", help="folders of trained runs to score")
    parser.add_argument("--residual", default="gaussian", choices=("gaussian", "matern"))
    parser.add_argument("--encoder", default="actions", choices=("local_global", "actions"))
    parser.add_argument("--simulations", nargs="+", type=int, default=[4000])
    parser.add_argument("--updates", type=int, default=1200, help="optimiser steps of ours")
    parser.add_argument(
        "--patience", type=int, default=2, help="sbi's most epochs, in multiples of ours"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the networks' first weights")
    parser.add_argument("--without-sbi", action="store_true", help="train ours only")
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=Path("outputs/exact_posterior"))
    arguments = parse(parser)
    if arguments.run:
        rows = score_runs(arguments.run, arguments.drivers, arguments.cache)
    else:
        rows = compare(arguments)
    header = list(dict.fromkeys(name for line in rows for name in line))
    cells = [[line.get(name, "") for name in header] for line in rows]
    report(__doc__, TextTable(header, cells).to_markdown(), arguments.publish)


if __name__ == "__main__":
    main()
