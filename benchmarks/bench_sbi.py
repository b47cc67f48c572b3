"""Training: an epoch against the `sbi` package's NPE with a transformer of the same sizes.

An epoch is 4,000 pairs of 75 x 3 states and D = 6 parameters in batches of 128, forward, backward
and Adam, and the loss of 444 held-out pairs. Ours is `asbc train` with the default sizes. sbi's is
NPE with its MAF (64 hidden units, 5 layers, as ours) and `nn.TransformerEncoder` (d = 64, 2
layers, 4 heads, FFN 4d, dropout 0.2) with a [CLS] token as embedding. CPU time of one thread;
simulations and set-up are taken off as the difference between long and short trainings; the two
alternate, and the table shows the medians of a few turns. It needs sbi: the extra `benchmarks`.
"""

import statistics
import tempfile
import warnings
from functools import partial
from pathlib import Path

import pandas as pd
from bench_encoder import StockEncoder
from common import cpu_seconds, drive, parse, parser_of, report, simulator_of
from peers import BATCH, SbiPosterior
from torch import Tensor

import asbc
from asbc.simulator import Prior
from asbc.utils.random import standard_normal, stream

PAIRS, HELD_OUT, STEPS = 4000, 444, 75
DROPOUT = 0.2
LEADERS = 30  # that simulations follow
# Plain NPE: one round of simulations, no early stop.
NPE = {
    "training.rounds": 0,
    "training.warmup_simulations": PAIRS,
    "training.buffer_capacity": PAIRS,
    "training.holdout_size": HELD_OUT,
    "training.batch_size": BATCH,
    "training.patience": 1000,
    "encoder.dropout": DROPOUT,
    "bank.synthetic_cap": 1,
    "data.min_duration": 0.2 * STEPS,
}


def fit_ours(table: pd.DataFrame, epochs: int) -> None:
    """Train as a user does."""
    with tempfile.TemporaryDirectory() as folder:
        settings = NPE | {"training.max_epochs": epochs}
        asbc.train(table, Path(folder) / "run", settings, acquisition="random", callbacks="none")


def fit_sbi(prior: Prior, theta: Tensor, states: Tensor, epochs: int) -> None:
    """Train sbi's NPE."""
    posterior = SbiPosterior(prior, StockEncoder(DROPOUT))
    share = HELD_OUT / (PAIRS + HELD_OUT)
    # sbi stops after the first epoch number above the maximum.
    posterior.train(
        theta, states, epochs - 1, training_batch_size=BATCH, validation_fraction=share
    )
    assert posterior.epochs == epochs, f"sbi trained {posterior.epochs} epochs, not {epochs}"


def epoch_seconds(fit: partial, epochs: int) -> float:
    """CPU time of an epoch: what `epochs` more of them cost."""
    short, long = (cpu_seconds(fit, count) for count in (2, 2 + epochs))
    return (long - short) / epochs


def measure(turns: int, epochs: int) -> str:
    """The table, in Markdown."""
    simulator = simulator_of("gaussian")
    prior = simulator.prior
    theta = prior.sample(PAIRS + HELD_OUT, stream(0, "theta"))
    # What is in the trajectories does not change what they cost.
    states = standard_normal(stream(0, "states"), len(theta), STEPS, 3)
    fits = {
        "sbi": partial(fit_sbi, prior, theta, states),
        "ours": partial(fit_ours, drive(simulator, LEADERS, STEPS).to_table()),
    }
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(turns):
        for name, fit in fits.items():
            times[name].append(epoch_seconds(fit, epochs))
    theirs, ours = (statistics.median(times[name]) for name in ("sbi", "ours"))
    return "\n".join(
        [
            "| training epoch, 4,000 pairs | CPU s |",
            "|---|---:|",
            f"| sbi NPE (MAF), stock transformer | {theirs:.2f} |",
            f"| ours | {ours:.2f} |",
            f"| ratio | {theirs / ours:.2f} |",
        ]
    )


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="epochs timed in each turn")
    arguments = parse(parser)
    warnings.filterwarnings("ignore")
    report(__doc__, measure(arguments.turns, arguments.epochs), arguments.publish)


if __name__ == "__main__":
    main()
