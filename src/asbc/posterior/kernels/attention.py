"""Local attention among the steps of a trajectory, and the [CLS] token's attention to all of them.

Products are reassociated wherever that is cheaper. The first layer's tokens are W_in h_t with h_t
in R^3, so its scores are bilinear forms in h_t, and averages of values are projections of averages
of h_t: no step needs a query, key or value of full size. [CLS] asks one question per trajectory,
so its query is carried into the tokens' space and its values are projected after averaging. The
results are those of ordinary multi-head attention.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function


class BandAttention(Function):
    """Softmax attention of each position to the keys at offsets 0 .. O-1 from it.

    Args:
        query: (h, r, M), already scaled.
        key: (h or 1, r, M + O - 1); position m sees m .. m + O - 1. A first size of 1 is shared
            by all heads.
        value: (h or 1, s, M + O - 1).
        bias: Added to the scores per head and offset (h, O).
        mask: Added to the scores per offset and position (O, M).

    Returns:
        Weighted means of the values (h, s, M).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor
    ) -> Tensor:
        heads, offsets = bias.shape
        size = query.shape[-1]
        weights = query.new_empty(heads, offsets, size)
        for o in range(offsets):
            torch.sum(query * key[..., o : o + size], dim=1, out=weights[:, o])
        weights += bias[..., None]
        weights += mask
        weights = torch.softmax(weights, 1)
        pooled = query.new_zeros(heads, value.shape[1], size)
        for o in range(offsets):
            pooled.addcmul_(weights[:, o, None], value[..., o : o + size])
        ctx.save_for_backward(query, key, value, weights)
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        offsets, size = weights.shape[1:]
        grad_weights = torch.empty_like(weights)
        for o in range(offsets):
            torch.sum(grad * value[..., o : o + size], dim=1, out=grad_weights[:, o])
        mean = (grad_weights * weights).sum(1, keepdim=True)
        grad_scores = grad_weights.sub_(mean).mul_(weights)
        grad_query = torch.zeros_like(query)
        for o in range(offsets):
            grad_query.addcmul_(grad_scores[:, o, None], key[..., o : o + size])
        grad_key = _scatter(query, grad_scores, key) if ctx.needs_input_grad[1] else None
        grad_value = _scatter(grad, weights, value) if ctx.needs_input_grad[2] else None
        return grad_query, grad_key, grad_value, grad_scores.sum(-1), None


class PooledAttention(Function):
    """Softmax attention of a few queries per trajectory to all its steps.

    The gradient of the steps is one product of the two that ordinary autograd forms and adds.

    Args:
        query: (B, h, r), already scaled.
        steps: Keys and values alike (B, T, r).
        bias: Added to the scores (B or 1, h, T).

    Returns:
        Weighted means of the steps (B, h, r).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, steps: Tensor, bias: Tensor) -> Tensor:
        scores = torch.bmm(query, steps.transpose(1, 2)).add_(bias)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(query, steps, weights)
        ctx.shared_bias = len(bias) == 1
        return torch.bmm(weights, steps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, steps, weights = ctx.saved_tensors
        grad_weights = torch.bmm(grads[0], steps.transpose(1, 2))
        mean = (grad_weights * weights).sum(-1, keepdim=True)
        grad_scores = grad_weights.sub_(mean).mul_(weights)
        grad_steps = None
        if ctx.needs_input_grad[1]:
            per_step = torch.cat((weights, grad_scores), 1).transpose(1, 2)  # (B, T, 2h)
            grad_steps = torch.bmm(per_step, torch.cat((grads[0], query), 1))
        grad_bias = grad_scores.sum(0, keepdim=True) if ctx.shared_bias else grad_scores
        return torch.bmm(grad_scores, steps), grad_steps, grad_bias


def _scatter(rows: Tensor, weights: Tensor, like: Tensor) -> Tensor:
    """The transpose of reading `like` at each offset: weighted rows added where they were read."""
    out = torch.zeros_like(like)
    size = rows.shape[-1]
    for o in range(weights.shape[1]):
        piece = weights[:, o, None] * rows
        out[..., o : o + size] += piece.sum(0, keepdim=True) if len(like) == 1 else piece
    return out


# Finite, so that a padded step whose whole window is padding stays a number.
MASKED = -1e9


class Steps(NamedTuple):
    """Tokens of all steps, perhaps as a linear map of something smaller."""

    values: Tensor  # (B, T, r)
    embedding: Tensor | None  # (d, r): the tokens are embedding @ values; None: the values
    valid: Tensor | None  # (B, T), false at padding; None: no padding

    def through(self, weight: Tensor) -> Tensor:
        """The matrix that acts on `values` as `weight` acts on the tokens."""
        return weight if self.embedding is None else weight @ self.embedding

    def tokens(self) -> Tensor:
        """The tokens themselves (B, T, d)."""
        return self.values if self.embedding is None else F.linear(self.values, self.embedding)


class LocalAttention(nn.Module):
    """Each step attends to the steps at most `window` away: 2 * window + 1 keys, cost linear in T.

    Key and value carry no bias: a key bias cancels in the softmax, a value bias equals one in the
    output projection. A learned bias per head and offset stands for the relative position.
    """

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim)
        self.position_bias = nn.Parameter(torch.zeros(heads, 2 * window + 1))

    def forward(self, steps: Steps) -> Tensor:
        """What each step gathers from its window (B, T, d)."""
        batch, length, size = steps.values.shape
        dim = self.query.out_features
        split = (self.heads, dim // self.heads, -1)
        query = steps.through(self.query.weight / math.sqrt(split[1])).view(split)
        query_bias = self.query.bias.view(split) / math.sqrt(split[1])
        key = steps.through(self.key.weight).view(split)
        value = steps.through(self.value.weight).view(split)
        # Feature-major, each trajectory padded by the window: (r, B * (T + 2w)), and a tail.
        padded = F.pad(steps.values, (0, 0, self.window, self.window)).permute(2, 0, 1)
        padded = F.pad(padded.reshape(size, -1), (0, 2 * self.window))
        centre = padded[:, self.window : padded.shape[1] - self.window]
        if size < split[1]:  # shared raw keys and values; the products move to query and output
            query_weight = torch.einsum("hkr,hks->hrs", key, query).reshape(-1, size)
            lifted_bias = torch.einsum("hkr,hk->hr", key, query_bias[..., 0]).reshape(-1, 1)
            lifted = torch.addmm(lifted_bias, query_weight, centre)
            keys = values = padded[None]
            output = torch.einsum(
                "dhk,hkr->dhr", self.output.weight.view(dim, *split[:2]), value
            ).reshape(dim, -1)
        else:
            lifted = torch.addmm(query_bias.reshape(-1, 1), query.reshape(dim, size), centre)
            keys = (key.reshape(dim, size) @ padded).view(*split[:2], -1)
            values = (value.reshape(dim, size) @ padded).view(*split[:2], -1)
            output = self.output.weight
        mask = self._mask(steps)
        pooled = BandAttention.apply(
            lifted.view(self.heads, -1, centre.shape[1]), keys, values, self.position_bias, mask
        )
        pooled = pooled.reshape(output.shape[1], batch, -1)[..., :length]
        mixed = torch.addmm(self.output.bias, pooled.reshape(len(pooled), -1).t(), output.t())
        return mixed.view(batch, length, dim)

    def _mask(self, steps: Steps) -> Tensor:
        """Zero where a key is a step of the trajectory, MASKED elsewhere: (2w+1, B * (T + 2w))."""
        batch, length, _ = steps.values.shape
        inside = steps.values.new_full((batch, length + 2 * self.window), MASKED)
        inside[:, self.window : self.window + length] = 0.0
        if steps.valid is not None:
            inside[:, self.window : self.window + length].masked_fill_(~steps.valid, MASKED)
        flat = F.pad(inside.view(-1), (0, 2 * self.window), value=MASKED)
        return flat.unfold(0, 2 * self.window + 1, 1).t()


class GlobalAttention(nn.Module):
    """The [CLS] token attends to all steps of the trajectory.

    [CLS] stands just before the first step; its relative position bias is learned per head and per
    bucket of the distance, logarithmic beyond `EXACT` steps so that any length is covered.
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

    def forward(self, cls: Tensor, steps: Steps) -> Tensor:
        """What [CLS] gathers from all steps (B, d)."""
        batch, dim = cls.shape
        split = (self.heads, dim // self.heads, -1)
        pooled = PooledAttention.apply(*self._scores(cls, steps))  # (B, h, r)
        value = steps.through(self.value.weight).view(split)
        return self.output(torch.einsum("bhr,hkr->bhk", pooled, value).reshape(batch, dim))

    def weights(self, cls: Tensor, steps: Steps) -> Tensor:
        """How much of each head's attention a step has, (B, h, T)."""
        query, values, bias = self._scores(cls, steps)
        return torch.softmax(torch.bmm(query, values.transpose(1, 2)) + bias, -1)

    def _scores(self, cls: Tensor, steps: Steps) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, h, r) to the steps' values, these, and what is added to the products."""
        batch, dim = cls.shape
        split = (self.heads, dim // self.heads, -1)
        query = self.query(cls).view(batch, *split[:2]) / math.sqrt(split[1])
        lifted = torch.einsum("bhk,hkr->bhr", query, steps.through(self.key.weight).view(split))
        bias = self.position_bias[None, :, self._buckets(steps.values.shape[1], cls.device)]
        if steps.valid is not None:
            bias = bias.masked_fill(~steps.valid[:, None], MASKED)
        return lifted, steps.values, bias

    def _buckets(self, steps: int, device: torch.device) -> Tensor:
        distance = torch.arange(steps, device=device)
        share = torch.log(distance.clamp_min(1) / self.EXACT) / math.log(
            self.FARTHEST / self.EXACT
        )
        far = self.EXACT + (share * (self.BUCKETS - self.EXACT)).long()
        return torch.where(distance < self.EXACT, distance, far.clamp_max(self.BUCKETS - 1))
