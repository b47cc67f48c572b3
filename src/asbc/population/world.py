"""Where scenarios take place, and what each of them has to offer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from asbc.calibration.model import Model
from asbc.data.pairset import PairSet
from asbc.data.source import DataSource
from asbc.population.population import Population
from asbc.utils.checks import InputError
from asbc.utils.progress import progress

# Drivers whose posteriors are drawn at once.
CHUNK = 256


@dataclass(frozen=True)
class World:
    """What a scenario works with.

    Attributes:
        model: law, residual process and kinematics, as trained.
        population: where drivers come from.
        source: recorded leaders, read only if a scenario asks for them.
        folder: where files go.
        seed: all randomness.
    """

    model: Model
    population: Population
    source: DataSource
    folder: Path
    seed: int

    def pair(self, name: str | int | None) -> int:
        """Position of a recorded pair by its id, with or without the recording; None: longest."""
        pairs = self.source.pairs()
        if name is None:
            return int(pairs.lengths.argmax())
        wanted = str(name)
        found = [i for i, p in enumerate(pairs.pair_id) if wanted in (p, p.partition("/")[2])]
        if len(found) != 1:
            problem = "matches several pairs" if found else "is not in the data"
            raise InputError(
                f"scenario.pair={wanted} {problem} ({len(pairs)} pairs: "
                f"{', '.join(pairs.pair_id[:3])}, ...)"
            )
        return found[0]


class Scenario(Protocol):
    """One thing to do with a population; built from a file of the `scenario` config group."""

    def run(self, world: World) -> str:
        """Write files into the world's folder; returns the closing text."""
        ...


def posterior_population(model: Model, pairs: PairSet, samples: int, seed: int) -> Population:
    """The population of all pairs' posteriors, `samples` draws each."""
    places = torch.arange(len(pairs)).split(CHUNK)
    theta = [
        model.sample(pairs.select(place), samples, seed).theta
        for place in progress(places, "posteriors", total=len(places))
    ]
    return Population.pool(model.simulator.prior, torch.cat(theta))
