"""Drivers as a population: their posteriors pooled, and new drivers drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from asbc.calibration.export.merge import draws_files
from asbc.data.pairs import Pairs
from asbc.errors import InputError
from asbc.simulator import Prior, Rollout, Simulator
from asbc.trained_model import Model
from asbc.utils.checks import require_finite, require_shape
from asbc.utils.progress import progress

# Pooled draws held in memory; more draws per driver change no figure and no population visibly.
MOST_DRAWS = 200_000
# Drivers whose posteriors are drawn at once.
CHUNK = 256


@dataclass(frozen=True)
class Population:
    """Pooled draws of drivers; every driver has the same weight, rows keep their correlations.

    Attributes:
        names, units: one per column of `theta`.
        theta: (draws, dim).
        drivers: how many drivers the draws come from, each with the same number of rows.

    Example:
        >>> theta = torch.tensor([[30.0, 1.0], [32.0, 1.2], [24.0, 2.0], [26.0, 2.2]])
        >>> population = Population(("v0", "T"), ("m/s", "s"), theta, drivers=2)
        >>> population.mean()
        tensor([28.0000,  1.6000])
        >>> population.sample(2, np.random.default_rng(0)).shape
        torch.Size([2, 2])
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    theta: Tensor
    drivers: int

    def __post_init__(self) -> None:
        require_shape("theta", self.theta, (None, len(self.names)))
        require_finite("theta", self.theta)
        if len(self.theta) == 0:
            raise InputError("a population needs at least one draw")

    @classmethod
    def pool(cls, prior: Prior, theta: Tensor) -> Population:
        """The population of drivers with posterior draws (driver, draw, dim)."""
        require_shape("theta", theta, (None, None, prior.dim))
        return cls(prior.names, prior.units, theta.flatten(0, 1), len(theta))

    @classmethod
    def read(cls, draws: Path, prior: Prior, most: int = MOST_DRAWS) -> Population:
        """The population of a calibration, from its `draws.parquet` or the folder that holds it.

        Of every driver the same number of draws is kept, so that all of them fit in `most` rows;
        of more drivers than that, one draw of as many of them as fit.
        """
        files = [pq.ParquetFile(path) for path in draws_files(Path(draws))]
        if not files:
            raise InputError(f"population: no draws in {draws}; run asbc calibrate first")
        _check_columns(files[0].schema_arrow.names, prior.names, draws)
        columns = ["draw", *prior.names]
        drivers = sum(_count_drivers(file) for file in files)
        # One draw of each driver may be too many still: then of every k-th driver.
        keep, every = max(1, most // max(drivers, 1)), max(1, -(-drivers // most))
        parts, seen = [], 0
        for file in files:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns)
                table = table.filter(pa.compute.less(table["draw"], keep))
                driver = seen + np.arange(len(table)) // keep
                seen += len(table) // keep
                values = np.stack([table[name].to_numpy() for name in prior.names], axis=-1)
                parts.append(values[driver % every == 0])
        theta = torch.from_numpy(np.concatenate(parts).astype(np.float32))
        return cls(prior.names, prior.units, theta, -(-drivers // every))

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """New drivers (n, dim): whole rows, so correlations between parameters are kept."""
        return self.theta[torch.from_numpy(rng.integers(len(self.theta), size=n))]

    def correlation(self) -> Tensor:
        """Correlation matrix (dim, dim) of the pooled draws."""
        return torch.corrcoef(self.theta.double().t()).float()

    def mean(self) -> Tensor:
        """The mean driver, (dim,)."""
        return self.theta.double().mean(0).float()


def _check_columns(found: Sequence[str], names: Sequence[str], path: Path | str) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"population: {path} has no column {', '.join(missing)}; it was made with another "
            "model or residual than this run"
        )


def _count_drivers(file: pq.ParquetFile) -> int:
    """Each driver has exactly one row with draw 0."""
    count = 0
    for group in range(file.num_row_groups):
        draw = file.read_row_group(group, ["draw"])["draw"].to_numpy()
        count += int((draw == 0).sum())
    return count


def posterior_population(model: Model, pairs: Pairs, samples: int, seed: int) -> Population:
    """The population of all pairs' posteriors, `samples` draws each."""
    places = torch.arange(len(pairs)).split(CHUNK)
    theta = [
        model.sample(pairs.select(place), samples, seed).theta
        for place in progress(places, "posteriors", total=len(places))
    ]
    return Population.pool(model.simulator.prior, torch.cat(theta))


def simulate(
    simulator: Simulator,
    population: Population,
    drivers: int,
    leader_speed: Tensor,
    gap: Tensor | float,
    speed: Tensor | float,
    rng: np.random.Generator,
) -> tuple[Tensor, Rollout]:
    """Draw new drivers from the population and let each follow the same leader.

    Args:
        simulator: law, residual process and kinematics.
        population: where drivers come from; correlations between parameters are kept.
        drivers: how many to draw.
        leader_speed: (step,) m/s.
        gap, speed: the state in which every driver starts (m, m/s).
        rng: source of drivers and of their residuals.

    Returns:
        The drivers (drivers, dim) and their drives, each series (drivers, step).
    """
    theta = population.sample(drivers, rng)
    leader = leader_speed.expand(drivers, -1)
    start = theta.new_ones(drivers)
    return theta, simulator.rollout(theta, leader, start * gap, start * speed, rng)
