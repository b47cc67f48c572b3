"""Calibration problems with known parameters for the baselines' tests."""

from collections.abc import Callable

import pytest

from asbc.baselines.method import Task


@pytest.fixture(scope="session")
def task_of(simulators, typical, pairs_of) -> Callable[..., Task]:
    """A function that builds a task of typical drivers."""

    def build(residual: str, known: int = 3, test: int = 2, steps: int = 80, **fields) -> Task:
        simulator = simulators[residual]
        settings = {"context_steps": 40, "samples": 20, "seed": 0} | fields
        pairs = pairs_of(simulator, typical[residual].expand(known, -1), steps, seed=1)
        return Task(
            simulator,
            pairs,
            pairs_of(simulator, typical[residual].expand(test, -1), steps, seed=2),
            **settings,
            validation=pairs.pair_id[:2],
        )

    return build
