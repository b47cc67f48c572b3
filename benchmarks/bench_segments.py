"""Several segments: the posterior of a set of segments against the exact one.

Drivers come from the prior and follow leaders of the data's validation split, in segments of 3 to
15 s. Their exact posterior has the product of the segments' likelihoods (NUTS, computed once and
kept below `--cache`); the same drivers are looked at with one segment, two and four. The table has
the C2ST accuracy (mean and worst over drivers; 0.5: alike, 1: distinct), the mean absolute error
of the posterior mean in standard deviations of the exact posterior, the spread of both posteriors
over the prior's (geometric mean over drivers and parameters), and simulation-based calibration of
ten sets of 300 other drivers with as many segments: the smallest p-value over sets and parameters,
times their number, and in how many sets all rank curves stay in their joint 95% bands. Without
`--run` a model is trained first (`experiment=best history=segments`: drivers who do not change,
since no exact posterior belongs to others).
"""

import tempfile
from pathlib import Path

from common import parse, parser_of, report

import asbc
from asbc.data.windows import leader_windows
from asbc.errors import InputError
from asbc.exact.histories import closeness_by_count, exact_histories
from asbc.reporting.text_tables import TextTable

HEADER = ["segments", "mean s", "C2ST", "worst", "mean error", "spread", "exact spread"]
HEADER += ["SBC, corrected p", "inside the bands", "converged"]


def rows_of(run: asbc.Run, drivers: int, counts: list[int], cache: Path) -> list[list[str]]:
    """The table of one run; exact posteriors are kept below `cache`."""
    if run.history is None or not run.training.exact:
        raise InputError(
            f"run={run.shown}: expected a run of history=segments with robust=none; an exact "
            "posterior belongs to no other"
        )
    windows = leader_windows(
        run.source().splits().validation, run.config["data"]["context_steps"], 50
    )
    exact = exact_histories(run.training, windows, counts, drivers, cache=cache)
    return [
        [
            f"{row['segments']}",
            f"{row['seconds']:.1f}",
            f"{row['c2st']:.3f}",
            f"{row['c2st_worst']:.3f}",
            f"{row['mean_error']:.2f}",
            f"{row['spread']:.3f}",
            f"{row['exact_spread']:.3f}",
            f"{row['sbc_p']:.3f}",
            f"{row['sbc_inside']} of {row['sbc_sets']}",
            f"{row['converged']} of {row['drivers']}",
        ]
        for row in closeness_by_count(run.posterior, run.training, windows, exact)
    ]


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--run", help="folder of a trained run")
    parser.add_argument("--residual", default="matern", choices=("gaussian", "matern"))
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--segments", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cache", type=Path, default=Path("outputs/exact_posterior"))
    arguments = parse(parser)
    wanted = arguments.drivers, arguments.segments, arguments.cache
    if arguments.run:
        rows = rows_of(asbc.Run.open(arguments.run), *wanted)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run = asbc.train(
                folder=Path(folder) / "run",
                experiment="best",
                history="segments",
                residual=arguments.residual,
            )
            rows = rows_of(run, *wanted)
    report(__doc__, TextTable(HEADER, rows).to_markdown(), arguments.publish)


if __name__ == "__main__":
    main()
