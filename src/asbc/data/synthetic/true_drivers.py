"""The drivers of the synthetic recordings: a correlated population, cars and trucks.

Values are typical of congested highway driving and lie inside the paper's prior ranges, but are
far narrower than its flat-looking prior: recovering them is a real inference problem.
"""

from dataclasses import dataclass

import numpy as np

THETA_NAMES = ("v0", "s0", "T", "a_max", "b", "sigma", "ell")
# Medians, standard deviations of the logarithm, and the ranges no driver leaves.
_MEDIAN = np.array([28.0, 2.4, 1.15, 0.95, 1.6, 0.18, 2.2])
_LOG_SCALE = np.array([0.12, 0.25, 0.30, 0.25, 0.30, 0.30, 0.25])
_LOW = np.array([20.0, 1.0, 0.6, 0.2, 0.4, 0.05, 0.6])
_HIGH = np.array([40.0, 6.0, 4.5, 3.5, 4.0, 0.6, 8.0])
# Brisk drivers keep short headways and accelerate hard; long gaps at rest go with long headways.
_CORRELATION = {("v0", "T"): -0.3, ("v0", "a_max"): 0.3, ("s0", "T"): 0.3, ("T", "a_max"): -0.4}
_CORRELATION |= {("a_max", "b"): 0.3, ("a_max", "sigma"): 0.3}
# Trucks are slower, weaker and keep longer headways.
_TRUCK_FACTOR = np.array([0.85, 1.1, 1.2, 0.7, 0.9, 0.8, 1.0])


@dataclass(frozen=True)
class Drivers:
    """A driver per vehicle, with the vehicle's size."""

    theta: np.ndarray  # (vehicles, 7), columns THETA_NAMES
    is_truck: np.ndarray  # (vehicles,) bool
    length: np.ndarray  # (vehicles,) m
    breadth: np.ndarray  # (vehicles,) m

    def __len__(self) -> int:
        return len(self.theta)


def draw_drivers(
    count: int, truck_share: float, rng: np.random.Generator, spread: float = 1.0
) -> Drivers:
    """Independent drivers from the population; draws outside the ranges are repeated.

    `spread` widens the population: it multiplies the standard deviations of the logarithms.
    """
    is_truck = rng.random(count) < truck_share
    centre = np.log(_MEDIAN * np.where(is_truck[:, None], _TRUCK_FACTOR, 1.0))
    factor = spread * np.linalg.cholesky(_covariance())
    theta = np.zeros((count, len(THETA_NAMES)))
    missing = np.ones(count, dtype=bool)
    while missing.any():
        noise = rng.standard_normal((int(missing.sum()), len(THETA_NAMES)))
        theta[missing] = np.exp(centre[missing] + noise @ factor.T)
        missing = np.any((theta < _LOW) | (theta > _HIGH), axis=1)
    length = np.where(is_truck, rng.uniform(9.0, 17.0, count), rng.normal(4.6, 0.35, count))
    breadth = np.where(is_truck, 2.5, rng.normal(1.9, 0.08, count))
    return Drivers(theta, is_truck, length.clip(3.4, 18.0).round(2), breadth.round(2))


def _covariance() -> np.ndarray:
    correlation = np.eye(len(THETA_NAMES))
    for (first, second), value in _CORRELATION.items():
        i, j = THETA_NAMES.index(first), THETA_NAMES.index(second)
        correlation[i, j] = correlation[j, i] = value
    return correlation * np.outer(_LOG_SCALE, _LOG_SCALE)
