"""A normal approximation of the exact posterior for the flow to start from.

The simulator's likelihood is tractable, so its mode and curvature cost a few regressions per
trajectory. The flow then learns in coordinates in which the posterior is close to a standard
normal, however sharp it is: what is left to learn is where the approximation is wrong.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from asbc.errors import InputError
from asbc.posterior.transform import PriorNormal
from asbc.simulator import Simulator
from asbc.simulator.residuals import HasCorrelation
from asbc.utils.checks import check_integer

# Range of the coordinates, standard normal under the prior, in which a mode is looked for.
FARTHEST = 4.0
LARGEST_STEP = 1.0
# Damping of a step relative to the curvature: at first, after a success and after a failure.
DAMPING, RELAX, TIGHTEN = 0.1, 0.1, 5.0
# Standard deviations from the mode beyond which distances count by their logarithm: a posterior
# with curved ridges reaches far.
NEAR = 3.0
# Ends of the grid of the residual's shape, in the same coordinates.
GRID_REACH = 3.0
# Whiteners kept, 0.5 MB each: many trajectories leave out the same steps.
KEPT = 100


class Whitener(NamedTuple):
    """Correlations of the residuals that are used, on a grid of G values of their shape."""

    matrix: Tensor  # (G, T, T) lower triangular: a series, zero where unused, times it is white
    log_det: Tensor  # (G,)
    information: Tensor  # (G,) about the shape's coordinate
    cross: Tensor  # (G,) about it and log sigma together


class Point(NamedTuple):
    """A point of the search, a row per trajectory."""

    u: Tensor  # (B, D)
    shape: Tensor  # (B,) index into the grid
    value: Tensor  # (B,) negative log-posterior, up to a constant
    white: Tensor  # (B, T) residuals, whitened and over sigma
    slope: Tensor  # (B, T, L) their derivatives by the law's parameters' coordinates


class Laplace(PriorNormal):
    """Mode and curvature of prior times likelihood, for all trajectories at once.

    The law's parameters follow damped Gauss-Newton steps; sigma and the shape of the residual's
    correlation are at their best values given them, the shape on a grid. Steps at standstill or
    at an acceleration bound are left out. The curvature is the Fisher information. None of this
    has to be exact: it decides how hard the flow's task is, not what the right answer is.
    The coordinates of u are those in which the prior is standard normal.

    Args:
        simulator: prior and likelihood.
        iterations: Gauss-Newton steps.
        shapes: points of the grid.
    """

    def __init__(self, simulator: Simulator, iterations: int = 10, shapes: int = 25) -> None:
        super().__init__(simulator.prior)
        check_integer("transform.iterations", iterations, minimum=1)
        check_integer("transform.shapes", shapes, minimum=3)
        residual, extra = simulator.residual, len(simulator.residual.parameters) - 1
        if not isinstance(residual, HasCorrelation) or extra > 1:
            raise InputError(
                f"transform=laplace: {type(residual).__name__} has the parameters "
                f"{residual.parameters}; it needs sigma, at most one other, and `correlation`: "
                "use transform=prior"
            )
        self.residual: HasCorrelation = residual
        self.simulator, self.iterations = simulator, iterations
        self.dim, self.law_dim = simulator.dim, len(simulator.law.parameters)
        reach = GRID_REACH if extra else 0.0
        self.grid = torch.linspace(-reach, reach, shapes if extra else 1, dtype=torch.float64)
        self._whiteners: OrderedDict[bytes, Whitener] = OrderedDict()
        self._whole: dict[int, tuple[Tensor, Tensor]] = {}
        self._rows, self._columns = torch.tril_indices(self.dim, self.dim)

        # Mode, logarithm of the standard deviations, and the rows of the Cholesky factor.
        self.size = 2 * self.dim + len(self._rows)

    @torch.no_grad()
    def describe(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        """Columns (B, size) of states (B, T, 3); the regressions themselves run on the CPU."""
        mode, covariance = self.fit(states.cpu(), None if lengths is None else lengths.cpu())
        factor = torch.linalg.cholesky(covariance)
        sd = covariance.diagonal(dim1=1, dim2=2).sqrt()
        rows = (factor / sd[..., None])[:, self._rows, self._columns]
        return torch.cat([mode, sd.log(), rows], dim=1).to(states)

    def whiten(self, u: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """w and log |du/dw|; see `Transform`."""
        mode, factor = self._unpack(columns)
        many = u if u.ndim == 3 else u[:, None]
        far = solve_triangular(factor, (many - mode[:, None]).mT, upper=False).mT / NEAR
        log_det = factor.diagonal(dim1=1, dim2=2).log().sum(-1)[:, None]
        log_det = log_det + far.square().log1p().sum(-1) / 2
        return NEAR * far.asinh().view_as(u), log_det.view(u.shape[:-1])

    def unwhiten(self, w: Tensor, columns: Tensor) -> Tensor:
        """u for w; see `Transform`."""
        mode, factor = self._unpack(columns)
        return torch.baddbmm(mode[:, None], NEAR * torch.sinh(w / NEAR), factor.mT)

    def fit(self, states: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mode (B, D) and covariance (B, D, D) in coordinates that the prior makes N(0, I)."""
        data = _Data(self, states, lengths)
        best = data.look(torch.zeros(len(states), self.dim, dtype=torch.float64))
        damping = torch.full((len(states),), DAMPING, dtype=torch.float64)
        for _ in range(self.iterations):
            new = data.look(self._propose(best, damping))
            better = new.value < best.value
            best = Point(*(_where(better, a, b) for a, b in zip(new, best, strict=True)))
            damping = torch.where(better, damping * RELAX, damping * TIGHTEN)
        return best.u, torch.linalg.inv(data.curvature(best))

    def whitener(self, used: Tensor) -> Whitener:
        """For series of which the steps `used` (T,) are used; the most recent ones are kept."""
        key = used.numpy().tobytes()
        found = self._whiteners.pop(key, None) or self._make_whitener(used)
        self._whiteners[key] = found
        if len(self._whiteners) > KEPT:
            self._whiteners.popitem(last=False)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Laplace":
        """Itself: it holds nothing but what it has computed before."""
        return self

    def _propose(self, point: Point, damping: Tensor) -> Tensor:
        slope, law = point.slope.double(), point.u[:, : self.law_dim]
        curvature = slope.mT @ slope + torch.eye(self.law_dim, dtype=torch.float64)
        gradient = (slope.mT @ point.white.double()[..., None])[..., 0] + law
        ridge = damping[:, None] * curvature.diagonal(dim1=1, dim2=2)
        step = torch.linalg.solve(curvature + torch.diag_embed(ridge), gradient)
        step = step * (LARGEST_STEP / step.abs().amax(1, keepdim=True)).clamp_max(1)
        moved = (law - step).clamp(-FARTHEST, FARTHEST)
        return torch.cat([moved, point.u[:, self.law_dim :]], dim=1)

    def _correlation(self, steps: int) -> tuple[Tensor, Tensor]:
        """Of whole series, (G, T, T), and its derivative by the shape's coordinate."""
        if steps not in self._whole:
            simulator, shape = self.simulator, self.law_dim + 1
            at = torch.zeros(len(self.grid), self.dim, dtype=torch.float64)
            at[:, shape:] = self.grid[:, None]
            shapes = simulator.prior.from_normal(at)[:, shape:]
            correlation = self.residual.correlation(shapes, steps, simulator.dt)
            change = torch.zeros_like(correlation)
            if len(self.grid) > 1:
                (change,) = torch.gradient(correlation, spacing=(self.grid,), dim=0)
            self._whole[steps] = correlation, change
        return self._whole[steps]

    def _make_whitener(self, used: Tensor) -> Whitener:
        correlation, change = self._correlation(len(used))
        both = used & used[:, None]
        # An unused step becomes one that has nothing to do with the others.
        identity = torch.eye(len(used), dtype=torch.float64).expand_as(correlation)
        factor = torch.linalg.cholesky(torch.where(both, correlation, identity))
        matrix = solve_triangular(factor, identity, upper=False)
        change = matrix @ (change * both) @ matrix.mT
        return Whitener(
            matrix.float(),
            2 * factor.diagonal(dim1=1, dim2=2).log().sum(1),
            change.square().sum((1, 2)) / 2,
            change.diagonal(dim1=1, dim2=2).sum(1),
        )

    def _unpack(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        mode, log_sd, rows = columns.split([self.dim, self.dim, len(self._rows)], dim=1)
        factor = columns.new_zeros(len(columns), self.dim, self.dim)
        factor[:, self._rows, self._columns] = rows
        return mode, factor * log_sd.exp()[..., None]


class _Data:
    """Observed trajectories, and what the search computes at a point."""

    def __init__(self, laplace: Laplace, states: Tensor, lengths: Tensor | None) -> None:
        simulator = laplace.simulator
        self.simulator, self.law_dim = simulator, laplace.law_dim
        batch, steps = len(states), states.shape[1] - 1
        if lengths is None:
            lengths = torch.full((batch,), steps + 1)
        valid = torch.arange(steps) < lengths[:, None] - 1
        states = torch.where(
            torch.arange(steps + 1)[None, :, None] < lengths[:, None, None], states, states[:, :1]
        )
        lower, upper = simulator.censored(states)
        self.used = valid & ~lower & ~upper  # (B, T)
        self.count = self.used.sum(1).clamp_min(1).double()
        self.state = states[:, :-1].unbind(-1)
        self.acceleration = states[..., 1].diff(dim=1) / simulator.dt
        self.grid = laplace.grid
        masks, self.mask = torch.unique(self.used, dim=0, return_inverse=True)
        whiteners = [laplace.whitener(mask) for mask in masks]
        self.rows = [(self.mask == i).nonzero()[:, 0] for i in range(len(masks))]
        self.matrix, log_det, information, cross = (
            torch.stack(parts) for parts in zip(*whiteners, strict=True)
        )
        self.log_det, self.information, self.cross = (
            x[self.mask].T for x in (log_det, information, cross)
        )  # (G, B)

    def look(self, u: Tensor) -> Point:
        """The point with these coordinates of the law, and the best residual process there."""
        law, prior = self.law_dim, self.simulator.prior
        residual, slope = self._regression(u)
        white = residual.new_empty(len(self.grid), residual.shape[1], len(u))
        for matrix, rows in zip(self.matrix, self.rows, strict=True):
            white[..., rows] = (matrix.flatten(0, 1) @ residual[rows].T).unflatten(
                0, matrix.shape[:2]
            )
        squares = white.square().sum(1).double()  # (G, B)
        sigma = (squares / self.count).sqrt().clamp(prior.low[law], prior.high[law])
        at = u.expand(len(self.grid), -1, -1).clone()
        at[..., law] = prior.to_normal(sigma[..., None], slice(law, law + 1))[..., 0]
        at[..., law + 1 :] = self.grid[:, None, None]
        value = squares / sigma.square() / 2 + self.count * sigma.log() + self.log_det / 2
        value = value + at.square().sum(-1) / 2
        best = value.argmin(0)
        each = torch.arange(len(u))
        scale = sigma[best, each].to(residual)
        return Point(
            at[best, each],
            best,
            value[best, each],
            white[best, :, each] / scale[:, None],
            self.matrix[self.mask, best] @ slope / scale[:, None, None],
        )

    def curvature(self, point: Point) -> Tensor:
        """Fisher information plus that of the prior, (B, D, D) float64."""
        law, rows, dim = self.law_dim, torch.arange(len(point.u)), point.u.shape[1]
        slope = point.slope.double()
        result = torch.eye(dim, dtype=torch.float64).repeat(len(rows), 1, 1)
        result[:, :law, :law] += slope.mT @ slope
        prior = self.simulator.prior
        relative = (prior.normal_slope(point.u) / prior.from_normal(point.u))[:, law]
        result[:, law, law] += 2 * self.count * relative.square()
        if dim > law + 1:
            result[:, -1, -1] += self.information[point.shape, rows]
            cross = relative * self.cross[point.shape, rows]
            result[:, law, -1] += cross
            result[:, -1, law] += cross
        return result

    def _regression(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals (B, T) and their derivatives by the law's coordinates (B, T, L)."""
        law, prior = self.law_dim, self.simulator.prior
        dtype = self.acceleration.dtype
        theta = prior.from_normal(u)[:, :law].to(dtype).repeat(law, 1, 1)
        tangent = torch.diag_embed(prior.normal_slope(u)[:, :law].to(dtype)).transpose(0, 1)

        def explained(theta: Tensor) -> Tensor:
            return self.simulator.law_acceleration(theta[..., None, :], *self.state)

        value, slope = torch.func.jvp(explained, (theta,), (tangent.contiguous(),))[:2]
        residual = (self.acceleration - value[0]) * self.used
        return residual, -(slope * self.used).permute(1, 2, 0)


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(condition.view(-1, *[1] * (yes.ndim - 1)), yes, no)
