"""Attention within a sliding window, computed as a band with its gradient written out.

Arrays are feature-major, time last: the key at one offset is then a shifted slice of a contiguous
row, and nothing is gathered or copied per window.
"""

from typing import Any

import torch
from torch import Tensor
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
