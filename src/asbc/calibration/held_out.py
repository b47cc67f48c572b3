"""Which of several models predicts a driver best, on windows that none of them has seen.

Needs no likelihood: each model's posterior, from the driver's context, predicts windows after it,
and the Energy Score says how well. So an IDM with a residual and a black box can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from scipy import stats

from asbc.data.history import FIRST
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, evaluation_windows
from asbc.errors import InputError
from asbc.evaluation.protocol import score_windows
from asbc.evaluation.scores import SCORES, VARIABLES
from asbc.trained_model import Model
from asbc.utils.progress import Stopwatch

ENERGY = tuple(score for score in SCORES if score.name == "es")
# Windows of 10 s at the data's usual 5 Hz, side by side so that they count as separate evidence.
HORIZON, MOST_WINDOWS, DRAWS = 50, 20, 200
# Fewer windows decide nothing; level of the two-sided test that a winner passes.
LEAST_WINDOWS, LEVEL = 3, 0.05


@dataclass(frozen=True, kw_only=True)
class HeldOutComparison:
    """Energy Scores of the run that calibrates and of others.

    Args:
        models: the other runs'.
    """

    models: Sequence[Model]
    needs_weights = False

    def check(self, model: Model) -> None:
        """Raise unless the models can predict the same windows."""
        for other in self.models:
            if other.simulator.dt != model.simulator.dt:
                raise InputError(
                    f"compare_run has a time step of {other.simulator.dt:g} s, the run one of "
                    f"{model.simulator.dt:g} s; windows compare only at the same one"
                )

    def fingerprint(self) -> str:
        """What the columns depend on besides the run's own weights."""
        return " ".join(model.fingerprint() for model in self.models)

    def columns(
        self,
        model: Model,
        pairs: Pairs,
        found: Mapping[str, np.ndarray],
        seed: int,
        watch: Stopwatch,
    ) -> dict[str, np.ndarray]:
        """A score for each driver and model, lower is better, and who wins beyond noise.

        A score is the mean over gap, speed and acceleration of the Energy Score relative to the
        mean of all models for this driver: 0.9 is 10% better than the average of them.

        Predictions are from the first context of each pair, also where the run's own posterior
        is that of a driver with everything recorded: nothing would be held out then.
        """
        rows = {name: row for row, name in enumerate(model.names(pairs))}
        every = [replace(each, context=FIRST) for each in (model, *self.models)]
        names = distinct([each.residual for each in every])
        with watch("comparison"):
            first = max(each.context_steps for each in every)
            if model.by_driver:  # pairs may be shorter than a context
                pairs = pairs.select(torch.nonzero(pairs.lengths > first + HORIZON).flatten())
            windows = evaluation_windows(pairs, HORIZON, HORIZON, MOST_WINDOWS, first)
            tables = [_scored(each, pairs, windows, seed) for each in every]
        energies = [f"es_{x}" for x in VARIABLES]
        scores = np.stack([table.reindex(columns=energies) for table in tables])
        owners = pairs.follower if model.by_driver else pairs.pair_id
        row_of = np.array([rows[owner] for owner in owners], dtype=np.int64)
        place = row_of[windows.pair.numpy()]
        results = [verdict(scores[:, place == i]) for i in range(len(rows))]
        columns = {"held_out_windows": np.bincount(place, minlength=len(rows))}
        columns |= {
            f"score_{name}": np.array([r[0][k] for r in results]) for k, name in enumerate(names)
        }
        best = [names[r[1]] if r[1] is not None else "undecided" for r in results]
        return columns | {"best_model": np.array(best, dtype=object)}


def _scored(model: Model, pairs: Pairs, windows: EvaluationWindows, seed: int) -> pd.DataFrame:
    """The Energy Scores of a model, a row per window."""
    if not len(pairs):
        return pd.DataFrame()
    theta = model.sample(pairs, DRAWS, seed).theta
    return score_windows(model.simulator, theta, pairs, windows, seed=seed, scores=ENERGY).table


def verdict(scores: np.ndarray) -> tuple[np.ndarray, int | None]:
    """Relative scores (model,) of one driver, and which model wins beyond noise, if one does.

    It must be better than every other by a t-test over windows (paired, two-sided).

    Args:
        scores: Energy Scores (model, window, variable).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = rng.uniform(1, 2, (2, 10, 3))
        >>> verdict(np.concatenate([scores, scores[:1] / 2]))[1]
        2
        >>> verdict(scores)[1] is None
        True
    """
    count = scores.shape[1]
    if not count:
        return np.full(len(scores), np.nan), None
    scale = np.maximum(scores.mean(axis=(0, 1)), 1e-12)
    windows = (scores / scale).mean(-1)  # (model, window)
    mean = windows.mean(1)
    best = int(mean.argmin())
    if count < LEAST_WINDOWS:
        return mean, None
    bound = stats.t.ppf(1 - LEVEL / 2, count - 1)
    lead = np.delete(windows, best, axis=0) - windows[best]
    error = lead.std(axis=1, ddof=1) / np.sqrt(count)
    return mean, best if bool((lead.mean(1) > bound * error).all()) else None


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that occur again.

    Example:
        >>> distinct(["matern", "sumo_acc", "matern"])
        ['matern', 'sumo_acc', 'matern_2']
    """
    seen = pd.Series(names).groupby(list(names)).cumcount()
    return [name if k == 0 else f"{name}_{k + 1}" for name, k in zip(names, seen, strict=True)]
