"""Builders shared by the simulator's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from asbc.simulator import Simulator

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="session")
def build_simulator() -> Callable[..., Simulator]:
    """A function that builds the simulator from the config groups, as the entry points do."""

    def build(
        residual: str = "gaussian",
        kinematics: str = "paper",
        model: str = "idm",
        prior: str = "paper",
        dt: float = 0.2,
    ) -> Simulator:
        groups = {"model": model, "residual": residual, "prior": prior, "kinematics": kinematics}
        with initialize_config_dir(str(CONF), version_base=None):
            config = compose(overrides=[f"+{group}={name}" for group, name in groups.items()])
        return Simulator(
            law=instantiate(config.model.law),
            residual=instantiate(config.residual.process),
            prior=instantiate(config.prior),
            kinematics=instantiate(config.kinematics),
            dt=dt,
        )

    return build
