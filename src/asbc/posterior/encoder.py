"""The Local-Global Transformer encoder: a trajectory of any length to one context vector."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asbc.posterior.attention import GlobalAttention, LocalAttention
from asbc.posterior.dropout import Dropout
from asbc.utils.checks import InputError, require, require_shape


class FeedForward(nn.Module):
    """Linear, GELU, dropout, linear, dropout."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.hidden_dropout = Dropout(dropout, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.output_dropout = Dropout(dropout, dim)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.hidden_dropout(F.gelu(self.expand(inputs), approximate="tanh"))
        return self.output_dropout(self.contract(hidden))


class Block(nn.Module):
    """Attention and feed-forward, each added to its input and normalised (post-norm)."""

    def __init__(self, attention: nn.Module, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.attention_dropout = Dropout(dropout, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, hidden, dropout)
        self.output_norm = nn.LayerNorm(dim)

    def forward(self, state: Tensor, *attended: Tensor) -> Tensor:
        mixed = self.attention_dropout(self.attention(state, *attended))
        state = self.attention_norm(state + mixed)
        return self.output_norm(state + self.feed_forward(state))


class LocalGlobalEncoder(nn.Module):
    """Windowed attention among the steps and a [CLS] token that attends to all of them.

    In every layer, in parallel and with weights of their own, each step attends to its window and
    [CLS] attends to all steps; steps never see [CLS]. The steps' update of the last layer would
    reach nothing, so it does not exist. Relative position enters through learned biases only.
    Dropout acts on the attention's output and twice in the feed-forward layer, not on the
    attention weights.

    Args:
        input_dim: State size per step (gap, speed, approach rate).
        model_dim: Size d of the tokens and of the context vector.
        layers: Number of Local-Global layers.
        heads: Attention heads; must divide `model_dim`.
        local_window: Steps on either side that a step attends to.
        dropout: Drop probability.
        ffn_expansion: Hidden size of the feed-forward layers in units of d.
    """

    def __init__(
        self,
        input_dim: int = 3,
        model_dim: int = 64,
        layers: int = 2,
        heads: int = 4,
        local_window: int = 4,
        dropout: float = 0.2,
        ffn_expansion: int = 4,
    ) -> None:
        super().__init__()
        if model_dim % heads:
            raise InputError(f"encoder: model_dim {model_dim} is not a multiple of heads {heads}")
        if min(layers, local_window, ffn_expansion) < 1:
            raise InputError(
                f"encoder: layers {layers}, local_window {local_window} and ffn_expansion "
                f"{ffn_expansion} must be at least 1"
            )
        self.input_dim, self.output_dim = input_dim, model_dim
        hidden = ffn_expansion * model_dim
        self.input_projection = nn.Linear(input_dim, model_dim, bias=False)
        self.cls = nn.Parameter(0.02 * torch.randn(model_dim))
        self.local_blocks = nn.ModuleList(
            Block(LocalAttention(model_dim, heads, local_window), model_dim, hidden, dropout)
            for _ in range(layers - 1)
        )
        self.global_blocks = nn.ModuleList(
            Block(GlobalAttention(model_dim, heads), model_dim, hidden, dropout)
            for _ in range(layers)
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
        valid = self._valid(states, lengths)
        # Padding may hold anything, NaN included.
        tokens = self.input_projection(states.masked_fill(~valid[..., None], 0.0))
        cls = self.cls.expand(len(states), -1)
        for index, global_block in enumerate(self.global_blocks):
            cls = global_block(cls, tokens, valid)
            if index < len(self.local_blocks):
                tokens = self.local_blocks[index](tokens, valid)
        return cls

    @staticmethod
    def _valid(states: Tensor, lengths: Tensor | None) -> Tensor:
        batch, steps = states.shape[:2]
        if lengths is None:
            return torch.ones(batch, steps, dtype=torch.bool, device=states.device)
        require_shape("lengths", lengths, (batch,))
        require("lengths", lengths, (lengths > 0) & (lengths <= steps), f"between 1 and {steps}")
        return torch.arange(steps, device=states.device) < lengths[:, None]
