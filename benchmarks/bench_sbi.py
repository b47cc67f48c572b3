"""Cost of a training epoch against the `sbi` package's NPE with a transformer of the same sizes.

Run `python benchmarks/bench_sbi.py`; it prints a table and writes it to `--output` as well. It
needs sbi, which is in the extra `benchmarks`: `pip install -e '.[benchmarks]'`. sbi pulls packages
that nothing else here needs, so an environment of its own is a good place for it.

An epoch is 4,000 pairs of 75 x 3 states and D = 6 parameters in batches of 128, forward, backward
and Adam, and the loss of 444 held-out pairs. Ours is `PosteriorEstimator` with the default sizes,
trained by Lightning. sbi's is NPE with its MAF (64 hidden units, 5 layers, as ours) and
`nn.TransformerEncoder` (d = 64, 2 layers, 4 heads, FFN 4d, dropout 0.2) with a [CLS] token as
embedding. CPU time (user and system) of one thread; set-up is taken off as the difference between
long and short trainings; the two alternate, and the table shows the medians of a few turns.
"""

import argparse
import statistics
import time
import warnings
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch
from bench_encoder import StockEncoder
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from output import publish
from peers import BATCH, SbiPosterior
from torch import Tensor

from asbc.simulator import Prior
from asbc.training.datamodule import Batches
from asbc.training.train import quiet_lightning
from asbc.utils.random import standard_normal, stream

CONF = Path(__file__).parents[1] / "conf"
PAIRS, HELD_OUT, STEPS = 4000, 444, 75
DROPOUT = 0.2


def fit_ours(config: object, theta: Tensor, states: Tensor, epochs: int) -> None:
    """Train our estimator by Lightning."""
    estimator = instantiate(config.estimator)  # type: ignore[attr-defined]
    estimator.set_input_scaling(states)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    parts = [
        Batches(lambda rows=rows: {"theta": theta[rows], "states": states[rows]}, BATCH, order)
        for rows, order in (
            (slice(HELD_OUT, None), torch.randperm),
            (slice(0, HELD_OUT), torch.arange),
        )
    ]
    trainer.fit(estimator, *parts)


def fit_sbi(prior: Prior, theta: Tensor, states: Tensor, epochs: int) -> None:
    """Train sbi's NPE."""
    posterior = SbiPosterior(prior, StockEncoder(DROPOUT))
    # sbi stops after the first epoch number above the maximum.
    posterior.train(
        theta, states, epochs - 1, training_batch_size=BATCH, validation_fraction=HELD_OUT / 4444
    )
    assert posterior.epochs == epochs, f"sbi trained {posterior.epochs} epochs, not {epochs}"


def epoch_seconds(fit: partial, epochs: int) -> float:
    """CPU time of an epoch: what `epochs` more of them cost."""
    times = []
    for count in (2, 2 + epochs):
        start = time.process_time()
        fit(count)
        times.append(time.process_time() - start)
    return (times[1] - times[0]) / epochs


def measure(turns: int, epochs: int) -> str:
    """The table, in Markdown."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [f"encoder.dropout={DROPOUT}"])
    prior = instantiate(config.prior)
    theta = prior.sample(PAIRS + HELD_OUT, stream(0, "theta"))
    # What is in the trajectories does not change what they cost.
    states = standard_normal(stream(0, "states"), len(theta), STEPS, 3)
    fits = {
        "sbi": partial(fit_sbi, prior, theta, states),
        "ours": partial(fit_ours, config, theta, states),
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
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1, help="epochs timed in each turn")
    parser.add_argument("--output", type=Path, default=Path("outputs/bench_sbi.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quiet_lightning()
    warnings.filterwarnings("ignore")
    table = measure(arguments.turns, arguments.epochs)
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
