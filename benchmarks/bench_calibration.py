"""Calibration: a driver's posterior by `asbc calibrate`, by NUTS, and by sbi's sampler.

CPU time per driver, everything in one process with one torch thread. The network has the default
sizes; how well it is trained does not change what it costs. `asbc calibrate` includes all files it
writes. NUTS is `baseline=unpooled` with its default settings, its compilation counted apart. The
sbi rows need the extra `benchmarks`.
"""

import importlib.util
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import cpu_seconds, drive, parse, parser_of, peak_memory, report

from asbc.calibration.calibrate import CalibrationSettings, Job, calibrate_into
from asbc.calibration.refinement import NoRefinement
from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.exact.diagnostics import NutsSettings
from asbc.exact.statistics import transitions
from asbc.trained_model import Model
from asbc.utils.random import stream

STEPS, DRAWS, SBI_DRIVERS = 75, 500, 40


def untrained(residual: str) -> Model:
    """A network and simulator with the default groups of the configuration."""
    config = compose("train", [f"residual={residual}", "transform=bounded"])
    torch.manual_seed(0)
    posterior = build(config.estimator).posterior.eval()
    return Model(posterior, build(config.simulator), STEPS, residual)


def calibrate_seconds(model: Model, pairs: Pairs) -> float:
    """Per driver, all files written."""
    job = Job(model=model, refinement=NoRefinement(), settings=CalibrationSettings(samples=DRAWS))
    with tempfile.TemporaryDirectory() as folder:
        return cpu_seconds(calibrate_into, Path(folder), job, pairs, {}) / len(pairs)


def nuts_seconds(model: Model, pairs: Pairs, drivers: int, at_once: int) -> tuple[float, float]:
    """Per driver without compilation, and the compilation."""
    from asbc.exact.drivers import nuts_drivers

    def sample(count: int) -> float:
        seen = transitions(model.simulator, pairs.select(range(count)), STEPS)
        names = pairs.pair_id[:count]
        found = nuts_drivers(model.simulator, seen, names, NutsSettings(), 0, at_once)
        return found.nuts_seconds

    # Five times the drivers: what does not grow is compilation.
    few, many = sample(drivers), sample(5 * drivers)
    cost = (many - few) / (4 * drivers)
    return cost, max(few - drivers * cost, 0.0)


def sbi_seconds(model: Model, pairs: Pairs) -> float:
    """sbi's `sample_batched` with our encoder and a MAF of the same sizes, per driver."""
    from sbi.inference.posteriors import DirectPosterior
    from sbi.neural_nets import posterior_nn
    from sbi.utils import BoxUniform

    prior, states = model.simulator.prior, model.contexts(pairs)
    build_density = posterior_nn(
        "maf",
        hidden_features=64,
        num_transforms=5,
        embedding_net=model.posterior.encoder,
        z_score_x="none",
    )
    density = build_density(prior.sample(len(pairs), stream(0, "z-score")), states).eval()
    posterior = DirectPosterior(density, BoxUniform(prior.low, prior.high))
    options = {"show_progress_bars": False, "reject_outside_prior": False}
    sample = partial(posterior.sample_batched, (DRAWS,), x=states, **options)
    return cpu_seconds(sample) / len(pairs)


def row(residual: str, what: str, seconds: float, ours: float) -> str:
    """One line of the table."""
    numbers = (1000 * seconds, 1 / seconds, seconds / ours)
    return f"| {residual} | {what} | " + " | ".join(f"{x:.3g}" for x in numbers) + " |"


def measure(drivers: int, nuts_drivers: int) -> str:
    """The table, in Markdown."""
    lines = [
        "| residual | method | CPU ms per driver | drivers per CPU second | times calibrate |",
        "|---|---|---:|---:|---:|",
    ]
    for residual in ("gaussian", "matern"):
        model = untrained(residual)
        pairs = drive(model.simulator, drivers, STEPS)
        some = pairs.select(np.arange(min(SBI_DRIVERS, drivers)))
        calibrate_seconds(model, some)  # imports and caches
        ours = calibrate_seconds(model, pairs)
        lines.append(row(residual, f"asbc calibrate, {DRAWS} draws", ours, ours))
        sampling = cpu_seconds(model.sample, some, DRAWS, 0) / len(some)
        lines.append(row(residual, "sampling alone", sampling, ours))
        if importlib.util.find_spec("sbi"):
            lines.append(row(residual, "sbi sample_batched", sbi_seconds(model, some), ours))
        for at_once in (1, nuts_drivers):
            cost, compiled = nuts_seconds(model, pairs, nuts_drivers, at_once)
            what = f"NUTS, {at_once} at once (and {compiled:.0f} s to compile)"
            lines.append(row(residual, what, cost, ours))
    return "\n".join([*lines, "", f"{drivers} drivers. {peak_memory()}"])


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--drivers", type=int, default=1000, help="drivers to calibrate")
    parser.add_argument(
        "--nuts-drivers", type=int, default=2, help="drivers NUTS samples, and 5 times that"
    )
    arguments = parse(parser)
    table = measure(arguments.drivers, arguments.nuts_drivers)
    report(__doc__, table, arguments.publish)


if __name__ == "__main__":
    main()
