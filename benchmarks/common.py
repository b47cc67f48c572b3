"""What the benchmarks share: drivers to work on, CPU time, and where their tables go."""

import argparse
import inspect
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.engine.pool import OwnProcess
from asbc.reporting.text_tables import publish as write_blocks
from asbc.simulator import Simulator
from asbc.utils.random import standard_normal, stream

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def simulator_of(residual: str) -> Simulator:
    """The simulator with the default groups of the configuration."""
    return build(compose("train", [f"residual={residual}"]).simulator)


def drive(simulator: Simulator, count: int, steps: int) -> Pairs:
    """Drivers of the prior behind wandering leaders, in place of recorded ones."""
    theta = simulator.prior.sample(count, stream(0, "theta"))
    leader = 12 + 0.3 * standard_normal(stream(0, "leader"), count, steps).cumsum(1)
    leader = leader.clamp_min(0.5)
    gap = simulator.law.equilibrium_gap(theta, leader[:, 0])
    driven = simulator.rollout(theta, leader, gap, leader[:, 0], stream(0, "residual"))
    return Pairs.from_series(
        driven.gap.clamp_min(0.1), driven.speed, leader, simulator.dt, driven.acceleration
    )


@contextmanager
def sumo_here(simulator: Simulator) -> Iterator[None]:
    """Let a model of SUMO be simulated in this process, where its CPU time is counted.

    A process can hold one SUMO: one model after the other.
    """
    from asbc.simulator.sumo_batch import SumoBatch

    law: Any = simulator.law
    batch = SumoBatch(law.pairs, simulator.dt, law.ballistic)
    law._pool, law._pool_dt = OwnProcess(lambda: batch), simulator.dt
    try:
        yield
    finally:
        law.close()
        batch.close()


def cpu_seconds(function: Callable[..., object], *arguments: object) -> float:
    """CPU time (user and system) of one call."""
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def peak_memory() -> str:
    """A sentence on what the process needed at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"Peak memory of the whole process: {peak:.0f} MB."


def parser_of(documentation: str) -> argparse.ArgumentParser:
    """A parser that shows the benchmark's documentation, with the option all of them have."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--publish", action="store_true", help="also put the table into docs/benchmarks.md"
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; from here on torch has one thread."""
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    return arguments


def report(documentation: str, table: str, publish: bool) -> None:
    """Print the table; where asked, put it into the page with what the benchmark says of itself.

    Its block has the name of the script without `bench_`, and is added at the end of a page that
    has none yet.
    """
    print(table)
    if not publish:
        return
    script = Path(sys.argv[0])
    name = script.stem.removeprefix("bench_")
    title, _, text = inspect.cleandoc(documentation).partition("\n")
    block = f"## {title.rstrip('.')}\n\n{text.strip()}\n\n`{_command(script)}`\n\n{table}"
    if not write_blocks(PAGE, {name: block}):
        with PAGE.open("a", encoding="utf-8") as page:
            page.write(f"\n<!-- {name} -->\n{block}\n<!-- end -->\n")


def _command(script: Path) -> str:
    """What was typed; where runs and files lie is nobody's business."""
    words = [word for word in sys.argv[1:] if word != "--publish"]
    shown = ["RUN" if Path(word).is_dir() else Path(word).name for word in words]
    return shlex.join(["python", f"benchmarks/{script.name}", *shown])
