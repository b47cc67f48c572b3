"""One factor that makes the intervals of predictions as wide as the validation drivers ask for.

Trained on few drivers, a posterior ends a little too sure of others. The factor multiplies sigma,
the size of what the law leaves unexplained, in every draw: of what was tried it costs the least
score for the coverage it brings (the base noise of the flow costs two to three times as much). It
is part of the posterior, in its draws and in its density.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asbc.posterior.posterior import Posterior

LEVEL = 0.95
# Factors tried: never below one, for a posterior that is too wide is corrected by training.
FACTORS = tuple(1 + step / 20 for step in range(13))
COLUMN = "sigma"


def distance(coverage: Tensor) -> float:
    """How far the coverages of gap, speed and acceleration are from their level, on average.

    Example:
        >>> round(distance(torch.tensor([0.93, 0.96, 0.95])), 3)
        0.01
    """
    return float((coverage - LEVEL).abs().mean())


def fit_widening(
    posterior: Posterior,
    coverage: Callable[[Posterior], Tensor],
    factors: Sequence[float] = FACTORS,
) -> tuple[float, Tensor]:
    """Give the posterior the factor whose coverages are nearest to their level.

    Coverage rises with the factor, so few of them have to be tried.

    Args:
        posterior: changed in place; one without sigma is left alone.
        coverage: of gap, speed and acceleration (3,) on the validation drivers.
        factors: to choose from, from 1 upwards.

    Returns:
        The factor and its coverages.
    """
    tried: dict[int, Tensor] = {}

    def held(place: int) -> Tensor:
        if place not in tried:
            widen(posterior, factors[place])
            tried[place] = coverage(posterior)
        return tried[place]

    # The first factor whose mean coverage reaches the level, or the last; then the nearer of it
    # and the one before.
    low, last, high = 0, len(factors) - 1 if COLUMN in posterior.prior.names else 0, 0
    # Mostly it is one of the first few: they are looked at first, with steps that double.
    while high < last and float(held(high).mean()) < LEVEL:
        low, high = high + 1, min(2 * high + 1, last)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if float(held(middle).mean()) >= LEVEL else (middle + 1, high)
    chosen = min((max(low - 1, 0), low), key=lambda place: distance(held(place)))
    widen(posterior, factors[chosen])
    return factors[chosen], held(chosen)


def widen(posterior: Posterior, factor: float) -> None:
    """Multiply sigma by `factor` in every draw, whatever the factor was before."""
    posterior.widening.fill_(1.0)
    if COLUMN in posterior.prior.names:
        with torch.no_grad():
            posterior.widening[posterior.prior.names.index(COLUMN)] = factor
