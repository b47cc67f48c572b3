"""Local attention computed as a band, and the [CLS] token's attention over all steps."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Finite, so that a padded step whose whole window is padding stays a number.
MASKED = -1e9


class LocalAttention(nn.Module):
    """Each step attends to the steps at most `window` away: 2 * window + 1 keys, cost linear in T.

    Key and value carry no bias: a key bias cancels in the softmax, a value bias equals one in the
    output projection. A learned bias per head and offset stands for the relative position.
    """

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.output = nn.Linear(dim, dim)
        self.position_bias = nn.Parameter(torch.zeros(heads, 2 * window + 1))

    def forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """New tokens (B, T, d); `valid` (B, T) is false at padding."""
        batch, steps, dim = tokens.shape
        head_dim = dim // self.heads
        query = self.query(tokens).view(batch, steps, self.heads, 1, head_dim)
        band = self._band(self.key_value(tokens))  # (B, T, 2w+1, 2d)
        key, value = band.view(batch, steps, -1, 2, self.heads, head_dim).unbind(3)
        scores = (query * key.transpose(2, 3)).sum(-1) / math.sqrt(head_dim)  # (B, T, h, 2w+1)
        inside = self._band(valid.to(tokens.dtype)[..., None])[..., 0] > 0  # (B, T, 2w+1)
        scores = (scores + self.position_bias).masked_fill(~inside[:, :, None], MASKED)
        weights = scores.softmax(-1)
        mixed = (weights[..., None] * value.transpose(2, 3)).sum(3)
        return self.output(mixed.reshape(batch, steps, dim))

    def _band(self, steps: Tensor) -> Tensor:
        """The window around each step, zero outside: (B, T, f) -> (B, T, 2w+1, f)."""
        padded = F.pad(steps, (0, 0, self.window, self.window))
        return padded.unfold(1, 2 * self.window + 1, 1).transpose(2, 3)


class GlobalAttention(nn.Module):
    """The [CLS] token attends to all steps of the trajectory.

    [CLS] stands just before the first step; its relative position bias is learned per head and per
    bucket of the distance, logarithmic beyond `EXACT` steps so that any length is covered.

    The products are reassociated: the query is carried into the tokens' space and the values are
    projected after averaging, so no step is ever projected to a key or a value. The result is the
    same, at 1 / head_dim of the cost.
    """

    EXACT, BUCKETS, FARTHEST = 8, 24, 512

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim)
        self.position_bias = nn.Parameter(torch.zeros(heads, self.BUCKETS))

    def forward(self, cls: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
        """The new [CLS] state (B, d)."""
        batch, steps, dim = tokens.shape
        head_dim = dim // self.heads
        query = self.query(cls).view(batch, self.heads, head_dim) / math.sqrt(head_dim)
        key_weight = self.key.weight.view(self.heads, head_dim, dim)
        lifted = torch.einsum("bhk,hkd->bhd", query, key_weight)
        scores = lifted @ tokens.transpose(1, 2)  # (B, h, T)
        scores = scores + self.position_bias[:, self._buckets(steps, tokens.device)]
        weights = scores.masked_fill(~valid[:, None], MASKED).softmax(-1)
        pooled = weights @ tokens  # (B, h, d)
        value_weight = self.value.weight.view(self.heads, head_dim, dim)
        mixed = torch.einsum("bhd,hkd->bhk", pooled, value_weight)
        return self.output(mixed.reshape(batch, dim))

    def _buckets(self, steps: int, device: torch.device) -> Tensor:
        distance = torch.arange(steps, device=device)
        ratio = torch.log(distance.clamp_min(1) / self.EXACT) / math.log(
            self.FARTHEST / self.EXACT
        )
        far = self.EXACT + (ratio * (self.BUCKETS - self.EXACT)).long()
        return torch.where(distance < self.EXACT, distance, far.clamp_max(self.BUCKETS - 1))
