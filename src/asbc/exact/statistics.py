"""What a likelihood needs to know of the data: small matrices instead of trajectories."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.simulator import Simulator
from asbc.simulator.laws import IDM
from asbc.simulator.matern import MaternResidual
from asbc.simulator.residuals import GaussianResidual
from asbc.simulator.simulator import BOUND_TOLERANCE, SMALLEST_GAP

COLUMNS = 9
# Chebyshev nodes in log ell: the log-likelihood is then right to about 1e-7 of its value.
NODES = 64
# Places of the pairs of columns in a symmetric matrix.
ROW, COLUMN = np.triu_indices(COLUMNS)
Array = NDArray[np.float64]


class Transitions(NamedTuple):
    """All steps of one driver: residual = design @ weights(theta)."""

    design: NDArray[np.float64]  # (steps, 9)
    side: NDArray[np.int8]  # (steps,) 0 observed, 1 (-1) if only known to be at most (least) this
    starts: tuple[int, ...] = ()  # steps, after the first one, with which another segment begins


def transitions(simulator: Simulator, pairs: Pairs, steps: int | None = None) -> list[Transitions]:
    """The one-step transitions of each pair's first `steps` samples (None: all of them)."""
    names = ("gap", "speed", "leader_speed")
    pieces = (pairs.pair(i) for i in range(len(pairs)))
    return [_segment(simulator, *(piece[name][:steps] for name in names)) for piece in pieces]


def segment_transitions(simulator: Simulator, segments: Segments) -> list[Transitions]:
    """The one-step transitions of all segments of each driver.

    Their likelihood is the product of the segments': the residual starts afresh in each.
    """
    found = []
    for states, lengths in zip(segments.states, segments.lengths.tolist(), strict=True):
        parts = [
            _segment(simulator, x[:n, 0], x[:n, 1], x[:n, 1] - x[:n, 2])
            for x, n in zip(states, lengths, strict=True)
            if n
        ]
        ends = np.cumsum([len(part.side) for part in parts]).tolist()
        design, side = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        found.append(Transitions(design, side, tuple(ends[:-1])))
    return found


def _segment(simulator: Simulator, *series: Tensor) -> Transitions:
    """The transitions of one stretch of gaps, speeds and leader's speeds, each (samples,)."""
    if type(simulator.law) is not IDM:
        raise InputError(
            f"the Bayesian baselines know the IDM only, not {type(simulator.law).__name__}; use "
            "model=idm, or baseline=point_fit, recommended or prior_predictive"
        )
    gap, speed, leader = (column.double().numpy() for column in series)
    acceleration = np.diff(speed) / simulator.dt
    stopped = speed[1:] <= 0
    gap, speed, leader = gap[:-1], speed[:-1], leader[:-1]
    nearness = np.maximum(gap, SMALLEST_GAP) ** -2
    slope = speed * (speed - leader)
    columns = [
        acceleration,
        np.ones_like(speed),
        speed**simulator.law.delta,
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
    residual is taken to start afresh after it, as in every segment.
    """
    clipped = np.flatnonzero(driver.side)
    starts = sorted({0, *(clipped + 1).tolist(), *driver.starts})
    ends = sorted({len(driver.side), *clipped.tolist(), *driver.starts})
    for start in starts:
        end = next((end for end in ends if end > start), start)
        if end > start and not driver.side[start]:
            yield driver.design[start:end]


class Statistics(NamedTuple):
    """Per driver, the quadratic forms behind its log-likelihood.

    Quantities that depend on the correlation length ell are polynomials in log ell: the Chebyshev
    coefficients are the `nodes` axis (one node where there is no ell).
    """

    steps: Array  # (drivers,) observed ones
    gram: Array  # (drivers, nodes, 45) inner products of the whitened columns, each pair once
    log_det: Array  # (drivers, nodes) of the residuals' correlation matrix
    clipped: Array  # (drivers, most clipped steps, 9)
    side: Array  # (drivers, most clipped steps) as in `Transitions`; 0 pads

    def pooled(self) -> "Statistics":
        """The statistics of all drivers as if they were one, still with a driver axis of 1."""
        steps, gram, log_det = (part.sum(axis=0, keepdims=True) for part in self[:3])
        real = self.side != 0
        return Statistics(steps, gram, log_det, self.clipped[real][None], self.side[real][None])


def statistics(simulator: Simulator, drivers: Sequence[Transitions]) -> Statistics:
    """Statistics for the simulator's residual process, whole trajectories."""
    if isinstance(simulator.residual, GaussianResidual):
        factors: list[NDArray[Any]] = [np.eye(1)]
        parts = [_gaussian(driver) for driver in drivers]
    elif isinstance(simulator.residual, MaternResidual):
        steps = max(len(driver.side) for driver in drivers)
        factors = _matern_factors(simulator, simulator.residual, steps)
        parts = [_matern(driver, factors) for driver in drivers]
    else:
        raise InputError(
            f"no likelihood for {type(simulator.residual).__name__}; use residual=gaussian or "
            "residual=matern"
        )
    transform = _values_to_coefficients(len(factors))
    gram, log_det = (np.stack(part) for part in zip(*parts, strict=True))
    clipped, side = _pad_clipped(drivers)
    return Statistics(
        steps=np.array([(driver.side == 0).sum() for driver in drivers], dtype=np.float64),
        gram=np.einsum("km,dmp->dkp", transform, gram[..., ROW, COLUMN]),
        log_det=log_det @ transform.T,
        clipped=clipped,
        side=side,
    )


def _gaussian(driver: Transitions) -> tuple[Array, Array]:
    observed = driver.design[driver.side == 0]
    return (observed.T @ observed)[None], np.zeros(1)


def _matern_factors(
    simulator: Simulator, process: MaternResidual, steps: int
) -> list[NDArray[Any]]:
    """Cholesky factors of the correlation matrix at every node, for the longest run."""
    marginal = simulator.prior.marginals[simulator.parameter_names.index("ell")]
    nodes = torch.from_numpy(_nodes(marginal.low, marginal.high))[:, None, None]
    matrices = (process.correlation(node, steps, simulator.dt)[0] for node in nodes)
    return [np.linalg.cholesky(matrix.numpy()) for matrix in matrices]


def _matern(driver: Transitions, factors: Sequence[NDArray[Any]]) -> tuple[Array, Array]:
    gram = np.zeros((len(factors), COLUMNS, COLUMNS))
    log_det = np.zeros(len(factors))
    for run in runs(driver):
        for node, factor in enumerate(factors):
            # The factor of a leading block is the leading block of the factor.
            leading = factor[: len(run), : len(run)]
            white = solve_triangular(leading, run, lower=True, check_finite=False)
            gram[node] += white.T @ white
            log_det[node] += 2 * np.log(np.diag(leading)).sum()
    return gram, log_det


def chebyshev_basis(xp: Any, ell: Any, low: float, high: float) -> Any:
    """Chebyshev polynomials of log ell on [low, high], (..., nodes), for xp NumPy or JAX."""
    centre, half = np.log(low * high) / 2, np.log(high / low) / 2
    # Strictly inside (-1, 1), where arccos has a derivative.
    position = xp.clip((xp.log(ell) - centre) / half, -1 + 1e-12, 1 - 1e-12)
    return xp.cos(np.arange(NODES) * xp.arccos(position)[..., None])


def _nodes(low: float, high: float) -> Array:
    position = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    return np.sqrt(low * high) * np.exp(np.log(high / low) / 2 * position)


def _values_to_coefficients(nodes: int) -> Array:
    """The discrete cosine transform: values at Chebyshev nodes to Chebyshev coefficients."""
    order = np.arange(nodes)
    transform = 2 / nodes * np.cos(np.pi * order[:, None] * (order + 0.5) / nodes)
    transform[0] /= 2
    return transform


def _pad_clipped(drivers: Sequence[Transitions]) -> tuple[Array, Array]:
    most = max((int((driver.side != 0).sum()) for driver in drivers), default=0)
    clipped = np.zeros((len(drivers), most, COLUMNS))
    side = np.zeros((len(drivers), most))
    for row, driver in enumerate(drivers):
        place = np.flatnonzero(driver.side)
        clipped[row, : len(place)] = driver.design[place]
        side[row, : len(place)] = driver.side[place]
    return clipped, side
