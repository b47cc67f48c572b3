from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from asbc.design.space import DesignSpace
from asbc.training.datamodule import SimulationDataModule
from asbc.training.run import observed_subset
from asbc.training.settings import validate

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def build(tiny):
    """Build the estimator and the data module of a tiny run, with further overrides."""

    def make(*overrides: str):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("train", [*tiny, *overrides])
        OmegaConf.resolve(cfg)
        torch.manual_seed(cfg.seed)
        simulator = instantiate(cfg.robust)
        train = instantiate(cfg.data).splits().train
        size = cfg.acquisition.subset_size
        subset = observed_subset(train, cfg.data.context_steps, size, cfg.seed)
        space = DesignSpace(simulator.prior, instantiate(cfg.bank)(train), subset, cfg.seed)
        strategy = instantiate(cfg.acquisition.strategy, _convert_="all")
        data = SimulationDataModule(
            space, simulator, strategy, validate(cfg), cfg.acquisition.correction
        )
        return instantiate(cfg.estimator), data

    return make
