"""A residual that is learned from recorded drivers: what the law leaves, and how it goes on.

A stationary process knows nothing of the state: its noise is as large at standstill as at speed,
and goes back to zero where a law is wrong in the same way every time. Here

    r_t = k r_(t-1) + j (r_(t-1) - r_(t-2)) - c (f_t - f_(t-1)) + (1 - k) (m - g f_(t-1)) + d e_t,

with e_t ~ N(0, 1), where a small recurrent network, the same for everybody, says by how much k and
d differ from those of the Ornstein-Uhlenbeck process with the driver's own sigma and ell,
k = exp(-dt / ell) and d = sigma sqrt(1 - k^2), and what j, c, g and m are. Untrained, with
j = c = g = m = 0, it is that process. j lets a change go on, as in smooth driving. f is what the
law asks for: c is the share of its change that does not come at once, for people are slower than
laws, and g the share that is not followed at all. With c = g = 1 the network drives alone.

`asbc.predictive` trains it along with a posterior; it has no part in the simulations that a
posterior learns from, or in a likelihood.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asbc.errors import InputError
from asbc.simulator.residuals import Prefix
from asbc.utils.checks import check_integer

INPUTS, OUTPUTS = 12, 6
NEAREST_GAP = 0.3  # m; closer ones look alike to the network
LARGEST = 4.0  # m/s^2, of what it sees of accelerations
STANDING = 0.2  # m/s
# Of a process without a correlation length: its residuals hardly depend on the last one.
INDEPENDENT = 0.02
# Factors of sigma that the network may choose, in logarithms.
SMALLEST, GREATEST = -4.0, 2.0
# Of a change that goes on: below it residuals could swing up and down and grow.
LEAST_MOMENTUM = -0.5
# A law that changes faster (m/s^2 in a step) brakes in an emergency: the rest comes at once.
LARGEST_DELAY = 1.0
POSSIBLE = (-9.0, 5.0)  # m/s^2, of a law
LARGEST_START = 3.0  # m/s^2, of a residual that drives go on from
# A metre behind the leader a law is too stiff for the time step, and derivatives of a drive grow
# without bound. What comes back to a step's outputs is at most this many times a row's share.
GRADIENT_LIMIT = 10.0
# Samples before a drive that its memory reads (3 s): what a driver is about to do shows in them.
READS = 15


class Situation(NamedTuple):
    """What the network sees of a time step, each (rows,)."""

    gap: Tensor
    speed: Tensor
    approach_rate: Tensor
    leader_acceleration: Tensor
    law: Tensor  # the law's acceleration


class State(NamedTuple):
    """What goes on from step to step."""

    residual: Tensor  # (rows,)
    change: Tensor  # (rows,), of the residual in the last step
    law: Tensor  # (rows,), what it asked for in the last step; NaN: not known
    memory: Tensor  # (rows, hidden)


class LearnedResidual(nn.Module):
    """Moves residuals by a recurrent network.

    Args:
        hidden: units of its memory, which begins with what was observed before a drive, or empty.
        names: of theta's columns; one is sigma, and another may be ell, the correlation length.

    Example:
        >>> residual = LearnedResidual(8, ("v0", "s0", "T", "a_max", "b", "sigma", "ell"))
        >>> sum(weights.numel() for weights in residual.parameters())
        582
    """

    def __init__(self, hidden: int, names: Sequence[str]) -> None:
        super().__init__()
        check_integer("objective.learned_residual", hidden, minimum=1)
        if "sigma" not in names:
            raise InputError(
                f"objective.learned_residual={hidden}: there is no sigma among the parameters "
                f"{', '.join(names)}; use residual=matern or gaussian, or 0"
            )
        self.sigma = list(names).index("sigma")
        self.ell = list(names).index("ell") if "ell" in names else None
        self.cell = nn.GRUCell(INPUTS, hidden)
        self.out = nn.Linear(hidden, OUTPUTS)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def empty(self, like: Tensor) -> State:
        """What a drive begins with before which nothing was observed.

        Args:
            like: of the rows' number, device and precision.
        """
        zero = torch.zeros_like(like)
        memory = like.new_zeros(len(like), self.cell.hidden_size)
        return State(zero, zero, torch.full_like(zero, torch.nan), memory)

    def watch(
        self,
        theta: Tensor,
        now: Situation | None,
        last: State,
        prefix: Prefix,
        step: int,
        dt: float,
    ) -> State:
        """What a drive goes on from after a sample that was observed before it.

        Where it was not, it says nothing.

        Args:
            theta, last, dt: as for a step.
            now: as for a step; None: it is not known, and not remembered.
            prefix: what was observed.
            step: which sample of it, -1 for the one right before the start.
        """
        observed = prefix.observed[:, step]
        residual, law, memory = prefix.residuals[:, step], last.law, last.memory
        if now is not None:
            law = _asked(now, dt)
            # Who stands cannot brake: a law that asks for it is wrong about nothing.
            residual = residual + now.law - law
            law = torch.where(observed, law, torch.nan)
            memory = torch.where(observed[:, None], self._remember(theta, now, last), memory)
        residual = torch.where(observed, residual, 0.0).to(theta)
        residual = residual.clamp(-LARGEST_START, LARGEST_START)
        change = torch.zeros_like(residual)
        if -step < prefix.observed.shape[1]:
            both = observed & prefix.observed[:, step - 1]
            change = torch.where(both, residual - last.residual, change)
        return State(residual, change, law, memory)

    def forward(
        self, theta: Tensor, now: Situation, last: State, noise: Tensor, dt: float
    ) -> State:
        """The residuals of this step, and what is remembered.

        Args:
            theta: (rows, dim).
            now: the state, and what the law makes of it.
            last: of the step before.
            noise: standard normal.
            dt: time step (s).
        """
        sigma, ell = self._size(theta)
        memory = self._remember(theta, now, last)
        outputs = self.out(memory)
        if outputs.requires_grad:
            outputs.register_hook(_limited)
        more, level, size, momentum, delay, ignored = outputs.unbind(-1)
        # The logit of exp(-dt / ell).
        base = _logit(INDEPENDENT) if self.ell is None else -torch.expm1(dt / ell).log()
        kept = torch.sigmoid(base + more)
        spread = sigma * (1 - kept.square()).sqrt() * size.clamp(SMALLEST, GREATEST).exp()
        law = _asked(now, dt)
        before = torch.where(last.law.isnan(), law, last.law)
        residual = (
            kept * last.residual
            + momentum.tanh().clamp_min(LEAST_MOMENTUM) * last.change
            - delay.tanh() * (law - before).clamp(-LARGEST_DELAY, LARGEST_DELAY)
            + (1 - kept) * (level - ignored.tanh() * before)
            + spread * noise
        )
        return State(residual, residual - last.residual, law, memory)

    def _size(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        sigma = theta[:, self.sigma]
        return sigma, torch.ones_like(sigma) if self.ell is None else theta[:, self.ell]

    def _remember(self, theta: Tensor, now: Situation, last: State) -> Tensor:
        return self.cell(self._inputs(now, last.residual, *self._size(theta)), last.memory)

    def _inputs(self, now: Situation, residual: Tensor, sigma: Tensor, ell: Tensor) -> Tensor:
        gap = now.gap.clamp_min(NEAREST_GAP)
        return torch.stack(
            [
                gap / 20,
                gap.log() - 2,
                now.speed / 10,
                now.speed.log1p(),
                (now.speed < STANDING).to(gap),
                gap / (now.speed + 1) / 3 - 1,
                now.approach_rate / 2,
                now.leader_acceleration.clamp(-LARGEST, LARGEST),
                now.law.clamp(-LARGEST, LARGEST),
                residual.clamp(-LARGEST, LARGEST),
                sigma.log() + 1,
                ell.log(),
            ],
            dim=-1,
        )


def _asked(now: Situation, dt: float) -> Tensor:
    """What the law asks for (rows,), as far as it can be had: no speed falls below 0."""
    return torch.maximum(now.law, now.speed / -dt).clamp(*POSSIBLE)


def _limited(gradient: Tensor) -> Tensor:
    """The gradient, row by row no longer than its limit; 0 where it is not finite."""
    limit, size = GRADIENT_LIMIT / len(gradient), gradient.norm(dim=-1, keepdim=True)
    return torch.where(size.isfinite(), gradient * (limit / size.clamp_min(limit)), 0.0)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
