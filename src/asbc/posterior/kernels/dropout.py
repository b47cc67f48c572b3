"""Dropout with cheap random bits in training, and with one fixed mask in a frozen member.

Drawing random numbers is most of what ordinary dropout costs on a CPU. One 64-bit random word
holds eight 8-bit levels, so the drop probability is rounded to a multiple of 1/256 and the kept
values are scaled by the exact inverse of the realised keep probability: the expectation is
unchanged.
"""

import numpy as np
import torch
from torch import Tensor, nn

from asbc.errors import InputError
from asbc.utils.random import key as member_key

LEVELS = 256


class Dropout(nn.Module):
    """Random dropout in training, the identity in evaluation, one fixed mask in a member.

    Args:
        probability: Share of values to drop, in [0, 1); rounded to a multiple of 1/256.
        features: Size of the last axis. A member's fixed mask runs over it and, as training's
            does, over the steps of a trajectory; trajectories and parameters share it, so a
            member is one deterministic network.
    """

    def __init__(self, probability: float, features: int) -> None:
        super().__init__()
        check_probability("dropout probability", probability)
        self.features = features
        self.dropped = min(round(probability * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.dropped)
        self.fixed_key: int | None = None
        self._fixed = torch.empty(0, features, dtype=torch.uint8)

    @property
    def probability(self) -> float:
        """The realised drop probability."""
        return self.dropped / LEVELS

    @property
    def fixed_mask(self) -> Tensor | None:
        """A member's scaled mask (features,) where there are no steps; None elsewhere."""
        return None if self.fixed_key is None else self.mask(self._fixed_levels(1)[0])

    def fix(self, key: int) -> None:
        """Fix the mask that every later pass uses; longer trajectories continue it."""
        self.fixed_key = key
        self._fixed = torch.empty(0, self.features, dtype=torch.uint8)

    def _fixed_levels(self, steps: int) -> Tensor:
        """The member's bytes (steps, features): those of fewer steps are the first rows."""
        if len(self._fixed) < steps:
            assert self.fixed_key is not None
            rng = np.random.default_rng(self.fixed_key)
            levels = rng.integers(0, LEVELS, size=(steps, self.features), dtype=np.uint8)
            self._fixed = torch.from_numpy(levels)
        return self._fixed[:steps]

    def levels(self, rows: int, device: torch.device, steps: int = 1) -> Tensor | None:
        """Random bytes (rows, features); those below `dropped` mean drop. None: keep all.

        Args:
            rows: of all trajectories, one after the other.
            device: where to put them.
            steps: rows of each trajectory.
        """
        if self.fixed_key is not None:
            return self._fixed_levels(steps).to(device).repeat(rows // steps, 1)
        if not self.training or self.dropped == 0:
            return None
        count = rows * self.features
        words = torch.empty((count + 7) // 8, dtype=torch.int64, device=device)
        # Without a lower bound `random_` leaves the sign bit at zero.
        words.random_(torch.iinfo(torch.int64).min, None)
        return words.view(torch.uint8)[:count].view(rows, self.features)

    def forward(self, inputs: Tensor) -> Tensor:
        levels = self.levels(inputs.numel() // self.features, inputs.device)
        return inputs if levels is None else inputs * self.mask(levels).view_as(inputs)

    def mask(self, levels: Tensor) -> Tensor:
        """What values are multiplied by: 0 where dropped, else the scale."""
        return (levels >= self.dropped) * self.scale

    def extra_repr(self) -> str:
        return f"probability={self.probability:.4f}, features={self.features}"


def fix_masks(module: nn.Module, key: int) -> None:
    """Fix every dropout mask inside `module`, each from its own stream of `key`."""
    for name, part in module.named_modules():
        if isinstance(part, Dropout):
            part.fix(member_key(key, "dropout", name))


def check_probability(field: str, value: object) -> None:
    """Raise, naming `field`, unless the value is a drop probability."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{field}={value}; expected a number of at least 0 and below 1")


def require_fixable(network: str, module: object) -> None:
    """Raise if a network has dropout of another kind, which no member could hold fixed.

    It would silently lose its uncertainty in the acquisition.
    """
    for name, part in module.named_modules() if isinstance(module, nn.Module) else ():
        if _drops(part):
            raise InputError(
                f"{f'{network}.{name}'.rstrip('.')}: the dropout of {type(part).__name__} cannot "
                "be held fixed in a member; use "
                "asbc.posterior.kernels.dropout.Dropout(probability, features)"
            )


def _drops(part: nn.Module) -> bool:
    """Whether a module of torch's own drops values in training."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    return isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0
