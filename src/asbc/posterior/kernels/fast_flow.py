"""Fast evaluation of an nflows autoregressive flow: same weights, no redundant work.

nflows inverts an autoregressive layer by D passes through the whole network, each with the context
projected anew for every sample. Here the hidden units are sorted by degree, the context is
projected once, and the units of degree i are computed once, as soon as variable i is known: an
inverse costs about one pass. Arrays are feature-major (features, contexts, samples), so the units
of one degree are contiguous rows. A member's fixed dropout masks are folded into the weights.
"""

import math
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from nflows.transforms.autoregressive import (
    AutoregressiveTransform,
    MaskedAffineAutoregressiveTransform,
)
from nflows.transforms.base import Transform
from nflows.transforms.made import MADE, MaskedLinear, MaskedResidualBlock
from nflows.transforms.permutations import Permutation
from torch import Tensor

from asbc.posterior.kernels.spline import Spline

# Columns (context, sample pairs) worked on at once: a hidden layer of them fits the cache.
CHUNK = 2048


class PackedLayer:
    """One autoregressive layer with tanh units, sorted by degree, for a set of contexts.

    tanh(x) = 2 sigmoid(2x) - 1, and the sigmoid is several times cheaper on a CPU. The constants
    go into the weights: the residual stream is kept at twice its size, and each product takes the
    sigmoid's output.
    """

    def __init__(self, transform: AutoregressiveTransform, context: Tensor) -> None:
        net: MADE = transform.autoregressive_net
        self.transform = transform
        affine = isinstance(transform, MaskedAffineAutoregressiveTransform)
        self.spline = None if affine else Spline(transform)
        order = torch.argsort(net.initial_layer.degrees, stable=True)
        degrees = net.initial_layer.degrees[order]
        self.dim = net.initial_layer.in_features
        self.units = len(order)
        # Hidden units that are known once the first i variables are.
        self.known = [int((degrees <= i).sum()) for i in range(self.dim)]
        self.first_weight = 2 * _weight(net.initial_layer)[order]
        projected = torch.tanh(net.context_layer(context)) + net.initial_layer.bias
        self.first_bias = 2 * projected.t()[order]  # (H, B)
        self.blocks = [_PackedBlock(block, order, context) for block in net.blocks]
        weight, bias = _weight(net.final_layer), net.final_layer.bias[:, None]
        if self.spline is not None:
            weight, bias = self.spline.pack(weight, bias)
        self.multiplier = len(weight) // self.dim
        self.final_weight = 0.5 * weight[:, order]
        self.final_bias = bias

    def inverse(self, noise: Tensor, contexts: slice) -> Tensor:
        """Variables x from noise, (D, b, n) -> (D, b, n), for the given slice of contexts."""
        dim, batch, samples = noise.shape
        noise = noise.reshape(dim, -1)
        x = torch.empty_like(noise)
        stream = noise.new_empty(self.units, noise.shape[1])
        # What the blocks' two products read, for the units known so far.
        active = noise.new_empty(len(self.blocks), 2, *stream.shape)
        start = 0
        for i in range(dim):
            end = self.known[i]
            if end > start:
                new, hidden = slice(start, end), stream[start:end]
                torch.mm(self.first_weight[new, :i], x[:i], out=hidden)
                _add_context(hidden, self.first_bias[new, contexts])
                for block, (first, second) in zip(self.blocks, active, strict=True):
                    torch.sigmoid(hidden, out=first[new])
                    inner = block.first_weight[new, :end] @ first[:end]
                    _add_context(inner, block.first_bias[new, contexts])
                    torch.sigmoid(inner, out=second[new])
                    hidden.addmm_(block.second_weight[new, :end], second[:end])
                    hidden += block.second_bias[new]
            rows = slice(i * self.multiplier, (i + 1) * self.multiplier)
            params = self.final_weight[rows, :end] @ stream[:end] + self.final_bias[rows]
            x[i] = self._invert_element(noise[i], params)
            start = end
        return x.view(dim, batch, samples)

    def training_inverse(self, noise: Tensor) -> Tensor:
        """The same for all contexts, with gradients to weights, contexts and noise.

        With dropout each context has masks of its own, held over all variables and samples: its
        samples are those of one member.
        """
        dim, batch, samples = noise.shape
        values = noise.reshape(dim, -1).unbind(0)
        masks = [block.training_mask(batch, samples) for block in self.blocks]
        streams: list[Tensor] = []  # of the units of each degree
        active: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.blocks]
        x: list[Tensor] = []
        start = 0
        for i in range(dim):
            end = self.known[i]
            if end > start:
                new = slice(start, end)
                hidden = _with_context(self.first_bias[new], samples)
                if x:
                    hidden = hidden + self.first_weight[new, :i] @ torch.stack(x)
                for block, known, mask in zip(self.blocks, active, masks, strict=True):
                    first = torch.sigmoid(hidden)
                    inner = block.first_weight[new, :end] @ _all(known, 0, first)
                    inner = inner + _with_context(block.first_bias[new], samples)
                    second = torch.sigmoid(inner)
                    if mask is not None:
                        # In units of tanh, which is what dropout scales.
                        second = (mask[new] * (2 * second - 1) + 1) / 2
                    hidden = hidden + block.second_weight[new, :end] @ _all(known, 1, second)
                    hidden = hidden + block.second_bias[new]
                    known.append((first, second))
                streams.append(hidden)
            rows = slice(i * self.multiplier, (i + 1) * self.multiplier)
            params = self.final_bias[rows].expand(-1, batch * samples)
            if streams:
                params = params + self.final_weight[rows, :end] @ torch.cat(streams)
            x.append(self._invert_element(values[i], params))
            start = end
        return torch.stack(x).view(dim, batch, samples)

    def forward(self, x: Tensor, contexts: slice) -> tuple[Tensor, Tensor]:
        """Noise and log |det| from variables, (D, b, n) -> (D, b, n), (b, n)."""
        dim, batch, samples = x.shape
        x = x.reshape(dim, -1)
        stream = self.first_weight @ x
        _add_context(stream, self.first_bias[:, contexts])
        active = torch.empty_like(stream)
        for block in self.blocks:
            torch.sigmoid(stream, out=active)
            inner = block.first_weight @ active
            _add_context(inner, block.first_bias[:, contexts])
            stream.addmm_(block.second_weight, inner.sigmoid_())
            stream += block.second_bias
        params = torch.addmm(self.final_bias, self.final_weight, stream)
        noise, log_det = self._map_elements(x, params)
        return noise.view(dim, batch, samples), log_det.view(batch, samples)

    def _invert_element(self, noise: Tensor, params: Tensor) -> Tensor:
        if self.spline is not None:
            return self.spline.inverse(noise, params)
        return (noise - params[1]) / (F.softplus(params[0]) + self.transform._epsilon)

    def _map_elements(self, x: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
        if self.spline is not None:
            noise, log_slope = self.spline.forward(x, params.unflatten(0, (self.dim, -1)))
            return noise, log_slope.sum(0)
        scale = F.softplus(params[0::2]) + self.transform._epsilon
        return scale * x + params[1::2], torch.log(scale).sum(0)


class _PackedBlock:
    """A residual block; a fixed dropout mask scales the columns of its second layer."""

    def __init__(self, block: MaskedResidualBlock, order: Tensor, context: Tensor) -> None:
        first, second = (_weight(layer)[order][:, order] for layer in block.linear_layers)
        mask = block.dropout.fixed_mask
        if mask is not None:
            second = second * mask[order]
        biases = [layer.bias[order, None] for layer in block.linear_layers]
        projected = block.context_layer(context).t()[order]  # (H, B)
        self.dropout = block.dropout
        self.first_weight = 4 * first
        self.first_bias = 2 * (projected + biases[0] - first.sum(1, keepdim=True))
        self.second_weight = 4 * second
        self.second_bias = 2 * (biases[1] - second.sum(1, keepdim=True))

    def training_mask(self, contexts: int, samples: int) -> Tensor | None:
        """A dropout mask (H, contexts * samples) in training; None where nothing is dropped."""
        if self.dropout.fixed_key is not None:
            return None  # it is in the weights
        levels = self.dropout.levels(contexts, self.first_bias.device)
        if levels is None:
            return None
        # Which unit a mask belongs to does not matter: they are independent and alike.
        return self.dropout.mask(levels).to(self.first_bias).repeat_interleave(samples, 0).t()


class PackedFlow:
    """The inverse and the density grid of a flow, for a set of contexts.

    Args:
        parts: autoregressive layers and permutations, in the order from variables to noise.
        context: (B, d).
    """

    def __init__(self, parts: Iterable[Transform], context: Tensor) -> None:
        self.layers: list[PackedLayer | Tensor] = [
            part._permutation if isinstance(part, Permutation) else PackedLayer(part, context)
            for part in parts
        ]

    def inverse(self, noise: Tensor) -> Tensor:
        """Samples from base noise: (B, n, D) -> (B, n, D)."""
        out = torch.empty_like(noise)
        for rows, columns in _chunks(*noise.shape[:2]):
            x = noise[rows, columns].permute(2, 0, 1).contiguous()
            for layer in reversed(self.layers):
                x = x[layer.argsort()] if isinstance(layer, Tensor) else layer.inverse(x, rows)
            out[rows, columns] = x.permute(1, 2, 0)
        return out

    def training_inverse(self, noise: Tensor) -> Tensor:
        """The same with gradients, and with dropout as the module's mode says."""
        x = noise.permute(2, 0, 1)
        for layer in reversed(self.layers):
            x = x[layer.argsort()] if isinstance(layer, Tensor) else layer.training_inverse(x)
        return x.permute(1, 2, 0)

    def log_prob(self, u: Tensor) -> Tensor:
        """log q(u | c): (B, n, D) -> (B, n)."""
        out = u.new_empty(u.shape[:2])
        for rows, columns in _chunks(*out.shape):
            x = u[rows, columns].permute(2, 0, 1)
            total = u.new_zeros(x.shape[1:])
            for layer in self.layers:
                if isinstance(layer, Tensor):
                    x = x[layer]
                else:
                    x, log_det = layer.forward(x, rows)
                    total = total + log_det
            out[rows, columns] = total - 0.5 * (x.square() + math.log(2 * math.pi)).sum(0)
        return out


def _weight(linear: MaskedLinear) -> Tensor:
    return linear.weight * linear.mask


def _with_context(projected: Tensor, samples: int) -> Tensor:
    """Each context's projection (h, b) for all of its samples, (h, b * samples)."""
    return projected.repeat_interleave(samples, dim=1)


def _all(known: list[tuple[Tensor, Tensor]], place: int, new: Tensor) -> Tensor:
    """What is known of a block's first or second activations, with those that are new."""
    return torch.cat([*(pair[place] for pair in known), new]) if known else new


def _add_context(hidden: Tensor, projected: Tensor) -> None:
    """Add each context's projection (h, b) to its samples, in place in (h, b * n)."""
    hidden.view(*projected.shape, -1).add_(projected[..., None])


def _chunks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Slices that tile a (rows, columns) grid in pieces of at most CHUNK cells."""
    width = min(columns, CHUNK)
    height = max(1, CHUNK // max(width, 1))
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, min(top + height, rows)), slice(left, min(left + width, columns))
