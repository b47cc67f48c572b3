"""From a trajectory of any length to one context vector: what is read of it, and by which network.

Features make an encoder's inputs from states: the states alone, or with the driver's actions. The
network is the paper's Local-Global Transformer.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from asbc.errors import InputError
from asbc.posterior.kernels.attention import GlobalAttention, LocalAttention, Steps
from asbc.posterior.kernels.dropout import Dropout, check_probability
from asbc.posterior.kernels.feedforward import Masks, ResidualUpdate
from asbc.utils.checks import check_integer, check_number, require, require_shape

STATE = 3  # gap, speed, approach rate
# Residuals differ in roughness by orders of magnitude: beyond these sizes (m/s^3, m/s^4)
# the differences of the acceleration enter by their logarithm, with their sign.
SMALL_JERK, SMALL_SNAP = 0.1, 0.2


class Features(Protocol):
    """Inputs of the encoder (B, T', size) from states (B, T, 3), and the valid steps of each."""

    size: int

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]: ...


class TrajectoryEncoder(Protocol):
    """A module from standardised inputs (B, T', input_dim) to contexts (B, output_dim).

    An attribute `features` says how inputs are made from states; without it they are the states.
    """

    input_dim: int
    output_dim: int

    def __call__(self, states: Tensor, lengths: Tensor | None = None) -> Tensor: ...


class States:
    """The paper's input: gap, speed and approach rate as they are.

    Args:
        size: entries of a state; other than 3 for models that are not car following.
    """

    def __init__(self, size: int = STATE) -> None:
        check_integer("encoder.features.size", size, minimum=1)
        self.size = size

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The states themselves."""
        return states, lengths


class StatesAndActions:
    """Each state with what the driver did in it: one step of the likelihood's regression.

    The acceleration is a difference of speeds, hundreds of times smaller than their spread, that
    an encoder of standardised speeds first has to learn to see. With it come the leader's
    acceleration and, for close followers, the logarithm of the gap. The last state has no action
    yet; the likelihood does not use it either.

    Args:
        dt: time step (s).
        differences: whether to add the acceleration's own first and second differences since the
            steps before. They show how rough a residual is, to the last detail of its model.
    """

    def __init__(self, dt: float, differences: bool = False) -> None:
        check_number("encoder.features.dt", dt, above=0)
        self.dt = dt
        self.differences = differences
        self.size = STATE + (5 if differences else 3)

    def __call__(self, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step less than there are states."""
        require_shape("states", states, (None, None, STATE))
        gap, speed, approach_rate = states.unbind(-1)
        own = speed.diff(dim=1) / self.dt
        leader = (speed - approach_rate).diff(dim=1) / self.dt
        actions = [own, leader, gap.clamp_min(0.1).log()[:, :-1]]
        if self.differences:
            # Zero where there are not enough steps before.
            jerk = nn.functional.pad(own.diff(dim=1), (1, 0)) / self.dt
            snap = nn.functional.pad(own.diff(n=2, dim=1), (2, 0)) / self.dt**2
            actions += [torch.asinh(jerk / SMALL_JERK), torch.asinh(snap / SMALL_SNAP)]
        inputs = torch.cat([states[:, :-1], torch.stack(actions, dim=-1)], dim=-1)
        return inputs, _less_one(lengths)


def _less_one(lengths: Tensor | None) -> Tensor | None:
    return None if lengths is None else lengths - 1


class ResidualBlock(nn.Module):
    """Adds what attention gathered, then a feed-forward layer, normalising each (post-norm)."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.output_norm = nn.LayerNorm(dim)
        self.attention_dropout = Dropout(dropout, dim)
        self.hidden_dropout = Dropout(dropout, hidden)
        self.output_dropout = Dropout(dropout, dim)

    def forward(self, state: Tensor, gathered: Tensor) -> Tensor:
        """The new state, from the old and from what attention gathered; all (..., d)."""
        rows = state.reshape(-1, state.shape[-1])
        steps = state.shape[1] if state.ndim == 3 else 1
        masks = Masks(
            self.attention_dropout.levels(len(rows), rows.device, steps),
            self.hidden_dropout.levels(len(rows), rows.device, steps),
            self.output_dropout.levels(len(rows), rows.device, steps),
            self.hidden_dropout.dropped,
            self.hidden_dropout.scale,
        )
        parts = (self.attention_norm, self.expand, self.contract, self.output_norm)
        weights = [tensor for part in parts for tensor in (part.weight, part.bias)]
        update = ResidualUpdate.apply(rows, gathered.reshape(rows.shape), *weights, masks)
        return update.view(state.shape)


class LocalGlobalEncoder(nn.Module):
    """Windowed attention among the steps and a [CLS] token that attends to all of them.

    In every layer, in parallel and with weights of their own, each step attends to its window and
    [CLS] attends to all steps; steps never see [CLS]. The steps' update of the last layer would
    reach nothing, so it does not exist. Relative position enters through learned biases only.
    Dropout acts on the attention's output and twice in the feed-forward layer, not on the
    attention weights.

    Args:
        features: What is read at each step; None: gap, speed and approach rate.
        model_dim: Size d of the tokens and of the context vector.
        layers: Number of Local-Global layers.
        heads: Attention heads; must divide `model_dim`.
        local_window: Steps on either side that a step attends to.
        dropout: Drop probability.
        ffn_expansion: Hidden size of the feed-forward layers in units of d.
    """

    def __init__(
        self,
        features: Features | None = None,
        model_dim: int = 64,
        layers: int = 2,
        heads: int = 4,
        local_window: int = 4,
        dropout: float = 0.2,
        ffn_expansion: int = 4,
    ) -> None:
        super().__init__()
        sizes = {"model_dim": model_dim, "layers": layers, "heads": heads}
        sizes |= {"local_window": local_window, "ffn_expansion": ffn_expansion}
        for name, value in sizes.items():
            check_integer(f"encoder.{name}", value, minimum=1)
        check_probability("encoder.dropout", dropout)
        if model_dim % heads:
            raise InputError(
                f"encoder.model_dim={model_dim} is not a multiple of encoder.heads={heads}; "
                "change the one or the other"
            )
        self.features = features or States()
        self.input_dim, self.output_dim = self.features.size, model_dim
        hidden = ffn_expansion * model_dim
        self.input_projection = nn.Linear(self.input_dim, model_dim, bias=False)
        self.cls = nn.Parameter(0.02 * torch.randn(model_dim))
        self.local_attention = nn.ModuleList(
            LocalAttention(model_dim, heads, local_window) for _ in range(layers - 1)
        )
        self.local_update = nn.ModuleList(
            ResidualBlock(model_dim, hidden, dropout) for _ in range(layers - 1)
        )
        self.global_attention = nn.ModuleList(
            GlobalAttention(model_dim, heads) for _ in range(layers)
        )
        self.global_update = nn.ModuleList(
            ResidualBlock(model_dim, hidden, dropout) for _ in range(layers)
        )

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The context vector of each trajectory.

        Args:
            states: Trajectories (B, T, input_dim), padded at the end.
            lengths: Valid steps of each trajectory (B,); None: all T.

        Returns:
            Context vectors (B, d).
        """
        require_shape("states", states, (None, None, self.input_dim))
        valid = None if lengths is None else self._valid(states, lengths)
        if valid is not None:  # padding may hold anything, NaN included
            states = states.masked_fill(~valid[..., None], 0.0)
        steps = Steps(states, self.input_projection.weight, valid)
        cls = self.cls.expand(len(states), -1)
        for layer, attention in enumerate(self.global_attention):
            cls = self.global_update[layer](cls, attention(cls, steps))
            if layer < len(self.local_attention):
                gathered = self.local_attention[layer](steps)
                tokens = self.local_update[layer](steps.tokens(), gathered)
                steps = Steps(tokens, None, valid)
        return cls

    def attention(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """How much of [CLS]'s attention each step has, mean over layers and heads, (B, T)."""
        found: list[Tensor] = []
        handles = [
            layer.register_forward_pre_hook(lambda module, x: found.append(module.weights(*x)))
            for layer in self.global_attention
        ]
        try:
            self(states, lengths)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack(found).mean(dim=(0, 2))

    @staticmethod
    def _valid(states: Tensor, lengths: Tensor) -> Tensor:
        batch, steps = states.shape[:2]
        require_shape("lengths", lengths, (batch,))
        require("lengths", lengths, (lengths > 0) & (lengths <= steps), f"between 1 and {steps}")
        return torch.arange(steps, device=states.device) < lengths[:, None]
