"""Fast evaluation of an nflows autoregressive flow: same weights, no redundant work.

nflows inverts an autoregressive layer by D passes through the whole network, each with the context
projected anew for every sample. Here the hidden units are sorted by degree, the context is
projected once, and the units of degree i are computed once, as soon as variable i is known: an
inverse costs about one pass. Arrays are feature-major (features, contexts, samples), so the units
of one degree are contiguous rows. A member's fixed dropout masks are folded into the weights.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from nflows.flows.base import Flow
from nflows.transforms.autoregressive import (
    AutoregressiveTransform,
    MaskedAffineAutoregressiveTransform,
)
from nflows.transforms.made import MADE, MaskedLinear, MaskedResidualBlock
from nflows.transforms.permutations import Permutation
from torch import Tensor

# Columns (context, sample pairs) worked on at once: a hidden layer of them fits the cache.
CHUNK = 4096


class PackedLayer:
    """One autoregressive layer, its hidden units sorted by degree."""

    def __init__(self, transform: AutoregressiveTransform, context: Tensor) -> None:
        net: MADE = transform.autoregressive_net
        self.transform = transform
        self.activation = net.activation
        order = torch.argsort(net.initial_layer.degrees, stable=True)
        degrees = net.initial_layer.degrees[order]
        self.dim = net.initial_layer.in_features
        # Hidden units that are known once the first i variables are.
        self.known = [int((degrees <= i).sum()) for i in range(self.dim)]
        self.first_weight = _weight(net.initial_layer)[order]
        projected = self.activation(net.context_layer(context)) + net.initial_layer.bias
        self.first_bias = projected.T[order]  # (H, B)
        self.blocks = [_PackedBlock(block, order, context) for block in net.blocks]
        self.multiplier = net.final_layer.out_features // self.dim
        self.final_weight = _weight(net.final_layer)[:, order].contiguous()
        self.final_bias = net.final_layer.bias

    def inverse(self, noise: Tensor, contexts: slice) -> Tensor:
        """Variables x from noise, (D, b, n) -> (D, b, n), for the given slice of contexts."""
        dim, batch, samples = noise.shape
        x = torch.empty_like(noise)
        units = self.first_weight.shape[0]
        stream = noise.new_empty(len(self.blocks) + 1, units, batch * samples)
        active, inner = torch.empty_like(stream), torch.empty_like(stream)
        start = 0
        for i in range(dim):
            end = self.known[i]
            new = slice(start, end)
            if end > start:
                known = x[:i].reshape(i, -1)
                hidden = self.first_weight[new, :i] @ known
                _add_context(hidden, self.first_bias[new, contexts])
                stream[0, new] = hidden
                for k, block in enumerate(self.blocks):
                    active[k, new] = self.activation(stream[k, new])
                    temps = block.first_weight[new, :end] @ active[k, :end]
                    _add_context(temps, block.first_bias[new, contexts])
                    inner[k, new] = self.activation(temps)
                    update = block.second_weight[new, :end] @ inner[k, :end]
                    stream[k + 1, new] = stream[k, new] + update + block.second_bias[new]
            rows = slice(i * self.multiplier, (i + 1) * self.multiplier)
            params = self.final_weight[rows, :end] @ stream[-1, :end] + self.final_bias[rows, None]
            x[i] = self._invert_element(noise[i].reshape(-1), params).view(batch, samples)
            start = end
        return x

    def forward(self, x: Tensor, contexts: slice) -> tuple[Tensor, Tensor]:
        """Noise and log |det| from variables, (D, b, n) -> (D, b, n), (b, n)."""
        dim, batch, samples = x.shape
        stream = self.first_weight @ x.reshape(dim, -1)
        _add_context(stream, self.first_bias[:, contexts])
        for block in self.blocks:
            temps = block.first_weight @ self.activation(stream)
            _add_context(temps, block.first_bias[:, contexts])
            stream += block.second_weight @ self.activation(temps)
            stream += block.second_bias
        params = self.final_weight @ stream + self.final_bias[:, None]
        noise, log_det = self._map_elements(x.reshape(dim, -1), params)
        return noise.view(dim, batch, samples), log_det.view(batch, samples)

    def _invert_element(self, noise: Tensor, params: Tensor) -> Tensor:
        if isinstance(self.transform, MaskedAffineAutoregressiveTransform):
            return (noise - params[1]) / (F.softplus(params[0]) + self.transform._epsilon)
        # In float32 the spline's discriminant can round below zero, which nflows refuses.
        x, _ = self.transform._elementwise_inverse(
            noise[:, None].double(), params.T.double().contiguous()
        )
        return x[:, 0].to(noise.dtype)

    def _map_elements(self, x: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.transform, MaskedAffineAutoregressiveTransform):
            scale = F.softplus(params[0::2]) + self.transform._epsilon
            return scale * x + params[1::2], torch.log(scale).sum(0)
        noise, log_det = self.transform._elementwise_forward(x.T, params.T.contiguous())
        return noise.T, log_det


class _PackedBlock:
    """A residual block; a fixed dropout mask scales the columns of its second layer."""

    def __init__(self, block: MaskedResidualBlock, order: Tensor, context: Tensor) -> None:
        first, second = block.linear_layers
        self.first_weight = _weight(first)[order][:, order]
        self.first_bias = (block.context_layer(context) + first.bias).T[order]
        weight = _weight(second)
        if block.dropout.fixed_mask is not None:
            weight = weight * block.dropout.fixed_mask
        self.second_weight = weight[order][:, order]
        self.second_bias = second.bias[order, None]


class PackedFlow:
    """The inverse and the density grid of a flow, for a set of contexts."""

    def __init__(self, flow: Flow, context: Tensor) -> None:
        self.layers: list[PackedLayer | Tensor] = [
            part._permutation if isinstance(part, Permutation) else PackedLayer(part, context)
            for part in flow._transform._transforms
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
