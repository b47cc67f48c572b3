"""Drives of calibrated drivers over what they were calibrated from: the posterior predictive."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.evaluation.observation import EXACT, observation_model
from asbc.evaluation.predict import predict_windows
from asbc.simulator import Rollout
from asbc.trained_model import Model

# What is kept of a drive.
SERIES = ("gap", "speed", "acceleration")


def predicted_drives(
    model: Model, theta: Tensor, pairs: Pairs, seed: int, observation: str = EXACT
) -> dict[str, np.ndarray]:
    """Drives behind the recorded leaders, from the first state of each context, by series.

    Each (draw, driver, step); of drivers with several segments (draw, driver, segment, step), NaN
    beyond each. Empty for no draws.

    Args:
        model: what calibrated the drivers.
        theta: (driver, draw, dim).
        pairs: of the drivers.
        seed: of the noise.
        observation: whether drives have the recording's own error, see
            `asbc.evaluation.observation`.
    """
    if not theta.shape[1] or not len(pairs):
        return {}
    drive = partial(_drive, model, pairs, seed, observation)
    if model.by_driver:
        return _over_segments(model, theta, pairs, drive)
    every = torch.arange(len(pairs))
    rollout = drive(
        theta, EvaluationWindows(every, torch.zeros_like(every), model.context_steps - 1)
    )
    return {name: getattr(rollout, name).transpose(0, 1).numpy() for name in SERIES}


def _over_segments(
    model: Model, theta: Tensor, pairs: Pairs, drive: "partial[Rollout]"
) -> dict[str, np.ndarray]:
    places = model.places(pairs)
    shape = (theta.shape[1], *places.lengths.shape, model.context_steps)
    found = {name: np.full(shape, np.nan, np.float32) for name in SERIES}
    driver, slot = torch.nonzero(places.lengths, as_tuple=True)
    first, length = places.first[driver, slot], places.lengths[driver, slot]
    pair = torch.searchsorted(pairs.offsets, first, right=True) - 1
    own = torch.zeros(len(pairs), dtype=torch.int64)  # the driver of each pair that is used
    own[pair] = driver
    for steps in length.unique().tolist():  # windows of one length at a time
        some = torch.nonzero(length == steps).flatten()
        start = first[some] - pairs.offsets[pair[some]]
        rollout = drive(theta[own], EvaluationWindows(pair[some], start, steps - 1))
        for name in SERIES:
            values = getattr(rollout, name).transpose(0, 1).numpy()
            found[name][:, driver[some].numpy(), slot[some].numpy(), :steps] = values
    return found


def _drive(
    model: Model,
    pairs: Pairs,
    seed: int,
    observation: str,
    theta: Tensor,
    windows: EvaluationWindows,
) -> Rollout:
    """Rollouts over windows with draws theta (pair, draw, dim)."""
    # A recording's error is estimated from the pair's first samples, as many as a window has.
    recorded = observation_model(observation, windows.horizon + 1)
    return predict_windows(model.simulator, theta, pairs, windows, 0, 0.0, seed, recorded)
