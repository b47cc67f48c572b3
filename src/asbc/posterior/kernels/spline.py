"""Monotone rational-quadratic splines, as nflows has them, for rows of parameters.

nflows keeps the parameters of a point side by side and computes all of its pieces. Here parameters
are rows over points, so that every operation runs over contiguous points, and slopes are computed
at the two ends of the one piece that a point is in. The formulas are those of Durkan et al.,
Neural Spline Flows (2019), section 3.1; beyond [-bound, bound] the map is the identity.
"""

import math

import torch
import torch.nn.functional as F
from nflows.transforms.autoregressive import (
    MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
)
from torch import Tensor


class Spline:
    """The splines of one layer of nflows.

    Their parameters are (..., 3 bins + 1, points): widths and heights of the pieces as softmax
    takes them, and slopes at all knots as softplus takes them.

    Attributes:
        rows: number of parameters of one spline.
    """

    def __init__(self, transform: MaskedPiecewiseRationalQuadraticAutoregressiveTransform) -> None:
        self.bins: int = transform.num_bins
        self.bound: float = transform.tail_bound
        self.rows = 3 * self.bins + 1
        self.scale = 1 / math.sqrt(getattr(transform.autoregressive_net, "hidden_features", 1))
        self.least_slope: float = transform.min_derivative
        # Each piece has at least its share of the box; the parameters share out what is left.
        least = torch.tensor(
            [transform.min_bin_width, transform.min_bin_height], dtype=torch.float64
        )[:, None, None]
        steps = torch.arange(1, self.bins + 1)[:, None]
        self._floor = 2 * self.bound * least * steps - self.bound  # (2, bins, 1)
        self._free = 2 * self.bound * (1 - least * self.bins)  # (2, 1, 1)

    def pack(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The layer of nflows that gives the parameters, made to give them as they are here.

        Widths and heights are scaled, and the slopes at the bounds, which are 1, are added.

        Args:
            weight: (variables * (3 bins - 1), units).
            bias: (variables * (3 bins - 1), 1).
        """
        outer = math.log(math.expm1(1 - self.least_slope))
        packed = []
        for rows, constant in ((weight, 0.0), (bias, outer)):
            each = rows.unflatten(0, (-1, 3 * self.bins - 1))
            shares, slopes = each[:, : 2 * self.bins] * self.scale, each[:, 2 * self.bins :]
            edge = torch.full_like(each[:, :1], constant)
            packed.append(torch.cat([shares, edge, slopes, edge], 1).flatten(0, 1))
        return packed[0], packed[1]

    def inverse(self, y: Tensor, params: Tensor) -> Tensor:
        """The points x (..., points) that are mapped to y."""
        left, width, bottom, height, first, second = self._pieces(y, params, across=False)
        slope = height / width
        over = y - bottom
        bend = over * (first + second - 2 * slope)
        a = torch.addcmul(bend, height, slope - first)
        b = torch.addcmul(-bend, height, first)
        c = slope * over
        # Not negative, but for rounding.
        root = torch.addcmul(b * b, a, c, value=4).clamp_min(0).sqrt()
        x = torch.addcmul(left, 2 * c / (b + root), width)
        return torch.where(y.abs() <= self.bound, x, y)

    def forward(self, x: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
        """Where points (..., points) are mapped to, and the log of the slopes there."""
        left, width, bottom, height, first, second = self._pieces(x, params, across=True)
        slope = height / width
        inside = x.abs() <= self.bound
        share = torch.where(inside, (x - left) / width, 0.5)
        rest = 1 - share
        both = share * rest
        below = slope + (first + second - 2 * slope) * both
        y = bottom + height * (slope * share * share + first * both) / below
        rise = second * share * share + 2 * slope * both + first * rest * rest
        log_slope = 2 * (slope / below).log() + rise.log()
        return torch.where(inside, y, x), torch.where(inside, log_slope, 0.0)

    def _pieces(self, value: Tensor, params: Tensor, across: bool) -> tuple[Tensor, ...]:
        """Of the piece that each value is in: left end, width, bottom, height, both slopes.

        Args:
            value: x where `across`, else y, (..., points).
            params: (..., 3 bins + 1, points).
            across: the direction in which values lie.
        """
        shares, slopes = params.split([2 * self.bins, self.bins + 1], dim=-2)
        knots = self._knots(shares.unflatten(-2, (2, self.bins)))  # (..., 2, bins + 1, points)
        along = knots[..., 0 if across else 1, 1:-1, :]
        piece = (value.unsqueeze(-2) >= along).sum(-2, keepdim=True)
        ends = torch.cat([piece, piece + 1], -2)  # (..., 2, points)
        places = ends.unsqueeze(-3).expand(*ends.shape[:-2], 2, *ends.shape[-2:])
        box = knots.gather(-2, places)  # (..., direction, end, points)
        sizes = box[..., 1, :] - box[..., 0, :]
        slope = F.softplus(slopes.gather(-2, ends)).add_(self.least_slope)
        return (
            *(box[..., 0, 0, :], sizes[..., 0, :], box[..., 1, 0, :], sizes[..., 1, :]),
            *slope.unbind(-2),
        )

    def _knots(self, shares: Tensor) -> Tensor:
        """Ends of all pieces in both directions, (..., 2, bins + 1, points)."""
        used = shares.softmax(-2)[..., :-1, :].cumsum(-2)
        inner = torch.addcmul(self._floor[:, :-1].to(shares), used, self._free.to(shares))
        end = torch.full_like(shares[..., :1, :], self.bound)
        return torch.cat([-end, inner, end], -2)
