"""Conditional autoregressive flows q(u | c) built from nflows, with a faster sampler.

The density is nflows' own, with its dropout replaced by ours. Sampling and grids of densities go
through `asbc.posterior.kernels.fast_flow`, which uses the same weights.
"""

import math
from collections.abc import Callable, Iterable

import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows.base import Flow
from nflows.transforms.autoregressive import (
    AutoregressiveTransform,
    MaskedAffineAutoregressiveTransform,
    MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
)
from nflows.transforms.base import CompositeTransform, Transform
from nflows.transforms.made import MADE
from nflows.transforms.permutations import ReversePermutation
from torch import Tensor, nn

from asbc.posterior.kernels.dropout import Dropout, check_probability
from asbc.posterior.kernels.fast_flow import PackedFlow
from asbc.utils.checks import check_integer, check_number

# Contexts projected at once: each takes 4 kB in the default flow.
CONTEXTS = 4096


class ConditionalFlow(nn.Module):
    """A density over u in R^D given a context vector; the base is a standard Gaussian.

    Args:
        transforms: Autoregressive layers; the order of the variables is reversed between them.
        hidden: Hidden units of their networks.
        dropout: Drop probability inside their networks.
        dim: Number D of parameters.
    """

    def __init__(self, transforms: list[Transform], hidden: int, dropout: float, dim: int) -> None:
        super().__init__()
        self.dim = dim
        layers: list[Transform] = []
        for transform in transforms:
            layers += [transform, ReversePermutation(dim)]
            _let_context_reach_every_variable(transform.autoregressive_net)
            for block in transform.autoregressive_net.blocks:
                block.dropout = Dropout(dropout, hidden)
        self.flow = Flow(CompositeTransform(layers[:-1]), StandardNormal([dim]))

    @property
    def layers(self) -> int:
        """Number of autoregressive layers."""
        return (len(self._parts) + 1) // 2

    @property
    def _parts(self) -> nn.ModuleList:
        """Layers and permutations, in the order from variables to noise."""
        return self.flow._transform._transforms

    def log_prob(self, u: Tensor, context: Tensor) -> Tensor:
        """log q(u | c), row by row: (B, D), (B, d) -> (B,); dropout as the module's mode says."""
        return self.flow.log_prob(u, context)

    @torch.no_grad()
    def log_prob_many(self, u: Tensor, context: Tensor) -> Tensor:
        """log q(u | c) of n points per context, without dropout: (B, n, D), (B, d) -> (B, n)."""
        return _in_pieces(self._parts, PackedFlow.log_prob, u, context)

    def log_prob_grid(self, u: Tensor, context: Tensor) -> Tensor:
        """log q(u_n | c_b) of all pairs, without dropout: (N, D), (B, d) -> (B, N)."""
        return self.log_prob_many(u.expand(len(context), *u.shape), context)

    @torch.no_grad()
    def inverse(self, noise: Tensor, context: Tensor) -> Tensor:
        """The samples that base noise maps to: (B, n, D), (B, d) -> (B, n, D)."""
        return _in_pieces(self._parts, PackedFlow.inverse, noise, context)

    @torch.no_grad()
    def inverse_layer(self, layer: int, noise: Tensor, context: Tensor) -> Tensor:
        """One layer of `inverse`, which is all of them from the last to the first."""
        # Each layer but the last has a permutation after it.
        parts = self._parts[2 * layer : 2 * layer + 2]
        return _in_pieces(parts, PackedFlow.inverse, noise, context)

    def training_inverse(self, noise: Tensor, context: Tensor) -> Tensor:
        """The same with gradients to weights and contexts, and dropout as the mode says."""
        return PackedFlow(self._parts, context).training_inverse(noise)


class MaskedAutoregressiveFlow(ConditionalFlow):
    """The paper's MAF: affine autoregressive layers (nflows).

    Args:
        dim: Number D of parameters.
        context_dim: Size of the context vector.
        layers: Autoregressive layers.
        hidden: Hidden units of each layer's network.
        blocks: Residual blocks of each layer's network.
        dropout: Drop probability inside the blocks.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        layers: int = 5,
        hidden: int = 64,
        blocks: int = 2,
        dropout: float = 0.1,
    ) -> None:
        _check_settings(dropout, layers=layers, hidden=hidden, blocks=blocks)
        transforms = [
            MaskedAffineAutoregressiveTransform(
                features=dim,
                hidden_features=hidden,
                context_features=context_dim,
                num_blocks=blocks,
                activation=torch.tanh,
            )
            for _ in range(layers)
        ]
        for transform in transforms:
            _start_near_identity(transform, slice(0, 1))
        super().__init__(transforms, hidden, dropout, dim)


class NeuralSplineFlow(ConditionalFlow):
    """Rational-quadratic splines in place of the affine maps (nflows).

    Args:
        dim: Number D of parameters.
        context_dim: Size of the context vector.
        layers: Autoregressive layers.
        hidden: Hidden units of each layer's network.
        blocks: Residual blocks of each layer's network.
        dropout: Drop probability inside the blocks.
        bins: Spline pieces.
        tail_bound: The spline acts on [-tail_bound, tail_bound], the identity beyond.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        layers: int = 3,
        hidden: int = 64,
        blocks: int = 2,
        dropout: float = 0.1,
        bins: int = 8,
        tail_bound: float = 5.0,
    ) -> None:
        _check_settings(dropout, layers=layers, hidden=hidden, blocks=blocks, bins=bins)
        check_number("flow.tail_bound", tail_bound, above=0)
        transforms = [
            MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
                features=dim,
                hidden_features=hidden,
                context_features=context_dim,
                num_blocks=blocks,
                num_bins=bins,
                tails="linear",
                tail_bound=tail_bound,
                activation=torch.tanh,
            )
            for _ in range(layers)
        ]
        for transform in transforms:
            _start_near_identity(transform, slice(2 * bins, None))
        super().__init__(transforms, hidden, dropout, dim)


def _check_settings(dropout: float, **sizes: int) -> None:
    for name, value in sizes.items():
        check_integer(f"flow.{name}", value, minimum=1)
    check_probability("flow.dropout", dropout)


def _in_pieces(
    parts: Iterable[Transform],
    method: Callable[[PackedFlow, Tensor], Tensor],
    points: Tensor,
    context: Tensor,
) -> Tensor:
    """A method of the packed flow, for a bounded number of contexts at a time."""
    pieces = zip(points.split(CONTEXTS), context.split(CONTEXTS), strict=True)
    return torch.cat([method(PackedFlow(parts, c), p) for p, c in pieces])


def _let_context_reach_every_variable(net: MADE) -> None:
    """Give some hidden units degree 0: they see the context and no variable.

    nflows' degrees start at 1, which leaves the first variable of each layer without any hidden
    unit, so that its map could not depend on the context.
    """
    dim, units = net.initial_layer.in_features, net.initial_layer.out_features
    degrees = torch.arange(units) % dim
    net.initial_layer.degrees = degrees
    net.initial_layer.mask = (degrees[:, None] >= torch.arange(1, dim + 1)).float()
    for linear in (linear for block in net.blocks for linear in block.linear_layers):
        linear.degrees = degrees
        linear.mask = (degrees[:, None] >= degrees).float()
    net.final_layer.mask = (net.final_layer.degrees[:, None] > degrees).float()


def _start_near_identity(transform: AutoregressiveTransform, slopes: slice) -> None:
    """Small output weights, and biases that make each element's slopes one.

    nflows starts every layer at slope softplus(0) = 0.69, and at random otherwise.
    """
    final = transform.autoregressive_net.final_layer
    with torch.no_grad():
        final.weight *= 0.1
        final.bias.zero_()
        # Both kinds of slope are softplus(parameter) + 1e-3.
        final.bias.view(transform.autoregressive_net.initial_layer.in_features, -1)[:, slopes] = (
            math.log(math.expm1(1.0 - 1e-3))
        )
