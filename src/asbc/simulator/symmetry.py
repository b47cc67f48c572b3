"""Scale symmetry: k times the leader and the state, and k times some parameters, give k times x.

A simulation (theta, x) is thus a simulation of every scaled driver behind the scaled leader, at no
cost. Laws and residual processes that have the symmetry say so by `scale_powers`: parameter i
becomes k^power_i times itself. For the IDM these are v0, s0, a_max, b and the residual's sigma.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.simulator.simulator import BOUND_TOLERANCE, SMALLEST_GAP, Simulator


@runtime_checkable
class HasScaleSymmetry(Protocol):
    """A law or a residual process that keeps its form when lengths are measured in other units."""

    @property
    def scale_powers(self) -> tuple[float, ...]:
        """For each of its parameters, the power of k it is multiplied by."""
        ...


class Scaled(NamedTuple):
    """Simulations after the scaling; a row that could not be scaled exactly is as it was."""

    theta: Tensor  # (n, dim)
    states: Tensor  # (n, steps, 3)
    log_weight: Tensor  # (n,) what makes prior draws of the scaled ones, 0 for those as they were
    moved: Tensor  # (n,) bool


class ScaleSymmetry:
    """Scales simulations by factors near one.

    Bounds of the acceleration and the smallest gap are not scaled with the rest, so a trajectory
    that is at one before or after is left as it is, and so is a theta that would leave the prior's
    support. Whether a row is left depends on k and on what it is scaled to in the same way as on
    what it comes from, so with factors whose logarithm is symmetric about 0 the weighted rows,
    moved or not, follow prior and simulator as before.

    Args:
        simulator: the forward model; refused if its law or residual has no such symmetry.
    """

    def __init__(self, simulator: Simulator) -> None:
        powers: list[float] = []
        for part in (simulator.law, simulator.residual):
            if not isinstance(part, HasScaleSymmetry):
                raise InputError(
                    f"training.symmetry: {type(part).__name__} has no scale symmetry "
                    "(scale_powers); set training.symmetry=false"
                )
            powers += part.scale_powers
        self.simulator, self.prior = simulator, simulator.prior
        self.powers = torch.tensor(powers)

    def scale(self, theta: Tensor, states: Tensor, log_k: Tensor) -> Scaled:
        """Each row scaled by its own factor.

        Args:
            theta: (n, dim).
            states: (n, steps, 3) simulated with it.
            log_k: (n,) logarithms of the factors.
        """
        moved_theta = theta * torch.exp(log_k[:, None] * self.powers)
        moved_states = states * torch.exp(log_k)[:, None, None]
        moved = self.prior.contains(moved_theta) & self._free(states) & self._free(moved_states)
        # Density of k theta if theta is from the prior: p(theta) / k^(sum of the powers).
        log_weight = self.prior.log_prob(moved_theta) - self.prior.log_prob(theta)
        log_weight = log_weight + log_k * self.powers.sum()
        return Scaled(
            torch.where(moved[:, None], moved_theta, theta),
            torch.where(moved[:, None, None], moved_states, states),
            torch.where(moved, log_weight, 0.0),
            moved,
        )

    def _free(self, states: Tensor) -> Tensor:
        """Which trajectories touch no bound other than standstill, which scales: bool (n,)."""
        lowest, highest = self.simulator.acceleration_bounds
        acceleration = states[..., 1].diff(dim=-1) / self.simulator.dt
        inside = (acceleration > lowest + BOUND_TOLERANCE) & (
            acceleration < highest - BOUND_TOLERANCE
        )
        return inside.all(-1) & (states[..., 0] > SMALLEST_GAP).all(-1)


def scale_symmetry(simulator: Simulator) -> ScaleSymmetry | None:
    """The simulator's scale symmetry; None if it has none."""
    try:
        return ScaleSymmetry(simulator)
    except InputError:
        return None
