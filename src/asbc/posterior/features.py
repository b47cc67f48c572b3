"""What the encoder reads at each step of a trajectory."""

from typing import Protocol

import torch
from torch import Tensor

from asbc.utils.checks import require_shape

STATE = 3  # gap, speed, approach rate


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
    an encoder of standardised speeds first has to learn to see. With it come the logarithm of the
    gap, for close followers, and the leader's acceleration. The last state has no action yet; the
    likelihood does not use it either.

    Args:
        dt: time step (s).
    """

    size = STATE + 3

    def __init__(self, dt: float) -> None:
        self.dt = dt

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step less than there are states."""
        require_shape("states", states, (None, None, STATE))
        gap, speed, approach_rate = states.unbind(-1)
        own = speed.diff(dim=1) / self.dt
        leader = (speed - approach_rate).diff(dim=1) / self.dt
        log_gap = gap.clamp_min(0.1).log()[:, :-1]
        actions = torch.stack([own, leader, log_gap], dim=-1)
        return torch.cat([states[:, :-1], actions], dim=-1), _less_one(lengths)


def _less_one(lengths: Tensor | None) -> Tensor | None:
    return None if lengths is None else lengths - 1
