"""The paper's window protocol: score posterior predictive rollouts of every window."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.data.pairset import PairSet
from asbc.data.windows import EvaluationWindows, gather
from asbc.evaluation.driving import driving_measures
from asbc.evaluation.prediction import check_prediction_input, predict_windows
from asbc.evaluation.scores import score_all
from asbc.simulator import Rollout, Simulator
from asbc.utils.progress import progress

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
    pairs: PairSet,
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


def observed_series(pairs: PairSet, windows: EvaluationWindows) -> dict[str, Tensor]:
    """Gap, speed, approach rate and acceleration as recorded, each (window, horizon + 1)."""
    pair, start, horizon = windows
    names = ("gap", "speed", "leader_speed", "acceleration")
    series = {
        name: gather(getattr(pairs, name), pairs.offsets, pair, start, horizon + 1)
        for name in names
    }
    series["approach_rate"] = series["speed"] - series.pop("leader_speed")
    return series


def _scores(rollout: Rollout, pairs: PairSet, windows: EvaluationWindows) -> dict[str, Tensor]:
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
