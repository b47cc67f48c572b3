"""Glue of a training run: from built components to a fitted posterior."""

import logging
import secrets
import warnings
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.data.pairset import PairSet
from asbc.posterior.estimator import PosteriorEstimator
from asbc.training.checkpoint import ResumeCheckpoint
from asbc.training.datamodule import SimulationDataModule
from asbc.training.folder import RunFolder
from asbc.training.loggers import close_wandb
from asbc.training.rounds import RoundCallback
from asbc.utils.random import stream


def quiet_lightning() -> None:
    """Silence Lightning's notes on devices and loading, which tell the user nothing here."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")


def draw_seed() -> int:
    """A seed nobody chose, for runs that ask for none."""
    return secrets.randbelow(2**31)


def observed_subset(train: PairSet, context_steps: int, size: int, seed: int) -> Tensor:
    """X_sub: contexts (size, steps, 3) of training pairs drawn once, without replacement."""
    chosen = stream(seed, "observed-subset").permutation(len(train))[:size]
    return train.select(chosen).contexts(context_steps)


def loop_callbacks(
    loop: Callable[..., RoundCallback], data: SimulationDataModule, folder: RunFolder
) -> list[pl.Callback]:
    """The callbacks that make a fit a resumable loop of the chosen kind."""
    return [
        loop(settings=data.settings, seed=data.space.seed, folder=folder.path),
        ResumeCheckpoint(folder.last),
    ]


def fit(
    trainer: pl.Trainer,
    estimator: PosteriorEstimator,
    data: SimulationDataModule,
    checkpoint: str | None,
    folder: RunFolder,
) -> RoundCallback:
    """Run the loop, from the checkpoint if one is given; the estimator ends with the best weights.

    Returns:
        The callback, which knows the best round, its loss and the tables.
    """
    try:
        trainer.fit(estimator, datamodule=data, ckpt_path=checkpoint)
    finally:
        close_wandb(trainer.loggers, folder)
    return next(c for c in trainer.callbacks if isinstance(c, RoundCallback))  # type: ignore[attr-defined]


def last_words(folder: RunFolder, loop: RoundCallback) -> str:
    """What the user sees at the end: the run folder, the result and the next command."""
    if loop.best_round < 0:
        return f"run folder: {folder.shown}\nno round was finished, so there is no model"
    return (
        f"run folder: {folder.shown}\n"
        f"best round {loop.best_round}, hold-out loss {loop.best_loss:.4f}\n"
        f"next: python evaluate.py run={folder.shown}"
    )


def load_best(estimator: PosteriorEstimator, folder: RunFolder) -> dict[str, Any]:
    """Load the best round's weights into an estimator built from the run's config.

    Returns:
        The round and the hold-out loss they belong to.
    """
    content = torch.load(folder.best, map_location="cpu", weights_only=True)
    estimator.on_load_checkpoint(content)
    estimator.load_state_dict(content["state_dict"])
    return {"round": content["round"], "loss": content["loss"]}
