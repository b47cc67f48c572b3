"""Scores on real validation pairs after every round, for the convergence figure."""

from collections.abc import Callable
from functools import cached_property

import pytorch_lightning as pl

from asbc.data.pairset import PairSet
from asbc.data.source import DataSource
from asbc.posterior.estimator import PosteriorEstimator
from asbc.simulator import Simulator
from asbc.training.tables import Row

Score = Callable[[PosteriorEstimator, Simulator, PairSet, int], Row]


class ValidationMonitor(pl.Callback):
    """Adds scores of the round's posterior to its row of rounds.csv.

    They do not influence training: the loop stops by its synthetic hold-out, as in the paper.

    Args:
        score: called with the estimator, the simulator, the validation pairs and the context's
            length; returns the columns to add.
        simulator: the forward model.
        data: the run's data.
    """

    def __init__(self, score: Score, simulator: Simulator, data: DataSource) -> None:
        self.score = score
        self.simulator = simulator
        self.data = data

    @cached_property
    def validation(self) -> PairSet:
        """The validation split, read at the first round's end."""
        return self.data.splits().validation

    def on_round_end(self, estimator: PosteriorEstimator, round: int) -> Row:
        """The columns of one round."""
        return self.score(estimator, self.simulator, self.validation, self.data.context_steps)
