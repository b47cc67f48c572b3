"""What a case study shows of every pair: its posterior, and one window with prediction bands."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asbc.data.pairs import Pairs, find_pair
from asbc.data.windows import EvaluationWindows, gather
from asbc.evaluation.predict import Predictor, predict_windows
from asbc.evaluation.protocol import EvaluationSettings, observed_series
from asbc.evaluation.scores import VARIABLES
from asbc.simulator import Simulator

SERIES = [variable.series for variable in VARIABLES.values()]
INTERVAL = (0.025, 0.975)
# Pairs rolled out at once.
CHUNK = 16


@dataclass(frozen=True)
class Cases:
    """One window per pair; the bands are (pair, variable, step) over s, v, a, start included."""

    pair_id: np.ndarray
    names: np.ndarray
    dt: float
    start: np.ndarray  # (pair,)
    theta: np.ndarray  # (pair, draw, parameter)
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    observed: np.ndarray
    leader_speed: np.ndarray  # (pair, step)

    def index(self, pair_id: str) -> int:
        """Position of a pair by its id, or by its id without the recording where unique."""
        return find_pair(list(self.pair_id), pair_id)

    def save(self, path: Path) -> None:
        """Write all arrays into one compressed file."""
        np.savez_compressed(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "Cases":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return cls(**(arrays | {"dt": float(arrays["dt"])}))


def study_cases(
    simulator: Simulator,
    theta: Tensor | Predictor,
    pairs: Pairs,
    context_steps: int,
    settings: EvaluationSettings,
) -> Cases:
    """Bands of each pair's first window after its context, or its last window if it has none.

    Either way the pair's first samples are the latest before it, too: `theta` (pair, draw, dim)
    serves whatever `settings.context` is. A model without parameters has no draws to show.
    """
    latest = pairs.lengths - settings.horizon - 1
    usable = torch.nonzero(latest >= 0).flatten()
    start = latest[usable].clamp(max=context_steps)
    windows = EvaluationWindows(usable, start, settings.horizon)
    observed = observed_series(pairs, windows)
    bands = [
        _bands(
            simulator,
            theta,
            pairs,
            EvaluationWindows(p, s, settings.horizon),
            context_steps,
            settings,
        )
        for p, s in zip(usable.split(CHUNK), start.split(CHUNK), strict=True)
    ]
    mean, low, high = (torch.cat(band).numpy() for band in zip(*bands, strict=True))
    leader = gather(pairs.leader_speed, pairs.offsets, usable, start, settings.horizon + 1)
    names, draws = simulator.parameter_names, np.empty((len(usable), 1, 0))
    if isinstance(theta, Tensor):
        draws = theta[usable].numpy()
    else:
        names = ()
    return Cases(
        pair_id=np.array([pairs.pair_id[i] for i in usable.tolist()]),
        names=np.array(names, dtype=str),
        dt=pairs.dt,
        start=start.numpy(),
        theta=draws,
        mean=mean,
        low=low,
        high=high,
        observed=torch.stack([observed[name] for name in SERIES], dim=1).numpy(),
        leader_speed=leader.numpy(),
    )


@torch.no_grad()
def _bands(
    simulator: Simulator,
    theta: Tensor | Predictor,
    pairs: Pairs,
    windows: EvaluationWindows,
    context_steps: int,
    settings: EvaluationSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    rollout = predict_windows(
        simulator,
        theta,
        pairs,
        windows,
        settings.residual_prefix_steps,
        settings.residual_prefix_noise,
        settings.seed,
        settings.observation_model(context_steps),
    )
    samples = torch.stack([getattr(rollout, name) for name in SERIES], dim=1)
    ends = torch.tensor(INTERVAL, dtype=samples.dtype)
    low, high = torch.quantile(samples, ends, dim=2)
    return samples.mean(dim=2), low, high
