"""From a chunk of drivers to its part: draws, flags, summary, and drives on request."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.calibration.comparison import Comparison
from asbc.calibration.flags import any_flag, flag_columns, readable
from asbc.calibration.model import Model
from asbc.calibration.nuts import AutoRefinement
from asbc.calibration.parts import Part
from asbc.calibration.refinement import NoRefinement, Refinement
from asbc.calibration.settings import CalibrationSettings
from asbc.calibration.tables import draws_table, summary_columns
from asbc.data.pairset import PairSet
from asbc.data.windows import EvaluationWindows
from asbc.evaluation.novelty import Novelty
from asbc.evaluation.prediction import predict_windows
from asbc.simulator.idm import IDM
from asbc.utils.checks import InputError
from asbc.utils.stopwatch import Stopwatch

SERIES = ("gap", "speed", "acceleration")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that turns drivers into posteriors.

    Attributes:
        model: the trained posterior and its simulator.
        refinement: what happens to its draws.
        settings: sizes and seed.
        novelty: yardstick of the training simulations, if contexts are to be compared with them.
        comparison: a second run whose evidence is compared, if any.
    """

    model: Model
    refinement: Refinement
    settings: CalibrationSettings
    novelty: Novelty | None = None
    comparison: Comparison | None = None

    def __post_init__(self) -> None:
        law = type(self.model.simulator.law)
        if isinstance(self.refinement, AutoRefinement) and law is not IDM:
            raise InputError(f"refine=auto: NUTS knows the IDM only, not {law.__name__}; use psis")
        if self.model.robust and not isinstance(self.refinement, NoRefinement):
            raise InputError(
                "refine: the run was trained with robust contexts, and weights by the simulator's "
                "likelihood would undo that; use refine=none"
            )
        if self.comparison is None:
            return
        if isinstance(self.refinement, NoRefinement):
            raise InputError("compare_run needs evidences: add refine=psis or refine=auto")
        self.comparison.check(self.model)


def calibrate_chunk(job: Job, pairs: PairSet, positions: np.ndarray) -> Part:
    """Posteriors of `pairs`, which stand at `positions` of the data."""
    watch, settings, prior = Stopwatch(), job.settings, job.model.simulator.prior
    refined = job.refinement(job.model, pairs, settings.samples, settings.seed, watch)
    found: dict[str, np.ndarray] = {"route": refined.route, **refined.columns}
    if job.comparison is not None:
        found |= job.comparison.columns(job.model, pairs, found, settings.seed, watch)
    with watch("flags"):
        embedding = job.model.posterior.encode(job.model.contexts(pairs))
        found |= flag_columns(refined.theta, refined.leak_rate, prior, job.novelty, embedding)
        found["flagged"] = any_flag(found)
        found |= summary_columns(refined.theta, prior)
    drivers = pd.DataFrame({**_identity(pairs), "position": positions, **found})
    good = readable(embedding)
    skipped = {} if bool(good.all()) else _skip(pairs, good, settings.on_error)
    drivers, theta = drivers[good.numpy()].reset_index(drop=True), refined.theta[good]
    kept = pairs.select(torch.nonzero(good).flatten())
    with watch("predictive"):
        predictive = _predictive(job, theta[:, : settings.predictive_draws], kept)
    draws = draws_table(list(kept.pair_id), theta, prior)
    return Part(draws, drivers, watch.seconds, skipped, predictive)


def _identity(pairs: PairSet) -> dict[str, list[str]]:
    return {
        "pair_id": list(pairs.pair_id),
        "follower": list(pairs.follower),
        "recording": list(pairs.recording),
        "follower_class": list(pairs.follower_class),
    }


def _skip(pairs: PairSet, good: Tensor, on_error: str) -> dict[str, str]:
    """The drivers the network cannot read, and why; an error unless they may be skipped."""
    bad = [pairs.pair_id[i] for i in torch.nonzero(~good).flatten().tolist()]
    reason = "its context overflows in the network; check its gaps and speeds"
    if on_error == "stop":
        raise InputError(f"driver {bad[0]}: {reason}, or set on_error=skip")
    return dict.fromkeys(bad, reason)


def _predictive(job: Job, theta: Tensor, pairs: PairSet) -> dict[str, np.ndarray]:
    """Drives of each driver over its context, from its first state, each (draw, driver, step)."""
    if not theta.shape[1] or not len(pairs):
        return {}
    every = torch.arange(len(pairs))
    windows = EvaluationWindows(every, torch.zeros_like(every), job.model.context_steps - 1)
    seed = job.settings.seed
    rollout = predict_windows(job.model.simulator, theta, pairs, windows, 0, 0.0, seed)
    return {name: getattr(rollout, name).transpose(0, 1).numpy() for name in SERIES}
