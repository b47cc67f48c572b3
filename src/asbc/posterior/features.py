"""What the encoder reads at each step of a trajectory."""

from typing import Protocol

import torch
from torch import Tensor, nn

from asbc.utils.checks import require_shape

STATE = 3  # gap, speed, approach rate
# Residuals differ in roughness by orders of magnitude: beyond these sizes (m/s^3, m/s^4)
# the differences of the acceleration enter by their logarithm, with their sign.
SMALL_JERK, SMALL_SNAP = 0.1, 0.2


class Features(Protocol):
    """Inputs of the encoder (B, T', size) from states (B, T, 3), and the valid steps of each."""

    size: int

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]: ...


class States:
    """The paper's input: gap, speed and approach rate as they are.

    Args:
        size: entries of a state; other than 3 for models that are not car following.
    """

    def __init__(self, size: int = STATE) -> None:
        self.size = size

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The states themselves."""
        return states, lengths


class StatesAndActions:
    """Each state with what the driver did in it: one step of the likelihood's regression.

    The acceleration is a difference of speeds, hundreds of times smaller than their spread, that
    an encoder of standardised speeds first has to learn to see. With it come the leader's
    acceleration and, for close followers, the logarithm of the gap. The last state has no action
    yet; the likelihood does not use it either.

    Args:
        dt: time step (s).
        differences: whether to add the acceleration's own first and second differences since the
            steps before. They show how rough a residual is, to the last detail of its model.
    """

    def __init__(self, dt: float, differences: bool = False) -> None:
        self.dt = dt
        self.differences = differences
        self.size = STATE + (5 if differences else 3)

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step less than there are states."""
        require_shape("states", states, (None, None, STATE))
        gap, speed, approach_rate = states.unbind(-1)
        own = speed.diff(dim=1) / self.dt
        leader = (speed - approach_rate).diff(dim=1) / self.dt
        actions = [own, leader, gap.clamp_min(0.1).log()[:, :-1]]
        if self.differences:
            # Zero where there are not enough steps before.
            jerk = nn.functional.pad(own.diff(dim=1), (1, 0)) / self.dt
            snap = nn.functional.pad(own.diff(n=2, dim=1), (2, 0)) / self.dt**2
            actions += [torch.asinh(jerk / SMALL_JERK), torch.asinh(snap / SMALL_SNAP)]
        inputs = torch.cat([states[:, :-1], torch.stack(actions, dim=-1)], dim=-1)
        return inputs, _less_one(lengths)


def _less_one(lengths: Tensor | None) -> Tensor | None:
    return None if lengths is None else lengths - 1
