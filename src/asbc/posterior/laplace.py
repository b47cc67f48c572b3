"""A normal approximation of the exact posterior for the flow to start from.

The simulator's likelihood is tractable, so its mode and curvature cost a few regressions per
trajectory. The flow then learns in coordinates in which the posterior is close to a standard
normal, however sharp it is: what is left to learn is where the approximation is wrong.

Given theta a driver's segments are independent, so evidence adds: squares, counts and normal
equations of several segments are sums over them, and nobody has to learn how.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.posterior.transform import PriorNormal
from asbc.posterior.whitening import Whiteners
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


class Point(NamedTuple):
    """A point of the search, a row per driver."""

    u: Tensor  # (B, D)
    shape: Tensor  # (B,) index into the grid
    value: Tensor  # (B,) negative log-posterior, up to a constant
    gradient: Tensor  # (B, L) of the squares' half by the law's parameters' coordinates
    information: Tensor  # (B, L, L) about them, that of the residuals' slopes


class Laplace(PriorNormal):
    """Mode and curvature of prior times likelihood, for all drivers at once.

    The law's parameters follow damped Gauss-Newton steps; sigma and the shape of the residual's
    correlation are at their best values given them, the shape on a grid. Steps at standstill or
    at an acceleration bound are left out. The curvature is the Fisher information. None of this
    has to be exact: it decides how hard the flow's task is, not what the right answer is.
    The likelihood of a driver with several segments is the product of theirs.
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
        self.simulator, self.iterations = simulator, iterations
        self.dim, self.law_dim = simulator.dim, len(simulator.law.parameters)
        reach = GRID_REACH if extra else 0.0
        self.grid = torch.linspace(-reach, reach, shapes if extra else 1, dtype=torch.float64)
        self.whitener = Whiteners(simulator, residual, self.grid)
        self._rows, self._columns = torch.tril_indices(self.dim, self.dim)

        # Mode, logarithm of the standard deviations, and the rows of the Cholesky factor.
        self.size = 2 * self.dim + len(self._rows)

    @torch.no_grad()
    def describe(self, states: Tensor | Segments, lengths: Tensor | None) -> Tensor:
        """Columns (B, size) of drivers; the regressions themselves run on the CPU."""
        known = _segments(states, lengths)
        mode, covariance = self.fit(known.to("cpu"))
        factor = torch.linalg.cholesky(covariance)
        sd = covariance.diagonal(dim1=1, dim2=2).sqrt()
        rows = (factor / sd[..., None])[:, self._rows, self._columns]
        return torch.cat([mode, sd.log(), rows], dim=1).to(known.states)

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

    def fit(
        self, states: Tensor | Segments, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mode (B, D) and covariance (B, D, D) in coordinates that the prior makes N(0, I).

        Args:
            states: a trajectory of each driver (B, T, 3), or its segments.
            lengths: valid samples of each trajectory; None: all.
        """
        data = _Data(self, _segments(states, lengths))
        best = data.look(torch.zeros(len(states), self.dim, dtype=torch.float64))
        damping = torch.full((len(states),), DAMPING, dtype=torch.float64)
        for _ in range(self.iterations):
            new = data.look(self._propose(best, damping))
            better = new.value < best.value
            best = Point(*(_where(better, a, b) for a, b in zip(new, best, strict=True)))
            damping = torch.where(better, damping * RELAX, damping * TIGHTEN)
        return best.u, torch.linalg.inv(data.curvature(best))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Laplace":
        """Itself: it holds nothing but what it has computed before."""
        return self

    def _propose(self, point: Point, damping: Tensor) -> Tensor:
        law = point.u[:, : self.law_dim]
        curvature = point.information + torch.eye(self.law_dim, dtype=torch.float64)
        ridge = damping[:, None] * curvature.diagonal(dim1=1, dim2=2)
        step = torch.linalg.solve(curvature + torch.diag_embed(ridge), point.gradient + law)
        step = step * (LARGEST_STEP / step.abs().amax(1, keepdim=True)).clamp_max(1)
        moved = (law - step).clamp(-FARTHEST, FARTHEST)
        return torch.cat([moved, point.u[:, self.law_dim :]], dim=1)

    def _unpack(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        mode, log_sd, rows = columns.split([self.dim, self.dim, len(self._rows)], dim=1)
        factor = columns.new_zeros(len(columns), self.dim, self.dim)
        factor[:, self._rows, self._columns] = rows
        return mode, factor * log_sd.exp()[..., None]


class _Data:
    """Observed segments of drivers, and what the search computes at a point.

    Regressions have a row per segment (N); what the search decides has one per driver (B).
    """

    def __init__(self, laplace: Laplace, segments: Segments) -> None:
        simulator = laplace.simulator
        self.simulator, self.law_dim, self.grid = simulator, laplace.law_dim, laplace.grid
        self.drivers, self.owner = len(segments), torch.nonzero(segments.present)[:, 0]
        states, lengths = segments.rows()
        sample = torch.arange(int(lengths.max()))
        # Beyond a segment's end its first sample, which does no harm.
        inside = (sample < lengths[:, None])[..., None]
        states = torch.where(inside, states[:, : len(sample)], states[:, :1]).double()
        self.valid = sample[:-1] < lengths[:, None] - 1  # (N, T)
        lower, upper = simulator.censored(states)
        free = ~(lower | upper | ~self.valid)
        self.state = states[:, :-1].unbind(-1)
        self.acceleration = states[..., 1].diff(dim=1) / simulator.dt
        self.used = free
        self.count = self._total(free.sum(1).double()).clamp_min(1)
        # Which steps are left out before the end, and at which step that is.
        masks, self.group = torch.unique(free | ~self.valid, dim=0, return_inverse=True)
        self.whiteners = [laplace.whitener(mask) for mask in masks]
        self.last = lengths - 1
        log_det = torch.empty(len(self.grid), len(lengths), dtype=torch.float64)
        for index, rows in _groups(self.group):
            log_det[:, rows] = self.whiteners[index].log_det[:, self.last[rows]]
        self.log_det = self._total(log_det)  # (G, B)

    def look(self, u: Tensor) -> Point:
        """The point with these coordinates of the law, and the best residual process there."""
        law, prior = self.law_dim, self.simulator.prior
        residual, slope = self._regression(u[self.owner])
        squares = residual.new_empty(len(self.grid), len(residual))
        for index, rows in _groups(self.group):
            white = self.whiteners[index].matrix @ residual[rows].T  # (G, T, n)
            squares[:, rows] = white.mul_(self.valid[rows].T).square_().sum(1)
        squares = self._total(squares)  # (G, B)
        sigma = (squares / self.count).sqrt().clamp(prior.low[law], prior.high[law])
        at = u.expand(len(self.grid), -1, -1).clone()
        at[..., law] = prior.to_normal(sigma[..., None], slice(law, law + 1))[..., 0]
        at[..., law + 1 :] = self.grid[:, None, None]
        value = squares / sigma.square() / 2 + self.count * sigma.log() + self.log_det / 2
        value = value + at.square().sum(-1) / 2
        best = value.argmin(0)
        each = torch.arange(len(u))
        both = torch.cat([slope, residual[None]])  # (L + 1, N, T)
        for index, rows in _groups(self.group * len(self.grid) + best[self.owner]):
            matrix = self.whiteners[index // len(self.grid)].matrix[index % len(self.grid)]
            both[:, rows] = both[:, rows] @ matrix.T
        both = both * (self.valid / sigma[best, each][self.owner, None])
        both = both.permute(1, 2, 0)
        products = self._total((both[..., :-1].mT @ both).permute(1, 2, 0)).permute(2, 0, 1)
        return Point(
            at[best, each], best, value[best, each], products[..., -1], products[..., :-1]
        )

    def curvature(self, point: Point) -> Tensor:
        """Fisher information plus that of the prior, (B, D, D) float64."""
        law, rows, dim = self.law_dim, torch.arange(len(point.u)), point.u.shape[1]
        result = torch.eye(dim, dtype=torch.float64).repeat(len(rows), 1, 1)
        result[:, :law, :law] += point.information
        prior = self.simulator.prior
        relative = (prior.normal_slope(point.u) / prior.from_normal(point.u))[:, law]
        result[:, law, law] += 2 * self.count * relative.square()
        if dim > law + 1:
            about, cross = self._total(self._shape_information(point.shape))
            result[:, -1, -1] += about
            result[:, law, -1] += relative * cross
            result[:, -1, law] += relative * cross
        return result

    def _shape_information(self, shape: Tensor) -> Tensor:
        """Of each segment about the shape, and about it and log sigma together, (2, N)."""
        found = torch.empty(2, len(self.last), dtype=torch.float64)
        for index, rows in _groups(self.group * len(self.grid) + shape[self.owner]):
            whitener = self.whiteners[index // len(self.grid)]
            found[:, rows] = whitener.information(index % len(self.grid))[:, self.last[rows]]
        return found

    def _total(self, rows: Tensor) -> Tensor:
        """Sums (..., B) over each driver's segments (..., N)."""
        total = rows.new_zeros(*rows.shape[:-1], self.drivers)
        return total.index_add_(-1, self.owner, rows)

    def _regression(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals (N, T) and their derivatives by the law's coordinates (L, N, T)."""
        law, prior = self.law_dim, self.simulator.prior
        theta = prior.from_normal(u)[:, :law].repeat(law, 1, 1)
        tangent = torch.diag_embed(prior.normal_slope(u)[:, :law]).transpose(0, 1)

        def explained(theta: Tensor) -> Tensor:
            return self.simulator.law_acceleration(theta[..., None, :], *self.state)

        value, slope = torch.func.jvp(explained, (theta,), (tangent.contiguous(),))[:2]
        residual = (self.acceleration - value[0]) * self.used
        return residual, -(slope * self.used)


def _segments(states: Tensor | Segments, lengths: Tensor | None) -> Segments:
    return states if isinstance(states, Segments) else Segments.of(states, lengths)


def _groups(labels: Tensor) -> list[tuple[int, Tensor]]:
    """Every label, and the rows that have it."""
    order = labels.argsort(stable=True)
    found, counts = labels[order].unique_consecutive(return_counts=True)
    return list(zip(found.tolist(), order.split(counts.tolist()), strict=True))


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(condition.view(-1, *[1] * (yes.ndim - 1)), yes, no)
