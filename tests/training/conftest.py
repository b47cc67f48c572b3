from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from asbc.design.proposal import DesignSpace
from asbc.training.datamodule import SimulationDataModule
from asbc.training.settings import validate
from asbc.training.train import observed_subset

CONF = Path(__file__).parents[2] / "conf"


class Builder:
    """Builds the parts of a tiny run, with further overrides, and fits them."""

    def __init__(self, tiny: list[str]) -> None:
        self.tiny = tiny

    def __call__(self, *overrides: str):
        """The estimator and the data module."""
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("train", [*self.tiny, *overrides])
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

    def fit(self, estimator, data, *callbacks) -> None:
        """Fit as train.py does, silently and under given callbacks only."""
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=-1,
            reload_dataloaders_every_n_epochs=1,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=list(callbacks),
        )
        trainer.fit(estimator, datamodule=data)


@pytest.fixture
def build(tiny) -> Builder:
    return Builder(tiny)
