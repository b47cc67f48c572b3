"""Training: one process against two, at the same batch size.

`asbc train` with the paper's simulations, network and batches on the embedded recordings, each
round with the same number of epochs, once on one device and once with `trainer.devices=2
trainer.strategy=ddp` on the CPU, a thread each. Seconds are the clock's, from `rounds.csv`:
gradient steps with the hold-out after each epoch, and choosing pairs, whose scores the processes
share, and simulating them, which the first does alone. The command as a whole also starts Python,
twice for two. Speedups mean something on two cores that do nothing else; one process is measured
before and after two, and the difference is what the machine did beside.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from common import parse, parser_of, report


class Cost(NamedTuple):
    """Seconds of a run."""

    steps: float
    design: float
    command: float


def train(processes: int, options: argparse.Namespace, folder: Path) -> Cost:
    """What a run on so many processes took."""
    overrides = [
        *(f"trainer.devices={processes}", f"training.rounds={options.rounds}"),
        *(f"training.max_epochs={options.epochs}", f"training.patience={options.epochs}"),
        *(f"training.min_rounds={options.rounds}", f"acquisition={options.acquisition}"),
        *("callbacks=none", f"hydra.run.dir={folder}", *options.overrides),
    ]
    strategy = ["trainer.strategy=ddp"] if processes > 1 else []
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "asbc", "train", *overrides, *strategy],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    command = time.perf_counter() - start
    seconds = pd.read_csv(folder / "rounds.csv").filter(like="seconds_").sum()
    return Cost(seconds["seconds_train"], seconds.drop("seconds_train").sum(), command)


def line(name: str, cost: Cost, one: Cost) -> str:
    """A row of the table, with speedups against one process."""
    loop, one_loop = cost.steps + cost.design, one.steps + one.design
    return (
        f"| {name} | {cost.steps:.0f} | {cost.design:.0f} | {cost.command:.0f} "
        f"| {one.steps / cost.steps:.2f} | {one_loop / loop:.2f} |"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="active rounds")
    parser.add_argument("--epochs", type=int, default=10, help="of each round")
    parser.add_argument("--acquisition", default="joint")
    parser.add_argument("overrides", nargs="*", help="further settings, e.g. flow=nsf")
    options = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        costs = [
            train(processes, options, Path(folder) / str(turn))
            for turn, processes in enumerate((1, 2, 1))
        ]
    before, two, after = costs
    table = [
        "| processes | steps, s | design and simulation, s | command, s | speedup of steps "
        "| of the loop |",
        "|---|---:|---:|---:|---:|---:|",
        line("1", before, before),
        line("2", two, before),
        line("1, again", after, before),
    ]
    note = f"{options.rounds} rounds of {options.epochs} epochs after the warm-up's."
    report(__doc__, "\n".join([*table, "", note]), options.publish)


if __name__ == "__main__":
    main()
