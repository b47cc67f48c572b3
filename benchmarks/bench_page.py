"""The page: posteriors of drivers in a browser, and in Python.

100 simulated drivers, 500 draws each, every shipped model. In the browser (headless Chromium, in
the page's own worker) it is the time that the page says it took, the best of three: reading the
file, checks and pictures are not in it. In Python it is the time of one thread, the network's
draws alone.
"""

import sys
import tempfile
import time
from pathlib import Path

from common import drive, parse, parser_of, report

from asbc.page.page import write_page
from asbc.run import Run
from asbc.shipped import names

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "page"))
from chromium import Chromium, find_chromium  # noqa: E402

DRIVERS, DRAWS, TURNS = 100, 500, 3


def browser_seconds(browser: Chromium, page: Path, table: Path) -> float:
    """What the page says that the calibration of a file took."""
    best = float("inf")
    for _ in range(TURNS):
        browser.open(page)
        browser.choose_file("#file", table)
        browser.wait("document.body.dataset.done")
        told = browser.text("#outcome").split("calibrated in ")[1]
        best = min(best, float(told.split(" s")[0]))
    return best


def measure(program: str) -> str:
    """The table, in Markdown."""
    lines = ["| model | page, kB | browser, s | Python, s |", "|---|---:|---:|---:|"]
    browser = Chromium(program)
    with tempfile.TemporaryDirectory() as folder:
        page, table = Path(folder) / "page.html", Path(folder) / "drivers.csv"
        pairs = drive(Run.open("idm_matern").simulator, DRIVERS, 75)
        pairs.to_table().to_csv(table, index=False)
        for name in names():
            run = Run.open(name)
            size = write_page(run, page, pairs)
            seconds = browser_seconds(browser, page, table)
            start = time.perf_counter()
            run.model().sample(pairs, DRAWS, 0)
            here = time.perf_counter() - start
            lines.append(f"| {name} | {size / 1e3:.0f} | {seconds:.1f} | {here:.1f} |")
    browser.close()
    return "\n".join(lines)


def main() -> None:
    """Print the table, and publish it if so wanted."""
    settings = parse(parser_of(__doc__))
    program = find_chromium()
    if program is None:
        print("left out, for want of a Chromium (apt-get install chromium): bench_page")
    else:
        report(__doc__, measure(program), settings.publish)


if __name__ == "__main__":
    main()
