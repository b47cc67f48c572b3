"""Scores on real validation pairs after every round, for the convergence figure."""

from collections.abc import Callable

import pytorch_lightning as pl

from asbc.data.pairs import Pairs
from asbc.data.source import DataSource
from asbc.data.windows import evaluation_windows
from asbc.errors import InputError
from asbc.evaluation.protocol import EvaluationSettings, score_windows
from asbc.evaluation.scores import HEADLINE, SCORES
from asbc.evaluation.window_draws import readable, sample_pairs
from asbc.posterior.estimator import PosteriorEstimator
from asbc.simulator import Simulator
from asbc.training.loop import Row
from asbc.types import Density


def validation_scores(
    posterior: Density,
    simulator: Simulator,
    validation: Pairs,
    context_steps: int,
    pairs: int = 20,
    samples: int = 100,
    first_start: int = 0,
) -> dict[str, float]:
    """The headline scores of the paper's windows on the first `pairs` validation pairs.

    Windows start at sample `first_start` or later.

    Returns:
        `validation_rmse` and so on, the means over s, v and a, and each by variable.
        The noise is the same at every call, so rounds differ by their posterior only.
    """
    some = validation.select(range(min(pairs, len(validation))))
    draws = sample_pairs(posterior, some, context_steps, samples, seed=0)
    settings = EvaluationSettings()
    windows = evaluation_windows(
        some, settings.horizon, settings.stride, settings.max_windows, first_start
    )
    if not len(windows.pair):
        raise InputError(
            f"callbacks=monitor: no window of {settings.horizon} steps fits into the "
            f"{len(some)} validation pairs; use longer pairs, or callbacks=default"
        )
    table = score_windows(
        simulator,
        draws.theta,
        some,
        windows,
        settings.residual_prefix_steps,
        settings.residual_prefix_noise,
    ).table
    row: dict[str, float] = {}
    for score in SCORES:
        if score.table == HEADLINE:
            means = {f"validation_{metric}": table[metric].mean() for metric in score.columns}
            row[f"validation_{score.name}"] = float(sum(means.values()) / len(means))
            row |= {name: float(value) for name, value in means.items()}
    return row


RoundScore = Callable[[Density, Simulator, Pairs, int], Row]


class ValidationMonitor(pl.Callback):
    """Adds scores of the round's posterior to its row of rounds.csv.

    They do not influence training: the loop stops by its synthetic hold-out, as in the paper.

    Args:
        score: called with the posterior, the simulator, the validation pairs and the context's
            length; returns the columns to add.
        simulator: the forward model.
        data: the run's data.
    """

    def __init__(self, score: RoundScore, simulator: Simulator, data: DataSource) -> None:
        self.score = score
        self.simulator = simulator
        self.data = data
        self._validation: Pairs | None = None

    def on_round_end(self, estimator: PosteriorEstimator, round: int) -> Row:
        """The columns of one round."""
        posterior = estimator.posterior
        if self._validation is None:  # read at the first round's end
            self._validation = readable(self.data, posterior).splits().validation
        return self.score(posterior, self.simulator, self._validation, self.data.context_steps)
