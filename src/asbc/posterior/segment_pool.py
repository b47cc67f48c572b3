"""From the contexts of a driver's segments to one context.

Evidence adds, so the pool has to see sums and not averages alone; and a driver changes, so what is
old says less. With one segment the pool is the identity, exactly: the model is then the one that
reads single trajectories, weight for weight and number for number.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asbc.data.history import shortest_steps
from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.utils.checks import check_integer, check_number

# Seconds at which an age begins to count as old, and scales that keep inputs of order one.
AGE_SCALE = 15.0
MANY = 4.0


class SegmentPool(nn.Module):
    """Attention over segments, and a correction that knows how many they are.

    With contexts c_j, features f_j = (log length, log age, whether the age is unknown) and
    h_j = SiLU(A [c_j, f_j] + a), the weights are w = softmax(log length_j + b . h_j), and

        c = m + (1 - sum_j w_j^2) (D SiLU(B [m, sum_j w_j h_j, sum_j h_j / 4, log J,
            log total length] + e) + d),    m = sum_j w_j c_j.

    The factor before the correction vanishes for one segment, and where one has all the weight.
    The order of the segments does not matter.

    Args:
        dim: size of a context.
        hidden: size of h_j and of the layer after it.
        age: whether segments are told apart by their age.
        max_segments: segments at most; of more, the newest are taken.
        shortest: seconds that a segment has at least.
        context_steps: samples of the longest segment that is read at once.
        dt: time step (s).
    """

    def __init__(
        self,
        dim: int,
        hidden: int = 32,
        age: bool = True,
        max_segments: int = 8,
        shortest: float = 3.0,
        context_steps: int = 75,
        dt: float = 0.2,
    ) -> None:
        super().__init__()
        check_integer("history.pool.hidden", hidden, minimum=1)
        check_integer("history.max_segments", max_segments, minimum=1)
        check_number("history.shortest", shortest, above=0)
        self.age, self.max_segments, self.context_steps = age, max_segments, context_steps
        self.shortest = shortest_steps(shortest, dt)
        if self.shortest > context_steps:
            raise InputError(
                f"history.shortest={shortest:g} s is longer than data.context_steps="
                f"{context_steps} samples of {dt:g} s; lower it"
            )
        self.embed = nn.Linear(dim + 3, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.mix = nn.Linear(dim + 2 * hidden + 2, hidden)
        self.correct = nn.Linear(hidden, dim)
        for layer in (self.score, self.correct):  # at first the mean over samples
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.correct.bias)

    def forward(self, contexts: Tensor, segments: Segments) -> Tensor:
        """The drivers' contexts (B, dim) from those of their segments (N, dim), in row order."""
        return self._pool(contexts, segments)[0]

    def weights(self, contexts: Tensor, segments: Segments) -> Tensor:
        """How much of the attention each segment has, (B, J); 0 in empty slots."""
        return self._pool(contexts, segments)[1]

    def _pool(self, contexts: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        present = segments.present
        slots = contexts.new_zeros(*present.shape, contexts.shape[-1])
        slots[present] = contexts
        hidden = F.silu(self.embed(torch.cat([slots, self._features(segments)], dim=-1)))
        hidden = hidden * present[..., None]
        share = (segments.lengths.clamp_min(1) / self.context_steps).to(contexts.dtype)
        score = (share.log() + self.score(hidden)[..., 0]).masked_fill(~present, -torch.inf)
        weights = torch.softmax(score, dim=1)
        mean = torch.einsum("bj,bjd->bd", weights, slots)
        count = present.sum(1, keepdim=True)
        summary = torch.cat(
            [
                mean,
                torch.einsum("bj,bjd->bd", weights, hidden),
                hidden.sum(1) / MANY,
                count.to(contexts.dtype).log(),
                (share * present).sum(1, keepdim=True).log(),
            ],
            dim=-1,
        )
        correction = self.correct(F.silu(self.mix(summary)))
        several = 1 - weights.square().sum(1, keepdim=True)
        return mean + several * correction, weights

    def _features(self, segments: Segments) -> Tensor:
        """Length, age and whether the age is unknown, (B, J, 3), of order one."""
        dtype = segments.states.dtype
        length = (segments.lengths.clamp_min(1) / self.context_steps).to(dtype).log()
        unknown = segments.age.isnan()
        age = torch.log1p(segments.age.masked_fill(unknown, 0.0).to(dtype) / AGE_SCALE)
        if not self.age:
            age, unknown = torch.zeros_like(age), torch.zeros_like(unknown)
        return torch.stack([length, age, unknown.to(dtype)], dim=-1)
