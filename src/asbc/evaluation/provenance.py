"""Which pairs are evaluated, and how they relate to what the model was trained on."""

import logging
import pickle
from collections.abc import Mapping
from typing import Any

from asbc.data.pairset import PairSet
from asbc.data.source import DataSource
from asbc.data.summary import DataSummary, summarise
from asbc.data.windows import LeaderWindows, leader_windows
from asbc.evaluation.trained_run import TrainedRun
from asbc.posterior.estimator import PosteriorEstimator
from asbc.training.run import load_best
from asbc.utils.checks import InputError

log = logging.getLogger(__name__)

# Samples between leader windows that simulated drivers follow, as in the leader bank.
STRIDE = 50


def load_posterior(estimator: PosteriorEstimator, run: TrainedRun) -> int:
    """Load the run's best weights into an estimator built from its config; returns their round."""
    try:
        return int(load_best(estimator, run.folder)["round"])
    except (RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{run.folder.best}: its weights do not fit the model that this version builds from "
            f"{run.folder.config.name} ({str(error).splitlines()[0]}); train again"
        ) from error


def pairs_of_split(source: DataSource, split: str) -> tuple[PairSet, DataSummary]:
    """The pairs to evaluate and a summary of where they come from."""
    if split == "all":
        # Not split at all: a file of three drivers can be evaluated, but not divided.
        pairs = source.pairs()
        return pairs, summarise(source.description, pairs, {}, source.drops)
    splits = source.splits()
    return getattr(splits, split), splits.summary


def is_other_data(trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> bool:
    """Whether two data sections name different data; where tables are cached does not matter."""
    ignored = {"cache_dir", "context_steps"}
    keys = (set(trained) | set(evaluated)) - ignored
    return any(trained.get(key) != evaluated.get(key) for key in keys)


def training_windows(source: DataSource, pairs: PairSet, steps: int) -> tuple[LeaderWindows, str]:
    """Leaders of the training split to simulate drivers behind, and a note if they are missing.

    Args:
        source: the run's training data.
        pairs: the evaluated pairs, which stand in where the training data are gone.
        steps: window length.
    """
    try:
        return leader_windows(source.splits().train, steps, STRIDE), ""
    except (InputError, OSError) as error:
        log.warning("training data cannot be read: %s", error)
        return leader_windows(pairs, steps, STRIDE), (
            "The training data could not be read, so drivers were simulated behind the leaders of "
            "the evaluated pairs to check the posterior."
        )


def notes_on_data(
    trained: Mapping[str, Any],
    evaluated: Mapping[str, Any],
    trained_on: str,
    evaluated_on: str,
    split: str,
) -> list[str]:
    """Facts about the data that a reader must see before the scores."""
    notes = []
    if is_other_data(trained, evaluated):
        notes.append(
            f"Evaluated on other data than it was trained on: trained on {trained_on}, evaluated "
            f"on {evaluated_on}."
        )
    elif split in ("train", "all"):
        notes.append(
            "These pairs include the training split: their leaders were used to train the model."
        )
    if trained["context_steps"] != evaluated["context_steps"]:
        notes.append(
            f"Contexts of {evaluated['context_steps']} samples; the model was trained on contexts "
            f"of {trained['context_steps']}."
        )
    return notes
