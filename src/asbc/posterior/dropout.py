"""Dropout with cheap random bits in training, and with one fixed mask in a frozen member.

Drawing random numbers is most of what ordinary dropout costs on a CPU. One 64-bit random word
holds eight 8-bit thresholds, so the drop probability is rounded to a multiple of 1/256 and the
kept values are scaled by the exact inverse of the realised keep probability: the expectation is
unchanged.
"""

import numpy as np
import torch
from torch import Tensor, nn

from asbc.utils.checks import InputError
from asbc.utils.random import stream

LEVELS = 256


class Dropout(nn.Module):
    """Random dropout in training, the identity in evaluation, one fixed mask in a member.

    Args:
        probability: Share of values to drop, in [0, 1); rounded to a multiple of 1/256.
        features: Size of the last axis, over which a member's fixed mask runs. All other axes
            (batch, time, parameters) share the mask, so a member is one deterministic network.
    """

    def __init__(self, probability: float, features: int) -> None:
        super().__init__()
        if not 0.0 <= probability < 1.0:
            raise InputError(f"dropout probability is {probability}, expected a value in [0, 1)")
        self.features = features
        self.dropped_levels = min(round(probability * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.dropped_levels)
        self.register_buffer("fixed_mask", None, persistent=False)

    @property
    def probability(self) -> float:
        """The realised drop probability."""
        return self.dropped_levels / LEVELS

    def fix(self, rng: np.random.Generator) -> None:
        """Draw the mask that every later pass uses."""
        kept = rng.integers(0, LEVELS, size=self.features) >= self.dropped_levels
        mask = torch.from_numpy(kept.astype(np.float32)) * self.scale
        self.fixed_mask = mask

    def random_mask(self, shape: torch.Size, device: torch.device) -> Tensor:
        """A fresh boolean keep mask from torch's global generator."""
        count = shape.numel()
        words = torch.empty((count + 7) // 8, dtype=torch.int64, device=device)
        # Without bounds `random_` leaves the sign bit at zero; the full range uses all 64 bits.
        words.random_(torch.iinfo(torch.int64).min, None)
        return words.view(torch.uint8)[:count].view(shape) >= self.dropped_levels

    def forward(self, inputs: Tensor) -> Tensor:
        if self.fixed_mask is not None:
            return inputs * self.fixed_mask
        if not self.training or self.dropped_levels == 0:
            return inputs
        return inputs * (self.random_mask(inputs.shape, inputs.device) * self.scale)

    def extra_repr(self) -> str:
        return f"probability={self.probability:.4f}, features={self.features}"


def fix_masks(module: nn.Module, key: int) -> None:
    """Fix every dropout mask inside `module`, each from its own stream of `key`."""
    for name, part in module.named_modules():
        if isinstance(part, Dropout):
            part.fix(stream(key, "dropout", name))
