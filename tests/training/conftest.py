import pytest
from omegaconf import OmegaConf

from asbc.config import build as build_section
from asbc.config import compose
from asbc.training.datamodule import SimulationDataModule
from asbc.training.train import build_model, build_strategy, design_space


class Builder:
    """Builds the parts of a tiny run, with further overrides, and fits them."""

    def __init__(self, tiny: list[str]) -> None:
        self.tiny = tiny

    def __call__(self, *overrides: str):
        """The estimator and the data module."""
        cfg = compose("train", [*self.tiny, *overrides, "folder=unused"])
        OmegaConf.resolve(cfg)
        acquisition, settings = build_strategy(OmegaConf.to_container(cfg))
        simulator, estimator = build_model(cfg)
        splits = build_section(cfg.data).splits()
        space = design_space(cfg, simulator, splits, acquisition)
        transform, law = estimator.posterior.transform, build_section(cfg.history.law)
        data = SimulationDataModule(space, simulator, acquisition, settings, transform, law)
        return estimator, data

    def fit(self, estimator, data, *callbacks) -> None:
        """Fit as a run does, silently and under given callbacks only."""
        trainer = build_section(
            compose("train", self.tiny).trainer,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
        )
        trainer.fit(estimator, datamodule=data)


@pytest.fixture
def build(tiny) -> Builder:
    return Builder(tiny)
