"""Scale: `asbc calibrate` of many drivers, with one worker and with two.

Drivers are those of a pairs file, repeated under new ids with their rows in random order within
each repetition, in one Parquet file. Each line is one start of the command with `flow` as the run
has it and 500 draws a driver, reading, checking and writing included. CPU time is that of all
processes; memory is the most that the main process, and any worker, had at a time. The speedup is
that of the clock against one worker; it means something on two cores that do nothing else, so the
part of the CPU time that the main process took, which no worker can take over, is given too.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from common import drive, parse, parser_of, report, simulator_of

COLUMNS = ("recording", "pair_id", "follower_id", "time", "gap", "speed", "leader_speed")
TICK = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """What one start cost: seconds of the clock and of the CPU, and MB."""

    wall: float
    main_cpu: float
    worker_cpu: float
    main_memory: float
    worker_memory: float


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


def measure(run: str, table: pd.DataFrame, counts: list[int], folder: Path) -> str:
    """The table, in Markdown."""
    lines = [
        "| drivers | rows | workers | clock, s | CPU, s | CPU, ms a driver | of it in the main "
        "process | main process, MB | worker, MB | speedup |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count in counts:
        file = folder / f"{count}.parquet"
        repeat(table, count, file)
        rows, alone = pq.ParquetFile(file).metadata.num_rows, 0.0
        for workers in (1, 2):
            output = folder / f"{count}-{workers}"
            cost = watch(
                [
                    *(sys.executable, "-m", "asbc", "calibrate", f"run={run}", "data=pairs"),
                    *(f"data.path='{file}'", f"output='{output}'", f"engine.workers={workers}"),
                ]
            )
            alone = alone or cost.wall
            cpu = cost.main_cpu + cost.worker_cpu
            lines.append(
                f"| {count:,} | {rows:,} | {workers} | {cost.wall:.0f} | {cpu:.0f} "
                f"| {1000 * cpu / count:.1f} | {cost.main_cpu / cpu:.0%} | {cost.main_memory:.0f} "
                f"| {cost.worker_memory:.0f} | {alone / cost.wall:.2f} |"
            )
            subprocess.run(["rm", "-r", str(output)], check=True)
        file.unlink()
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--run", help="a trained run; without it one is trained first, briefly")
    parser.add_argument("--pairs", help="Parquet file to repeat; without it drivers are simulated")
    parser.add_argument("--drivers", type=int, nargs="+", default=[2000, 20_000, 100_000])
    arguments = parse(parser)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), arguments.run
        if run is None:
            run = str(folder / "run")
            words = ("train", "experiment=smoke", "flow=nsf", f"hydra.run.dir='{run}'")
            subprocess.run([sys.executable, "-m", "asbc", *words], check=True)
        table = measure(run, recorded(arguments.pairs), arguments.drivers, folder)
    report(__doc__, table, arguments.publish)


if __name__ == "__main__":
    main()
