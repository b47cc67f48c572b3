"""Readers: rows of many pairs, in random order, brought together without holding them in memory.

One Parquet file of drivers repeated as in `bench_scale.py`. CPU time and most memory of a process
that does nothing else: our ranges of keys in Arrow, and full sorts by DuckDB with a limit of
300 MB and by Polars' streaming engine (`pip install duckdb polars`).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from bench_scale import recorded, repeat
from common import parse, parser_of

from asbc.reporting.text_tables import publish

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
IDS = "pair_id::VARCHAR AS pair_id, follower_id::VARCHAR AS follower_id"
WAYS = {
    "Arrow, ranges of keys (ours)": """
from asbc.data.row_batches import RowBatches
from asbc.data.sorted_buckets import sorted_buckets
from asbc.engine import LocalEngine
with LocalEngine(workers=1).pool() as pool:
    sorted_buckets(RowBatches.of(source).stretches(), Path(target), 80_000, pool)
""",
    "DuckDB, ORDER BY": f"""
import duckdb
database = duckdb.connect()
database.execute("SET memory_limit='300MB'; SET threads=2; SET preserve_insertion_order=false")
database.execute(f"SET temp_directory='{{target}}-spill'")
rows = "SELECT * REPLACE ({IDS}) FROM read_parquet('" + source + "')"
order = " ORDER BY recording, pair_id, time"
database.execute(f"COPY ({{rows}}{{order}}) TO '{{target}}' (FORMAT parquet)")
""",
    "Polars, sink_parquet": """
import polars
rows = polars.scan_parquet(source, low_memory=True)
rows = rows.with_columns(polars.col("pair_id", "follower_id").cast(polars.String))
rows.sort(["recording", "pair_id", "time"]).sink_parquet(target)
""",
}
START = "import sys\nfrom pathlib import Path\nsource, target = sys.argv[1:]\n"
END = """
import resource
own = resource.getrusage(resource.RUSAGE_SELF)
print(own.ru_utime + own.ru_stime, own.ru_maxrss / 1024)
"""


def measure(file: Path, drivers: int, folder: Path) -> str:
    """The table, in Markdown."""
    lines = ["| | CPU, s | times ours | memory, MB |", "|---|---:|---:|---:|"]
    ours = 0.0
    for number, (name, code) in enumerate(WAYS.items()):
        words = [sys.executable, "-c", START + code + END, str(file), str(folder / f"{number}")]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            lines.append(f"| {name} | {done.stderr.strip().splitlines()[-1]} | | |")
            continue
        seconds, memory = map(float, done.stdout.split()[-2:])
        ours = ours or seconds
        lines.append(f"| {name} | {seconds:.0f} | {seconds / ours:.1f} | {memory:.0f} |")
    rows = pq.ParquetFile(file).metadata.num_rows
    lines += ["", f"{rows:,} rows of {drivers:,} drivers."]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", help="Parquet file to repeat; without it drivers are simulated")
    parser.add_argument("--drivers", type=int, default=20_000)
    arguments = parse(parser)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "pairs.parquet"
        repeat(recorded(arguments.pairs), arguments.drivers, file)
        table = measure(file, arguments.drivers, Path(name))
    print(table)
    if arguments.publish:
        publish(PAGE, {"readers": table})


if __name__ == "__main__":
    main()
