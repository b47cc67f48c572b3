"""The prior: independent truncated log-normals with named columns."""

import copy
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.utils.checks import check_number
from asbc.utils.random import uniform

# Probability beyond which `to_normal` does not tell values apart.
SMALLEST_TAIL = 1e-7
# Points of `quantile_grid`.
QUANTILES = 2048


@dataclass(frozen=True)
class Marginal:
    """log x ~ N(log centre, log_scale^2), truncated to low <= x <= high."""

    name: str
    unit: str
    centre: float
    log_scale: float
    low: float
    high: float

    def __post_init__(self) -> None:
        for field in ("centre", "log_scale", "low", "high"):
            check_number(f"prior of {self.name}: {field}", getattr(self, field), above=0)
        if self.low >= self.high:
            raise InputError(
                f"prior of {self.name}: range [{self.low}, {self.high}]; expected low < high"
            )


class Prior:
    """Independent truncated log-normals, the law's parameters first.

    Args:
        law: the law's marginals by name, each with unit, centre, log_scale, low and high.
        residual: the same for the residual process.
        overrides: fields to change by name, e.g. `{"v0": {"low": 8.0}}`.

    Attributes:
        names, units: one per column of theta.
        low, high: (dim,) float32 bounds of the support.

    Example:
        >>> headway = {"unit": "s", "centre": 1.6, "log_scale": 1.0, "low": 0.6, "high": 4.5}
        >>> prior = Prior({"T": headway}, {})
        >>> prior.icdf(torch.tensor([[0.0], [0.5], [1.0]])).flatten()
        tensor([0.6000, 1.6259, 4.5000])
    """

    def __init__(
        self,
        law: Mapping[str, Mapping[str, Any]],
        residual: Mapping[str, Mapping[str, Any]],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        fields = {name: dict(marginal) for name, marginal in [*law.items(), *residual.items()]}
        for name, changes in (overrides or {}).items():
            _require_known("prior.overrides", [name], fields)
            _require_known(f"prior.overrides.{name}", changes, fields[name])
            fields[name].update(changes)
        self.marginals = tuple(Marginal(name=name, **values) for name, values in fields.items())
        self.names = tuple(marginal.name for marginal in self.marginals)
        self.units = tuple(marginal.unit for marginal in self.marginals)
        self.low = torch.tensor([marginal.low for marginal in self.marginals])
        self.high = torch.tensor([marginal.high for marginal in self.marginals])
        self._mean = torch.tensor([math.log(m.centre) for m in self.marginals]).double()
        self._scale = torch.tensor([m.log_scale for m in self.marginals]).double()
        self._cdf_low = torch.special.ndtr(self._standardise(self.low))
        self._mass = torch.special.ndtr(self._standardise(self.high)) - self._cdf_low

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return len(self.marginals)

    def to(self, device: torch.device) -> "Prior":
        """The same prior for parameters on a device; itself, where it is there already."""
        if self.low.device == device:
            return self
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Draws (n, dim) float32, all inside the support."""
        return self.icdf(uniform(rng, n, self.dim, dtype=torch.float64))

    def icdf(self, u: Tensor) -> Tensor:
        """The inverse distribution function, column by column: u in [0, 1] to theta float32."""
        z = torch.special.ndtri(self._cdf_low + u.double() * self._mass)
        theta = torch.exp(self._mean + self._scale * z).float()
        return theta.clamp(self.low, self.high)

    def from_normal(self, u: Tensor) -> Tensor:
        """The theta (..., dim) whose prior is u ~ N(0, I), in u's precision."""
        return self._from_normal(u)[0].to(u.dtype)

    def to_normal(self, theta: Tensor, columns: slice = slice(None)) -> Tensor:
        """The u that is standard normal under the prior, for the `columns` of theta alone.

        It is finite at the bounds too.
        """
        share = self._share_below(theta, columns)
        return torch.special.ndtri(share.clamp(SMALLEST_TAIL, 1 - SMALLEST_TAIL)).to(theta.dtype)

    def within_tails(self, theta: Tensor) -> Tensor:
        """Whether `to_normal` tells theta (..., dim) from a bound: bool (...)."""
        share = self._share_below(theta, slice(None))
        return ((share > SMALLEST_TAIL) & (share < 1 - SMALLEST_TAIL)).all(-1)

    def _share_below(self, theta: Tensor, columns: slice) -> Tensor:
        """The distribution function of each column, in float64."""
        below = torch.special.ndtr(self._standardise(theta, columns))
        return (below - self._cdf_low[columns]) / self._mass[columns]

    def normal_slope(self, u: Tensor) -> Tensor:
        """d theta / du (..., dim) of `from_normal`, column by column."""
        theta, z = self._from_normal(u)
        ratio = torch.exp((z.square() - u.double().square()) / 2)
        return (theta * self._scale * self._mass * ratio).to(u.dtype)

    def _from_normal(self, u: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.special.ndtri(self._cdf_low + torch.special.ndtr(u.double()) * self._mass)
        # Far out in u the sum may round to 0 or 1.
        theta = torch.exp(self._mean + self._scale * z).clamp(self.low, self.high)
        return theta, self._standardise(theta)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Normalised log-density (...) of theta (..., dim); -inf outside the support."""
        inside = theta.clamp(self.low, self.high).double()  # keeps log and gradient finite
        normaliser = (self._mass * self._scale).log() + 0.5 * math.log(2 * math.pi)
        terms = -0.5 * self._standardise(inside).square() - inside.log() - normaliser
        value = torch.where(self.contains(theta), terms.sum(-1), -math.inf)
        return value.to(theta.dtype)

    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta (..., dim) lies in the support, bounds included: bool (...)."""
        return self.inside(theta).all(-1)

    def inside(self, theta: Tensor) -> Tensor:
        """Per column, whether theta (..., dim) lies within its range: bool (..., dim)."""
        # The bounds are float32, so a float64 theta must be rounded alike.
        theta = theta.float()
        return (theta >= self.low) & (theta <= self.high)

    def _standardise(self, theta: Tensor, columns: slice = slice(None)) -> Tensor:
        return (theta.double().log() - self._mean[columns]) / self._scale[columns]


def quantile_grid(prior: Prior) -> Tensor:
    """Equally likely values of each parameter (QUANTILES, dim): the prior's scale, no draws."""
    grid = (torch.arange(QUANTILES) + 0.5) / QUANTILES
    return prior.icdf(grid[:, None].expand(-1, prior.dim))


def _require_known(where: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{where}.{name}: no such name; expected one of {', '.join(known)}")
