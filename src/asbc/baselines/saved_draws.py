"""A training run against the saved draws of `baseline=unpooled`, driver by driver."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from asbc.baselines.agreement import agreement, require_same_posterior, summarise_agreement
from asbc.baselines.method import require_extra, take_draws
from asbc.data.pairset import PairSet
from asbc.evaluation.draws import sample_pairs
from asbc.evaluation.provenance import load_posterior, pairs_of_split
from asbc.evaluation.trained_run import TrainedRun
from asbc.training.folder import RunFolder
from asbc.utils.checks import InputError
from asbc.utils.random import stream
from asbc.utils.stopwatch import Stopwatch

DRAWS = "posterior.nc"

# Makes an object of a config section, i.e. `hydra.utils.instantiate`.
Build = Callable[[Any], Any]


@dataclass(frozen=True)
class ExactDraws:
    """A finished run of `baseline=unpooled`.

    Attributes:
        config: its resolved config.
        names: of the parameters.
        drivers: ids of the pairs it sampled.
        theta: (chain, draw, driver, dim).
        seconds_per_driver: CPU seconds that NUTS took.
    """

    config: dict[str, Any]
    names: tuple[str, ...]
    drivers: tuple[str, ...]
    theta: np.ndarray
    seconds_per_driver: float

    @classmethod
    def read(cls, folder: Path) -> "ExactDraws":
        """From the folder of the run."""
        require_extra()
        import arviz as az

        metrics = json.loads((folder / "evaluation" / "metrics.json").read_text())
        seconds = metrics.get("baseline", {}).get("seconds_per_driver")
        if seconds is None:
            raise InputError(f"{folder}: not a run of baseline=unpooled")
        theta = az.from_netcdf(str(folder / DRAWS), engine="h5netcdf")["posterior"]["theta"]
        return cls(
            yaml.safe_load(RunFolder(folder).config.read_text()),
            tuple(map(str, theta.parameter.values)),
            tuple(map(str, theta.driver.values)),
            theta.values,
            seconds,
        )

    def pairs(self, build: Build) -> PairSet:
        """The pairs behind the draws, in their order."""
        every, _ = pairs_of_split(build(self.config["data"]), self.config["evaluation"]["split"])
        place = {name: i for i, name in enumerate(every.pair_id)}
        if missing := [name for name in self.drivers if name not in place]:
            raise InputError(f"the data have changed: no pair {missing[0]} any more")
        return every.select([place[name] for name in self.drivers])


def compare_runs(
    exact_folder: Path, trained: TrainedRun, build: Build, output: Path
) -> dict[str, Any]:
    """Agreement of the run's posterior with the exact draws, as a summary over drivers.

    Writes agreement.csv, a row per driver, and agreement.json, the summary.

    Args:
        exact_folder: of a finished run of `baseline=unpooled`.
        trained: a training run with the same posterior.
        build: makes an object of a config section.
        output: folder of the two files.
    """
    exact = ExactDraws.read(exact_folder)
    require_same_posterior(trained.config, exact.config)
    estimator = build(trained.config["estimator"])
    load_posterior(estimator.eval(), trained)
    pairs, seed = exact.pairs(build), exact.config["seed"]
    count = exact.config["evaluation"]["samples"]
    watch = Stopwatch(time.process_time)
    with watch("amortized"):
        sampled = sample_pairs(
            estimator, pairs, exact.config["data"]["context_steps"], count, seed
        )
    table = agreement(
        take_draws(exact.theta, count).transpose(0, 1),
        sampled.theta,
        exact.names,
        exact.drivers,
        stream(seed, "agreement"),
    )
    table.to_csv(output / "agreement.csv", index=False)
    found = summarise_agreement(
        table, exact.seconds_per_driver, watch.seconds["amortized"] / len(pairs)
    )
    (output / "agreement.json").write_text(json.dumps(found, indent=2) + "\n")
    return found
