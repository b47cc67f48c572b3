"""Which samples of a pair a window is predicted from.

`first` is the paper's protocol: the first T_E samples of the pair, for all of its windows.
`latest` is the T_E samples right before each window, so it never holds a sample at or after its
start. A window that starts before T_E samples exist has no such context and uses the first T_E as
`first` does; windows after the context always have one.
"""

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import gather
from asbc.errors import InputError

FIRST, LATEST = "first", "latest"
CONTEXTS = (FIRST, LATEST)


def check_context(name: str) -> None:
    """Raise unless `name` is one of `CONTEXTS`."""
    if name not in CONTEXTS:
        raise InputError(f"evaluation.context={name}; expected one of {', '.join(CONTEXTS)}")


def context_start(context: str, start: Tensor, steps: int) -> Tensor:
    """First sample of the context of a window at each `start`.

    Example:
        >>> context_start("latest", torch.tensor([0, 40, 75, 95]), 75)
        tensor([ 0,  0,  0, 20])
        >>> context_start("first", torch.tensor([0, 40, 75, 95]), 75)
        tensor([0, 0, 0, 0])
    """
    return torch.zeros_like(start) if context == FIRST else (start - steps).clamp(min=0)


def context_states(pairs: Pairs, pair: Tensor, start: Tensor, steps: int) -> Tensor:
    """Gap, speed and approach rate of `steps` samples from each start, (context, steps, 3)."""
    gap, speed, leader = (
        gather(column, pairs.offsets, pair, start, steps)
        for column in (pairs.gap, pairs.speed, pairs.leader_speed)
    )
    return torch.stack([gap, speed, speed - leader], dim=-1)
