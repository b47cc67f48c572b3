"""The paper's window protocol: its settings, and the scores of every window."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, gather
from asbc.errors import InputError
from asbc.evaluation.driving import driving_measures
from asbc.evaluation.predict import check_prediction_input, predict_windows
from asbc.evaluation.scores import score_all
from asbc.simulator import Rollout, Simulator
from asbc.utils.progress import progress

SPLITS = ("train", "validation", "test", "all")
# The settings that decide whether two results may be compared.
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
        bootstrap: resampled sets of pairs behind each interval.
        simulated_drivers: simulated drivers for the checks of the posterior; 0 skips them.
        posterior_draws: posterior draws for each of them.
        pairs: ids of pairs to draw as case studies, besides the best, median and worst.
        seed: all randomness of the evaluation.
        chunk: windows in memory at once; changes no result.
    """

    split: str = "test"
    horizon: int = 50
    stride: int = 20
    max_windows: int = 20
    samples: int = 500
    residual_prefix_steps: int = 5
    residual_prefix_noise: float = 1e-2
    bootstrap: int = 1000
    simulated_drivers: int = 300
    posterior_draws: int = 199
    pairs: Sequence[str | int] = ()
    seed: int = 0
    chunk: int = 16

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InputError(f"evaluation.split={self.split}; expected one of {', '.join(SPLITS)}")
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


VARIABLES = ("s", "v", "a")
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
    theta: Tensor,
    pairs: Pairs,
    windows: EvaluationWindows,
    prefix_steps: int = 5,
    prefix_noise: float = 1e-2,
    seed: int = 0,
    chunk: int = 16,
) -> WindowScores:
    """Roll out and score every window; any source of parameter draws will do.

    Args:
        simulator: see `predict_windows`, as for the other arguments.
        theta: (pair, draw, dim) parameter draws of every pair.
        pairs: observed pairs.
        windows: windows to score.
        prefix_steps: observed residuals before each start.
        prefix_noise: their noise relative to sigma^2.
        seed: see `predict_windows`.
        chunk: windows in memory at once (about 5 MB each at 500 draws); changes no result.
    """
    check_prediction_input(simulator, theta, pairs)
    count = len(windows.pair)
    # Whole columns, filled chunk by chunk: small pieces kept between the chunks' large tensors
    # would fragment the heap, and memory would grow with the number of windows.
    scores: dict[str, np.ndarray] = {}
    simulated: dict[str, np.ndarray] = {}
    parts = torch.arange(count).split(chunk)
    for part in progress(parts if count else (), "windows", total=len(parts)):
        some = EvaluationWindows(windows.pair[part], windows.start[part], windows.horizon)
        with torch.no_grad():
            rollout = predict_windows(
                simulator, theta, pairs, some, prefix_steps, prefix_noise, seed
            )
            _fill(scores, part, count, _scores(rollout, pairs, some))
            _fill(simulated, part, count, _measures(rollout))
    names = [pairs.pair_id[p] for p in windows.pair.tolist()]
    columns = {"pair_id": names, "start": windows.start.numpy(), **scores}
    return WindowScores(pd.DataFrame(columns), simulated)


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


def _scores(rollout: Rollout, pairs: Pairs, windows: EvaluationWindows) -> dict[str, Tensor]:
    observed = observed_series(pairs, windows)
    columns: dict[str, Tensor] = {}
    for variable, name in zip(VARIABLES, ("gap", "speed", "acceleration"), strict=True):
        # The state at the start is given, so scoring begins one step later.
        scores = score_all(getattr(rollout, name)[..., 1:], observed[name][..., 1:])
        columns |= {f"{score}_{variable}": value for score, value in scores.items()}
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
