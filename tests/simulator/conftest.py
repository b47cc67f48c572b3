"""The simulator that the config describes, for the simulator's tests."""

from collections.abc import Callable
from functools import cache

import pytest

from asbc.config import build, compose
from asbc.simulator import Simulator


@pytest.fixture(scope="session")
def build_simulator() -> Callable[..., Simulator]:
    """A function that builds the simulator from the config groups, as the commands do."""

    @cache
    def make(residual: str | None = None, model: str = "idm", prior: str = "paper") -> Simulator:
        groups = {"model": model, "residual": residual, "prior": prior}
        overrides = [f"{group}={name}" for group, name in groups.items() if name]
        return build(compose("train", overrides).simulator)

    return make
