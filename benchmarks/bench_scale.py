"""Scale: `asbc calibrate` of many drivers, with one worker and with two.

Drivers are those of a pairs file, repeated under new ids with their rows in random order within
each repetition, in one Parquet file. Each line is one start of the command with `flow` as the run
has it and 500 draws a driver, reading, checking and writing included. CPU time is that of all
processes; memory is the most that the main process, and any worker, had at a time. The speedup is
that of the clock against one worker; it means something on two cores that do nothing else, so the
part of the CPU time that the main process took, which no worker can take over, is given too. What
many more drivers would cost on more cores follows from the table, and is put into docs/scale.md.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from common import PAGE, drive, parse, parser_of, report, simulator_of

from asbc.reporting.text_tables import publish

COLUMNS = ("recording", "pair_id", "follower_id", "time", "gap", "speed", "leader_speed")
TICK = os.sysconf("SC_CLK_TCK")
SCALE = PAGE.parent / "scale.md"
# What is worked out for more cores than were measured, and for how many drivers.
CORES = {
    "one core": 1,
    "a laptop, 8 cores": 8,
    "a job on a Slurm node, 64 cores": 64,
    "a Ray cluster, 16 machines of 16 cores": 256,
}
DRIVERS = (1_000_000, 100_000_000)


class Cost(NamedTuple):
    """What one start cost: seconds of the clock and of the CPU, and MB."""

    wall: float
    main_cpu: float
    worker_cpu: float
    main_memory: float
    worker_memory: float


class Line(NamedTuple):
    """A line of the table."""

    drivers: int
    rows: int
    workers: int
    cost: Cost


def repeat(table: pd.DataFrame, drivers: int, path: Path) -> None:
    """Write the table's pairs again and again under new ids until there are `drivers`."""
    pairs, writer, left = table["pair_id"].nunique(), None, drivers
    names = table["pair_id"].unique()
    for number in range(-(-drivers // pairs)):
        part = table[table["pair_id"].isin(names[:left])].assign(recording=f"copy{number:05d}")
        part = part.sample(frac=1, random_state=number)
        content = pa.Table.from_pandas(part, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, content.schema)
        writer.write_table(content)
        left -= pairs
    assert writer is not None
    writer.close()


def watch(command: list[str]) -> Cost:
    """Run a command, and look at it and at what it starts every quarter of a second."""
    start = time.perf_counter()
    main = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    cpu: dict[int, float] = {}
    memory: dict[int, float] = {}
    while main.poll() is None:
        for pid in _family(main.pid):
            found = _look(pid)
            if found is not None:
                cpu[pid], memory[pid] = found
        time.sleep(0.25)
    if main.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {main.returncode}")
    wall = time.perf_counter() - start
    others = [pid for pid in cpu if pid != main.pid]
    return Cost(
        wall,
        cpu[main.pid],
        sum(cpu[pid] for pid in others),
        memory[main.pid],
        max((memory[pid] for pid in others), default=0.0),
    )


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(other for child in children for other in _family(int(child)))]


def _look(pid: int) -> tuple[float, float] | None:
    """CPU seconds so far and most memory so far (MB) of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
    if peak is None:
        return None
    return (int(fields[11]) + int(fields[12])) / TICK, int(peak.split()[1]) / 1024


def recorded(path: str | None) -> pd.DataFrame:
    """The pairs of a file; simulated ones without it."""
    if path is None:
        return drive(simulator_of("gaussian"), 200, 400).to_table()[list(COLUMNS)]
    return pd.read_parquet(path)[list(COLUMNS)]


def measure(run: str, table: pd.DataFrame, counts: list[int], folder: Path) -> list[Line]:
    """What each number of drivers costs, with one worker and with two."""
    lines = []
    for count in counts:
        file = folder / f"{count}.parquet"
        repeat(table, count, file)
        rows = pq.ParquetFile(file).metadata.num_rows
        for workers in (1, 2):
            output = folder / f"{count}-{workers}"
            cost = watch(calibration(run, file, output, f"engine.workers={workers}"))
            lines.append(Line(count, rows, workers, cost))
            subprocess.run(["rm", "-r", str(output)], check=True)
        file.unlink()
    return lines


def calibration(run: str, file: Path, output: Path, *settings: str) -> list[str]:
    """The command."""
    words = ["calibrate", f"run={run}", "data=pairs", f"data.path='{file}'", f"output='{output}'"]
    return [sys.executable, "-m", "asbc", *words, *settings]


def as_table(lines: list[Line]) -> str:
    """The table, in Markdown."""
    texts = [
        "| drivers | rows | workers | clock, s | CPU, s | CPU, ms a driver | of it in the main "
        "process | main process, MB | worker, MB | speedup |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count, rows, workers, cost in lines:
        alone = next(line.cost.wall for line in lines if line.drivers == count)
        cpu = cost.main_cpu + cost.worker_cpu
        texts.append(
            f"| {count:,} | {rows:,} | {workers} | {cost.wall:.0f} | {cpu:.0f} "
            f"| {1000 * cpu / count:.1f} | {cost.main_cpu / cpu:.0%} | {cost.main_memory:.0f} "
            f"| {cost.worker_memory:.0f} | {alone / cost.wall:.2f} |"
        )
    return "\n".join(texts)


def from_table(text: str) -> list[Line]:
    """What `as_table` has written, up to its rounding."""
    lines = []
    for row in re.findall(r"^\|((?: [\d,.%]+ \|){10})$", text, re.M):
        drivers, rows, workers, wall, cpu, _, share, *memory, _ = (
            float(cell.strip(" %").replace(",", "")) for cell in row.strip("|").split("|")
        )
        main = cpu * share / 100
        cost = Cost(wall, main, cpu - main, *memory)
        lines.append(Line(int(drivers), int(rows), int(workers), cost))
    if len({line.drivers for line in lines}) < 2:
        raise SystemExit(f"{PAGE.name}: no table of two numbers of drivers in its block `scale`")
    return lines


def projection(lines: list[Line], bytes_each: float) -> str:
    """What many drivers would cost: a table in Markdown and how it was worked out.

    Args:
        lines: measured.
        bytes_each: of output, for a driver.
    """
    first, *_, last = (line for line in lines if line.workers == 2)
    count = last.drivers - first.drivers
    slope = [1000 * (b - a) / count for a, b in zip(first.cost, last.cost, strict=True)]
    wall, main, worker = slope[:3]  # ms of each further driver
    idle = wall / (main + worker / 2)  # what two workers waited for each other and for the disk
    alone = [line for line in lines if line.workers == 1]
    one = 1000 * (alone[-1].cost.wall - alone[0].cost.wall) / count
    texts = ["| | " + " | ".join(f"{number:,} drivers" for number in DRIVERS) + " |"]
    texts.append("|---|" + "---:|" * len(DRIVERS))
    for name, cores in CORES.items():
        each = one if cores == 1 else idle * (main + worker / cores)
        texts.append(f"| {name} | " + " | ".join(hours(n * each / 3.6e6) for n in DRIVERS) + " |")
    size = " and ".join(f"{bytes_each * n / 1e9:,.0f} GB for {n:,}" for n in DRIVERS)
    note = (
        f"From the slope between {first.drivers:,} and {last.drivers:,} drivers: a further driver "
        f"costs {worker:.1f} ms of a worker and {main:.2f} ms of the main process, which is not "
        f"shared out. Beyond two workers this is arithmetic, not a measurement. All outputs at "
        f"500 draws are {size}; `calibration.samples=100` writes a fifth of the draws."
    )
    return "\n".join([*texts, "", note])


def hours(value: float) -> str:
    """A time that reads well."""
    return f"{60 * value:.0f} min" if value < 2 else f"{value:,.1f} h"


def bytes_of_a_driver(run: str, table: pd.DataFrame, drivers: int, folder: Path) -> float:
    """Size of all that is written for a driver."""
    file, output = folder / "some.parquet", folder / "some"
    repeat(table, drivers, file)
    command = calibration(run, file, output, "calibration.arviz=false")  # as for many drivers
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sum(path.stat().st_size for path in output.rglob("*") if path.is_file()) / drivers


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--run", help="a trained run; without it one is trained first, briefly")
    parser.add_argument("--pairs", help="Parquet file to repeat; without it drivers are simulated")
    parser.add_argument("--drivers", type=int, nargs="+", default=[2000, 20_000, 100_000])
    parser.add_argument(
        "--again", action="store_true", help="from the published table, without measuring"
    )
    arguments = parse(parser)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), arguments.run
        if run is None:
            run = str(folder / "run")
            words = ("train", "experiment=smoke", "flow=nsf", f"hydra.run.dir='{run}'")
            subprocess.run([sys.executable, "-m", "asbc", *words], check=True)
        drivers, counts = recorded(arguments.pairs), arguments.drivers
        size = bytes_of_a_driver(run, drivers, min(counts), folder)
        if arguments.again:
            block = PAGE.read_text(encoding="utf-8").partition("<!-- scale -->")[2]
            lines = from_table(block.partition("<!-- end -->")[0])
        else:
            lines = measure(run, drivers, counts, folder)
            report(__doc__, as_table(lines), arguments.publish)
    cost = projection(lines, size)
    print(cost)
    if arguments.publish:
        publish(SCALE, {"cost": cost})


if __name__ == "__main__":
    main()
