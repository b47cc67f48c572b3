"""The position-wise half of a transformer block, in cache-sized pieces, with its gradient.

For rows x (the state) and a (what attention gathered),

    y   = norm(x + dropout(a))
    out = norm(y + dropout(W2 dropout(gelu(W1 y + b1)) + b2))

On a CPU most of the time of the ordinary version goes into writing arrays of hidden activations to
fresh memory and into drawing dropout masks. Here a few hundred rows at a time pass through buffers
that stay in the cache, the backward pass recomputes the hidden layer, and masks are random bytes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

# Hidden values worked on at once, 0.6 MB: 600 rows of the paper's 256.
VALUES = 600 * 256
EPSILON = 1e-5


class Masks(NamedTuple):
    """Random levels of the three dropout sites (None: keep all), and how they are used."""

    attention: Tensor | None  # (N, d) bytes
    hidden: Tensor | None  # (N, H)
    output: Tensor | None  # (N, d)
    dropped: int  # levels below this are dropped
    scale: float  # of the kept values


class ResidualUpdate(Function):
    """The update above, for rows (N, d); weights in the order in which they act."""

    @staticmethod
    def forward(
        ctx: Any,
        state: Tensor,
        gathered: Tensor,
        weight1: Tensor,
        bias1: Tensor,
        expand: Tensor,
        expand_bias: Tensor,
        contract: Tensor,
        contract_bias: Tensor,
        weight2: Tensor,
        bias2: Tensor,
        masks: Masks,
    ) -> Tensor:
        first, second, out = (torch.empty_like(state) for _ in range(3))
        moments1, moments2 = (state.new_empty(2, len(state), 1) for _ in range(2))
        work = _Buffers(state, expand, masks)
        for rows in _row_slices(len(state), len(expand)):
            work.add_dropped(state[rows], gathered[rows], masks.attention, rows, first[rows])
            normed = _normalise(first[rows], weight1, bias1, moments1[:, rows])
            hidden = torch.addmm(expand_bias, normed, expand.t(), out=work.hidden(rows))
            torch.ops.aten.gelu.out(hidden, out=hidden)
            scale = work.drop_(hidden, masks.hidden, rows)
            update = torch.addmm(contract_bias, hidden, contract.t(), alpha=scale)
            work.add_dropped(normed, update, masks.output, rows, second[rows])
            _normalise(second[rows], weight2, bias2, moments2[:, rows], out[rows])
        ctx.save_for_backward(
            first, second, moments2,
            weight1, bias1, expand, expand_bias, contract, weight2, bias2,
        )  # fmt: skip
        ctx.masks = masks
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first, second, moments2, *weights = ctx.saved_tensors
        weight1, bias1, expand, expand_bias, contract, weight2, bias2 = weights
        grad, masks = grads[0].contiguous(), ctx.masks
        grad_state, grad_gathered = torch.empty_like(first), torch.empty_like(first)
        sums = [torch.zeros_like(p) for p in (weight1, bias1, expand, expand_bias, contract)]
        sums += [torch.zeros_like(p) for p in (weight2, weight2, bias2)]
        moments1 = torch.empty_like(moments2)
        work = _Buffers(first, expand, masks)
        for rows in _row_slices(len(first), len(expand)):
            normed = _normalise(first[rows], weight1, bias1, moments1[:, rows])
            grad_second, *grads2 = _normalise_backward(
                grad[rows], second[rows], moments2[:, rows], weight2, bias2
            )
            grad_update = torch.empty_like(grad_second)
            work.dropped(grad_second, masks.output, rows, grad_update)
            before = torch.addmm(expand_bias, normed, expand.t(), out=work.hidden(rows))
            hidden = torch.ops.aten.gelu.out(before, out=work.hidden(rows, 1))
            grad_hidden = torch.mm(grad_update, contract, out=work.hidden(rows, 2))
            scale = work.drop_(hidden, masks.hidden, rows)
            sums[4].addmm_(grad_update.t(), hidden, alpha=scale)
            sums[5] += grad_update.sum(0)
            work.drop_(grad_hidden, masks.hidden, rows)
            grad_before = torch.ops.aten.gelu_backward.grad_input(
                grad_hidden, before, grad_input=hidden
            )
            sums[2].addmm_(grad_before.t(), normed, alpha=scale)
            sums[3].add_(grad_before.sum(0), alpha=scale)
            grad_normed = torch.addmm(grad_second, grad_before, expand, alpha=scale)
            grad_first, *grads1 = _normalise_backward(
                grad_normed, first[rows], moments1[:, rows], weight1, bias1, grad_state[rows]
            )
            for total, piece in zip((*sums[:2], *sums[6:]), (*grads1, *grads2), strict=True):
                total += piece
            work.dropped(grad_first, masks.attention, rows, grad_gathered[rows])
        return grad_state, grad_gathered, *sums, None


class _Buffers:
    """Arrays reused for every piece of rows, and dropout through them."""

    def __init__(self, like: Tensor, expand: Tensor, masks: Masks) -> None:
        size = min(_rows_at_once(len(expand)), len(like))
        self._hidden = [like.new_empty(size, len(expand)) for _ in range(3)]
        self._masks = {dim: like.new_empty(size, dim) for dim in expand.shape}
        self.settings = masks

    def hidden(self, rows: slice, index: int = 0) -> Tensor:
        """One of three hidden-layer buffers."""
        return self._hidden[index][: rows.stop - rows.start]

    def drop_(self, values: Tensor, levels: Tensor | None, rows: slice) -> float:
        """Zero the dropped values in place; returns the scale that the kept ones still need."""
        if levels is None:
            return 1.0
        values.mul_(self._keep(levels[rows]))
        return self.settings.scale

    def dropped(self, values: Tensor, levels: Tensor | None, rows: slice, out: Tensor) -> Tensor:
        """Values with dropout applied, written to `out`."""
        if levels is None:
            return out.copy_(values)
        return torch.mul(values, self._keep(levels[rows]), out=out).mul_(self.settings.scale)

    def add_dropped(
        self, base: Tensor, values: Tensor, levels: Tensor | None, rows: slice, out: Tensor
    ) -> None:
        """Write base + dropout(values) to `out`."""
        if levels is None:
            torch.add(base, values, out=out)
        else:
            keep = self._keep(levels[rows])
            torch.addcmul(base, values, keep, value=self.settings.scale, out=out)

    def _keep(self, levels: Tensor) -> Tensor:
        # Comparing into a float array is many times cheaper than multiplying by booleans.
        out = self._masks[levels.shape[1]][: len(levels)]
        return torch.ge(levels, self.settings.dropped, out=out)


def _rows_at_once(hidden: int) -> int:
    return max(1, VALUES // hidden)


def _row_slices(count: int, hidden: int) -> list[slice]:
    rows = _rows_at_once(hidden)
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def _normalise(
    values: Tensor, weight: Tensor, bias: Tensor, moments: Tensor, out: Tensor | None = None
) -> Tensor:
    """Layer norm into `out`; `moments` (2, N, 1) receives what its gradient needs."""
    out = torch.empty_like(values) if out is None else out
    return torch.ops.aten.native_layer_norm.out(
        values, weight.shape, weight, bias, EPSILON, out0=out, out1=moments[0], out2=moments[1]
    )[0]


def _normalise_backward(
    grad: Tensor,
    values: Tensor,
    moments: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a layer norm: of its input (into `out`), weight and bias."""
    return torch.ops.aten.native_layer_norm_backward.out(
        grad, values, weight.shape, moments[0], moments[1], weight, bias, [True, True, True],
        out0=torch.empty_like(values) if out is None else out,
        out1=torch.empty_like(weight), out2=torch.empty_like(bias),
    )  # fmt: skip
