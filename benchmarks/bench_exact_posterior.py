"""How close trained posteriors are to the exact ones of 20 simulated drivers.

Score finished runs, a row each:

    python benchmarks/bench_exact_posterior.py --run RUN_DIR [RUN_DIR ...]

Compare our estimator with the `sbi` package's NPE, both trained on the same simulations, with the
same encoder, the same inputs to it and a MAF of the same sizes (needs sbi: the extra
`benchmarks`); ours with `transform=bounded`, sbi with its defaults. sbi stops by itself once its
validation loss has not improved for 20 epochs; with fewer epochs than that it has not converged,
and the comparison is one at equal cost:

    python benchmarks/bench_exact_posterior.py --residual gaussian --simulations 4000

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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from output import publish
from peers import BATCH, SbiPosterior, train_ours
from torch import Tensor

from asbc.data.windows import leader_windows
from asbc.exact.reference import STRIDE, ExactPosteriors, closeness, exact_of
from asbc.posterior.posterior import PosteriorSamples
from asbc.reporting.text_tables import TextTable
from asbc.run import load_posterior, open_run
from asbc.simulator import Prior
from asbc.simulator.robust import simulate_drivers
from asbc.utils.random import uniform

CONF = Path(__file__).parents[1] / "conf"


class PriorDraws:
    """The prior in place of a posterior."""

    def __init__(self, prior: Prior) -> None:
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
    for folder in folders:
        run = open_run(folder)
        posterior = instantiate(run.config["estimator"])
        load_posterior(posterior, run)
        exact = exact_of(run.config, instantiate, drivers, cache)
        names = posterior.posterior.prior.names
        rows.append(row(run.folder.shown, 0, posterior.eval(), exact, names))
    return rows


def compare(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """The prior, our estimator and sbi's on the same simulations."""
    overrides = [f"residual={arguments.residual}", f"features={arguments.features}"]
    overrides += ["transform=bounded", "encoder.dropout=0.05", "flow.dropout=0.05"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("train", overrides), resolve=True)
    exact = exact_of(config, instantiate, arguments.drivers, arguments.cache)
    simulator = instantiate(config["simulator"])
    prior, names = simulator.prior, simulator.parameter_names
    train = instantiate(config["data"]).splits().train
    windows = leader_windows(train, config["data"]["context_steps"], STRIDE)
    rows = [row("prior", 0, PriorDraws(prior), exact, names)]
    for count in arguments.simulations:
        theta, states = simulate_drivers(simulator, windows, count, seed=1)
        epochs = max(1, arguments.updates * BATCH // count)
        torch.manual_seed(arguments.seed)
        ours = instantiate(config["estimator"])
        seconds = cpu_seconds(lambda o=ours, t=theta, x=states, e=epochs: train_ours(o, t, x, e))
        rows.append(row(f"ours, {count} simulations", seconds, ours, exact, names))
        if arguments.without_sbi:
            continue
        torch.manual_seed(arguments.seed)
        theirs = SbiPosterior(prior, instantiate(config["encoder"]), ours.posterior.features)
        seconds = cpu_seconds(
            lambda s=theirs, t=theta, x=states, e=epochs: s.train(t, x, arguments.patience * e)
        )
        name = f"sbi, {count} simulations, {theirs.epochs} epochs"
        rows.append(row(name, seconds, theirs, exact, names))
    return rows


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs="+", help="run folders of train.py to score")
    parser.add_argument("--residual", default="gaussian", choices=("gaussian", "matern"))
    parser.add_argument("--features", default="actions", choices=("states", "actions"))
    parser.add_argument("--simulations", nargs="+", type=int, default=[4000])
    parser.add_argument("--updates", type=int, default=1200, help="optimiser steps of ours")
    parser.add_argument(
        "--patience", type=int, default=2, help="sbi's most epochs, in multiples of ours"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the networks' first weights")
    parser.add_argument("--without-sbi", action="store_true", help="train ours only")
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=Path("outputs/exact_posterior"))
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.run:
        rows = score_runs(arguments.run, arguments.drivers, arguments.cache)
    else:
        rows = compare(arguments)
    header = list(dict.fromkeys(name for line in rows for name in line))
    cells = [[line.get(name, "") for name in header] for line in rows]
    table = TextTable(header, cells).to_markdown()
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
