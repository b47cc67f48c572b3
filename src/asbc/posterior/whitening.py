"""What makes correlated residuals white, for segments of any length and with steps left out.

The Cholesky factor of a matrix's first rows and columns is that of the whole, cut: one
factorisation serves segments of all lengths. Segments that leave out other steps in their middle
need one each.
"""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from asbc.simulator import Simulator
from asbc.simulator.residuals import HasCorrelation

# Whiteners kept, 1 MB each: many segments leave out the same steps.
KEPT = 100


class Whitener(NamedTuple):
    """Correlations of the residuals that are used, on a grid of G values of their shape."""

    matrix: Tensor  # (G, T, T) lower triangular: a series, zero where unused, times it is white
    log_det: Tensor  # (G, T + 1) of the first n steps, n from 0 to T
    change: Tensor  # (G, T, T) of the correlations, by the shape's coordinate
    used: Tensor  # (T,) bool

    def information(self, shape: int) -> Tensor:
        """Of the first n steps, n from 0 to T, about the shape and about it and log sigma."""
        both = self.used & self.used[:, None]
        matrix = self.matrix[shape]
        change = matrix @ (self.change[shape] * both) @ matrix.mT
        own = change.diagonal()
        about = change.tril(-1).square().sum(1) + own.square() / 2
        return _sums(torch.stack([about, own]))


class Whiteners:
    """Makes whiteners, and keeps the most recent ones.

    Args:
        simulator: its prior has sigma after the law's parameters, then the shape, if there is one.
        residual: the simulator's, which writes its correlation out.
        grid: (G,) the shape's coordinates, in which its prior is standard normal.
    """

    def __init__(self, simulator: Simulator, residual: HasCorrelation, grid: Tensor) -> None:
        self.simulator, self.residual, self.grid = simulator, residual, grid
        self._kept: OrderedDict[bytes, Whitener] = OrderedDict()
        # Of the longest series so far.
        self._whole = torch.zeros(2, len(grid), 0, 0, dtype=torch.float64)

    def __call__(self, used: Tensor) -> Whitener:
        """For series of which the steps `used` (T,) are used."""
        key = used.numpy().tobytes()
        found = self._kept.pop(key, None) or self._make(used)
        self._kept[key] = found
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    def _correlation(self, steps: int) -> Tensor:
        """Of whole series, and its derivative by the shape's coordinate, (2, G, T, T)."""
        if steps > self._whole.shape[-1]:
            simulator, shape = self.simulator, len(self.simulator.law.parameters) + 1
            at = torch.zeros(len(self.grid), simulator.dim, dtype=torch.float64)
            at[:, shape:] = self.grid[:, None]
            shapes = simulator.prior.from_normal(at)[:, shape:]
            correlation = self.residual.correlation(shapes, steps, simulator.dt)
            change = torch.zeros_like(correlation)
            if len(self.grid) > 1:
                (change,) = torch.gradient(correlation, spacing=(self.grid,), dim=0)
            self._whole = torch.stack([correlation, change])
        return self._whole[..., :steps, :steps]

    def _make(self, used: Tensor) -> Whitener:
        correlation, change = self._correlation(len(used))
        both = used & used[:, None]
        # An unused step becomes one that has nothing to do with the others.
        identity = torch.eye(len(used), dtype=torch.float64).expand_as(correlation)
        factor = torch.linalg.cholesky(torch.where(both, correlation, identity))
        matrix = solve_triangular(factor, identity, upper=False)
        log_det = _sums(2 * factor.diagonal(dim1=1, dim2=2).log())
        return Whitener(matrix.contiguous(), log_det, change, used)


def _sums(steps: Tensor) -> Tensor:
    """Of the first n of T steps (k, T), for n from 0 to T."""
    return torch.nn.functional.pad(steps.cumsum(1), (1, 0))
