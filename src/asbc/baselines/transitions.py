"""Observed one-step transitions, written so that the IDM's residual is linear in known features.

The IDM's acceleration is nonlinear in its parameters but a polynomial in the state: with
c = 1 / (2 sqrt(a_max b)),

    r = a - a_max + a_max v0^-delta v^delta + a_max (s0 + T v + c v dv)^2 / s^2.

Nine columns of data times nine functions of theta give every residual. Sums of squared residuals
are then quadratic forms of small matrices that are computed once, and a likelihood costs the same
for ten steps as for ten million.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asbc.data.pairset import PairSet
from asbc.simulator import Simulator
from asbc.simulator.idm import IDM
from asbc.simulator.simulator import BOUND_TOLERANCE, SMALLEST_GAP
from asbc.utils.checks import InputError

COLUMNS = 9


class Transitions(NamedTuple):
    """All steps of one driver: residual = design @ weights(theta)."""

    design: NDArray[np.float64]  # (steps, 9)
    side: NDArray[np.int8]  # (steps,) 0 observed, 1 (-1) if only known to be at most (least) this


def transitions(
    simulator: Simulator, pairs: PairSet, steps: int | None = None
) -> list[Transitions]:
    """The one-step transitions of each pair's first `steps` samples (None: all of them)."""
    if type(simulator.law) is not IDM:
        raise InputError(
            f"the Bayesian baselines know the IDM only, not {type(simulator.law).__name__}; use "
            "model=idm, or baseline=point_fit, recommended or prior_predictive"
        )
    return [
        _driver(simulator, simulator.law.delta, pairs.pair(i), steps) for i in range(len(pairs))
    ]


def _driver(simulator: Simulator, delta: float, pair: dict, steps: int | None) -> Transitions:
    gap, speed, leader = (
        pair[name][:steps].double().numpy() for name in ("gap", "speed", "leader_speed")
    )
    acceleration = np.diff(speed) / simulator.dt
    stopped = speed[1:] <= 0
    gap, speed, leader = gap[:-1], speed[:-1], leader[:-1]
    nearness = np.maximum(gap, SMALLEST_GAP) ** -2
    slope = speed * (speed - leader)
    columns = [
        acceleration,
        np.ones_like(speed),
        speed**delta,
        nearness,
        nearness * speed,
        nearness * slope,
        nearness * speed**2,
        nearness * speed * slope,
        nearness * slope**2,
    ]
    lowest, highest = simulator.acceleration_bounds
    lower = stopped | (acceleration <= lowest + BOUND_TOLERANCE)
    upper = acceleration >= highest - BOUND_TOLERANCE
    side = lower.astype(np.int8) - (upper & ~lower).astype(np.int8)
    return Transitions(np.stack(columns, axis=-1), side)


def runs(driver: Transitions) -> Iterator[NDArray[np.float64]]:
    """The stretches without a clipped step in between, each (length, 9).

    A clipped step is known as an inequality only. It is counted by itself, and a correlated
    residual is taken to start afresh after it.
    """
    cuts = np.flatnonzero(driver.side)
    starts, ends = np.append(0, cuts + 1), np.append(cuts, len(driver.side))
    for start, end in zip(starts, ends, strict=True):
        if end > start:
            yield driver.design[start:end]
