"""Cost of a driver's posterior: calibrate against NUTS per driver, and against sbi's sampler.

Run `python benchmarks/bench_calibration.py`; it prints a table and writes it to `--output` too.
All figures are CPU time (user and system) per driver, everything in one process with one torch
thread. The network has the default sizes; how well it is trained does not change what it costs.
`calibrate` includes all files it writes. NUTS is `baseline=unpooled` with its default settings,
its compilation counted apart. The sbi rows need the extra `benchmarks`.
"""

import argparse
import importlib.util
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from output import publish

from asbc.baselines.method import Task
from asbc.baselines.unpooled import Unpooled
from asbc.calibration.calibrate import CalibrationSettings, Job, calibrate
from asbc.calibration.refinement import NoRefinement
from asbc.data.pairs import Pairs
from asbc.exact.diagnostics import NutsSettings
from asbc.run import Model
from asbc.utils.random import standard_normal, stream

CONF = Path(__file__).parents[1] / "conf"
STEPS, DRAWS, SBI_DRIVERS = 75, 500, 40


def build(residual: str) -> Model:
    """An untrained network and simulator with the default groups of the configuration."""
    overrides = [f"residual={residual}", "transform=bounded", "data=pairs", "data.path=none"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides)
    torch.manual_seed(0)
    posterior = instantiate(config.estimator)
    return Model(posterior.eval(), instantiate(config.simulator), STEPS, residual)


def simulate_pairs(model: Model, count: int) -> Pairs:
    """Drivers of the prior behind wandering leaders."""
    theta = model.simulator.prior.sample(count, stream(0, "theta"))
    leader = 12 + 0.3 * standard_normal(stream(0, "leader"), count, STEPS).cumsum(1)
    leader = leader.clamp_min(0.5)
    gap = model.simulator.law.equilibrium_gap(theta, leader[:, 0])
    drive = model.simulator.rollout(theta, leader, gap, leader[:, 0], stream(0, "residual"))
    names = tuple(f"r/{i}" for i in range(count))
    return Pairs(
        pair_id=names,
        follower=names,
        recording=("r",) * count,
        follower_class=("car",) * count,
        dt=model.simulator.dt,
        offsets=torch.arange(count + 1) * STEPS,
        gap=drive.gap.flatten().clamp_min(0.1),
        speed=drive.speed.flatten(),
        leader_speed=leader.flatten(),
        acceleration=drive.acceleration.flatten(),
    )


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def calibrate_seconds(model: Model, pairs: Pairs) -> float:
    """Per driver, all files written."""
    job = Job(model=model, refinement=NoRefinement(), settings=CalibrationSettings(samples=DRAWS))
    with tempfile.TemporaryDirectory() as folder:
        return cpu_seconds(lambda: calibrate(job, pairs, Path(folder), {})) / len(pairs)


def nuts_seconds(model: Model, pairs: Pairs, drivers: int, at_once: int) -> tuple[float, float]:
    """Per driver without compilation, and the compilation."""
    task = Task(model.simulator, pairs, pairs, STEPS, DRAWS, 0)

    def sample(count: int, settings: NutsSettings) -> float:
        method = Unpooled(drivers=count, drivers_at_once=at_once, nuts=settings)
        return cpu_seconds(lambda: method.fit(task))

    sample(1, NutsSettings(chains=4, warmup=1, draws=4))  # imports
    # Five times the drivers: what does not grow is compilation.
    few, many = sample(drivers, NutsSettings()), sample(5 * drivers, NutsSettings())
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
        embedding_net=model.posterior.posterior.encoder,
        z_score_x="none",
    )
    density = build_density(prior.sample(len(pairs), stream(0, "z-score")), states).eval()
    posterior = DirectPosterior(density, BoxUniform(prior.low, prior.high))
    options = {"show_progress_bars": False, "reject_outside_prior": False}
    return cpu_seconds(lambda: posterior.sample_batched((DRAWS,), x=states, **options)) / len(
        pairs
    )


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
        model = build(residual)
        pairs = simulate_pairs(model, drivers)
        some = pairs.select(np.arange(SBI_DRIVERS))
        calibrate_seconds(model, some)  # imports and caches
        ours = calibrate_seconds(model, pairs)
        lines.append(row(residual, f"calibrate, {DRAWS} draws", ours, ours))
        sampling = cpu_seconds(partial(model.sample, some, DRAWS, 0)) / SBI_DRIVERS
        lines.append(row(residual, "sampling alone", sampling, ours))
        if importlib.util.find_spec("sbi"):
            theirs = sbi_seconds(model, some)
            lines.append(row(residual, "sbi sample_batched", theirs, ours))
        for at_once in (1, nuts_drivers):
            cost, compiled = nuts_seconds(model, pairs, nuts_drivers, at_once)
            what = f"NUTS, {at_once} at once (and {compiled:.0f} s to compile)"
            lines.append(row(residual, what, cost, ours))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return "\n".join([*lines, "", f"{drivers} drivers; peak memory {peak:.0f} MB."])


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    parser.add_argument("--drivers", type=int, default=1000, help="drivers to calibrate")
    parser.add_argument(
        "--nuts-drivers", type=int, default=2, help="drivers NUTS samples, and 5 times that"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = measure(arguments.drivers, arguments.nuts_drivers)
    publish(table, arguments.output)


if __name__ == "__main__":
    main()
