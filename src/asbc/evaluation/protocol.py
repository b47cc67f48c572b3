"""The paper's window protocol: its settings, and the scores of every window under them.

Every pair is cut into windows. Each window is predicted from its start with every parameter draw
of its pair (`asbc.evaluation.predict`) and scored against what was observed
(`asbc.evaluation.scores`); some draws also give the driving measures of `asbc.evaluation.driving`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.data.history import FIRST, check_context
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, gather
from asbc.errors import InputError
from asbc.evaluation.driving import driving_measures
from asbc.evaluation.observation import (
    EXACT,
    Recorded,
    check_observation,
    observation_model,
)
from asbc.evaluation.predict import Draws, check_prediction_input, predict_windows
from asbc.evaluation.scores import SCORES, VARIABLES, Score, score_all
from asbc.simulator import Rollout, Simulator
from asbc.utils.progress import progress

# Residuals before a window that its own go on from, and their error; conf/evaluation says why.
PREFIX_STEPS, PREFIX_NOISE = 2, 1e-2
SPLITS = ("train", "validation", "test", "all")
# The settings that decide whether two results may be compared. What a method predicts from
# (`context`) and what it adds to gaps (`observation`) make it a row of its own instead.
PROTOCOL_FIELDS = (
    *("split", "horizon", "stride", "max_windows", "samples"),
    *("residual_prefix_steps", "residual_prefix_noise"),
)


@dataclass(frozen=True)
class EvaluationSettings:
    """The paper's protocol by default.

    Args:
        split: pairs to evaluate: train, validation, test or all.
        horizon: steps per window (H).
        stride: steps between window starts (S).
        max_windows: windows per pair at most (m).
        samples: posterior draws per pair (n).
        residual_prefix_steps: observed residuals before a window start that a correlated residual
            continues from; 0 starts it afresh.
        residual_prefix_noise: variance of their observation error relative to sigma^2.
        context: what an amortized posterior reads: the `first` T_E samples of a pair (the
            paper's), the `latest` T_E before each window's start, or `all` of the driver before
            it (`asbc.data.history`), for models trained with history=segments.
        observation: `exact` predicts the drive, `recorded` it with the recording's own error
            (`asbc.evaluation.observation`).
        bootstrap: resampled sets of pairs behind each interval.
        simulated_drivers: simulated drivers for the checks of the posterior; 0 skips them.
        posterior_draws: posterior draws for each of them.
        pairs: ids of pairs to draw as case studies, besides the best, median and worst.
        extra_scores: scores of your own, besides `asbc.evaluation.scores.SCORES`.
        seed: all randomness of the evaluation.
        chunk: windows in memory at once; changes no result.
    """

    split: str = "test"
    horizon: int = 50
    stride: int = 20
    max_windows: int = 20
    samples: int = 500
    residual_prefix_steps: int = PREFIX_STEPS
    residual_prefix_noise: float = PREFIX_NOISE
    context: str = FIRST
    observation: str = EXACT
    bootstrap: int = 1000
    simulated_drivers: int = 300
    posterior_draws: int = 199
    pairs: Sequence[str | int] = ()
    extra_scores: Sequence[Score] = ()
    seed: int = 0
    chunk: int = 16

    def __post_init__(self) -> None:
        for name in ("pairs", "extra_scores"):  # lists in a config file
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.split not in SPLITS:
            raise InputError(f"evaluation.split={self.split}; expected one of {', '.join(SPLITS)}")
        check_context(self.context)
        check_observation(self.observation, "evaluation")
        smallest = {
            "horizon": 1,
            "stride": 1,
            "max_windows": 1,
            "samples": 2,
            "residual_prefix_steps": 0,
            "residual_prefix_noise": 0,
            "bootstrap": 1,
            "simulated_drivers": 0,
            "posterior_draws": 9,
            "chunk": 1,
        }
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InputError(
                    f"evaluation.{name}={getattr(self, name)}; expected at least {least}"
                )
        self._check_extra_scores()

    def _check_extra_scores(self) -> None:
        for extra in self.extra_scores:
            if not isinstance(extra, Score):
                raise InputError(
                    f"evaluation.extra_scores: {extra!r} is no score; expected "
                    "asbc.evaluation.scores.Score, or a function that returns one as _target_"
                )
        names = [score.name for score in self.scores]
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise InputError(
                f"evaluation.extra_scores: there are two scores called {twice[0]}; choose "
                "another name"
            )

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores of a window."""
        return (*SCORES, *self.extra_scores)

    def observation_model(self, context_steps: int) -> Recorded | None:
        """What is added to predicted gaps, given the length of contexts; None: nothing."""
        return observation_model(self.observation, context_steps, self.context)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `metrics.json`; a score of your own by its name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "pairs": [str(name) for name in self.pairs],
            "extra_scores": [score.name for score in self.extra_scores],
        }


# Simulated driving measures kept per window, enough for a distribution over all windows.
DRIVING_DRAWS = 50


@dataclass(frozen=True)
class WindowScores:
    """Scores of windows, and the driving measures of some simulated draws of each.

    Attributes:
        table: a row per window: `pair_id`, `start`, every score as `<score>_<variable>`,
            `collision_rate`, and each driving measure as `observed_<measure>`.
        simulated: by measure, (window, draw).
    """

    table: pd.DataFrame
    simulated: dict[str, np.ndarray]


def score_windows(
    simulator: Simulator,
    theta: Draws,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int = PREFIX_STEPS,
    prefix_noise: float = PREFIX_NOISE,
    seed: int = 0,
    chunk: int = 16,
    scores: Sequence[Score] = SCORES,
    observation: Recorded | None = None,
) -> WindowScores:
    """Roll out and score every window; any source of parameter draws will do.

    Args:
        simulator: see `predict_windows`, as for the other arguments.
        theta: (pair, draw, dim) parameter draws of every pair, each window's own, or none.
        pairs: observed pairs.
        windows: windows to score.
        prefix_steps: observed residuals before each start.
        prefix_noise: their noise relative to sigma^2.
        seed: see `predict_windows`.
        chunk: windows in memory at once (about 5 MB each at 500 draws); changes no result.
        scores: what to compute of each window.
        observation: see `predict_windows`.
    """
    check_prediction_input(simulator, theta, pairs)
    count = len(windows.pair)
    # Whole columns, filled chunk by chunk: small pieces kept between the chunks' large tensors
    # would fragment the heap, and memory would grow with the number of windows.
    columns: dict[str, np.ndarray] = {}
    simulated: dict[str, np.ndarray] = {}
    parts = torch.arange(count).split(chunk)
    for part in progress(parts if count else (), "windows", total=len(parts)):
        some = EvaluationWindows(windows.pair[part], windows.start[part], windows.horizon)
        with torch.no_grad():
            rollout = predict_windows(
                simulator, theta, pairs, some, prefix_steps, prefix_noise, seed, observation
            )
            _fill(columns, part, count, _scores(rollout, pairs, some, scores))
            _fill(simulated, part, count, _measures(rollout))
    names = [pairs.pair_id[p] for p in windows.pair.tolist()]
    table = pd.DataFrame({"pair_id": names, "start": windows.start.numpy(), **columns})
    return WindowScores(table, simulated)


def observed_series(pairs: Pairs, windows: EvaluationWindows) -> dict[str, Tensor]:
    """Gap, speed, approach rate and acceleration as recorded, each (window, horizon + 1)."""
    pair, start, horizon = windows
    names = ("gap", "speed", "leader_speed", "acceleration")
    series = {
        name: gather(getattr(pairs, name), pairs.offsets, pair, start, horizon + 1)
        for name in names
    }
    series["approach_rate"] = series["speed"] - series.pop("leader_speed")
    return series


def _scores(
    rollout: Rollout, pairs: Pairs, windows: EvaluationWindows, scores: Sequence[Score]
) -> dict[str, Tensor]:
    observed = observed_series(pairs, windows)
    columns: dict[str, Tensor] = {}
    for x, variable in VARIABLES.items():
        # The state at the start is given, so scoring begins one step later.
        samples = getattr(rollout, variable.series)[..., 1:]
        values = score_all(samples, observed[variable.series][..., 1:], scores)
        columns |= {f"{score}_{x}": value for score, value in values.items()}
    columns["collision_rate"] = rollout.collided.double().mean(dim=1)
    measures = driving_measures(**{name: x[..., 1:] for name, x in observed.items()})
    return columns | {f"observed_{name}": value for name, value in measures.items()}


def _measures(rollout: Rollout) -> dict[str, Tensor]:
    names = ("gap", "speed", "approach_rate", "acceleration")
    return driving_measures(
        **{name: getattr(rollout, name)[:, :DRIVING_DRAWS, 1:] for name in names}
    )


def _fill(
    columns: dict[str, np.ndarray], part: Tensor, count: int, values: dict[str, Tensor]
) -> None:
    for name, value in values.items():
        if name not in columns:
            columns[name] = np.empty((count, *value.shape[1:]), dtype=value.numpy().dtype)
        columns[name][part.numpy()] = value.numpy()
