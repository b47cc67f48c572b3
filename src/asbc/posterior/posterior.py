"""The density q(theta | trajectory) in physical parameters, apart from how it is trained.

Where a pool is part of it, it is q(theta | several segments) as well: `asbc.data.segments`. Its
MC-dropout members are posteriors too, each with one dropout mask held fixed.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.posterior.encoder import Features, States, TrajectoryEncoder
from asbc.posterior.flow import ConditionalFlow
from asbc.posterior.kernels.dropout import fix_masks, require_fixable
from asbc.posterior.redraw import redraw
from asbc.posterior.segment_pool import SegmentPool
from asbc.posterior.transform import Transform, describe_all
from asbc.simulator import Prior, Simulator
from asbc.simulator.learned_residual import LearnedResidual
from asbc.simulator.prior import quantile_grid
from asbc.utils.checks import require_finite, require_shape
from asbc.utils.random import standard_normal

# Trajectories encoded at once, or drivers with several segments: bounds the memory.
ENCODE_CHUNK, SEGMENTS_CHUNK = 256, 64
# Pairs that set the scale of coordinates by trajectory.
SCALING_PAIRS = 1024
# Standard deviations between the 2.5% and 97.5% quantiles of a normal law.
CENTRAL_95 = 3.92


class PosteriorSamples(NamedTuple):
    """Draws from the posterior of each trajectory, all inside the prior's support."""

    theta: Tensor  # (B, n, D)
    leak_rate: Tensor  # (B,) share of first draws that fell outside the support or on its edge


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch `module` to evaluation mode and back; one that is in it already stays untouched."""
    if not module.training:  # visiting all of its parts costs as much as encoding a trajectory
        yield
        return
    module.eval()
    try:
        yield
    finally:
        module.train()


class Posterior(nn.Module):
    """Encoder, flow and transform with their standardisation: log-densities and samples.

    Inputs are standardised by the mean and standard deviation of the pairs given to `set_scaling`;
    u = T^-1(theta) by those under the prior, unless `set_target_scaling` is told what is inferred
    instead. Where the transform has coordinates of u by driver, the flow sees these in place of
    u, and what describes them at the end of the context. All four statistics are buffers, saved
    with the weights.
    What is not called `training_...`, but for `embed`, is evaluated without dropout and without
    gradients. Wherever there are `states`, they are one trajectory per driver (B, T, input), or
    `Segments`, of which there may be several if the model has a pool.

    Args:
        encoder: from inputs to context vectors.
        flow: the density of standardised u given a context.
        transform: from u to theta.
        prior: names, scale and support of theta.
        pool: joins the contexts of a driver's segments; None: one segment per driver.
        learned: residuals that drives with its draws have, learned along with it; None: those of
            the simulator's process.
    """

    input_mean: Tensor
    input_std: Tensor
    u_mean: Tensor
    u_std: Tensor
    widening: Tensor
    lags: Tensor

    def __init__(
        self,
        encoder: TrajectoryEncoder,
        flow: ConditionalFlow,
        transform: Transform,
        prior: Prior,
        pool: SegmentPool | None = None,
        learned: LearnedResidual | None = None,
    ) -> None:
        super().__init__()
        require_fixable("encoder", encoder)
        require_fixable("flow", flow)
        self.encoder, self.flow, self.transform, self.prior = encoder, flow, transform, prior
        self.pool, self.learned = pool, learned
        self.features: Features = getattr(encoder, "features", None) or States(encoder.input_dim)
        if self.features.size != encoder.input_dim:
            raise InputError(
                f"encoder.input_dim={encoder.input_dim}, but its features have "
                f"{self.features.size} entries; make them equal"
            )
        self.register_buffer("input_mean", torch.zeros(encoder.input_dim))
        self.register_buffer("input_std", torch.ones(encoder.input_dim))
        u = transform.inverse(quantile_grid(prior))
        self.register_buffer("u_mean", u.mean(0).float())
        self.register_buffer("u_std", u.std(0).float())
        # Factors of theta's columns, after the transform: see `asbc.predictive.widening`.
        self.register_buffer("widening", torch.ones(prior.dim))
        # How late speeds were recorded that it was trained on (s), of leader and follower.
        self.register_buffer("lags", torch.zeros(2))

    def set_scaling(self, theta: Tensor, states: Tensor | Segments) -> None:
        """Standardise inputs, and coordinates that depend on them, by these pairs."""
        self._set_input_scaling(states)
        self._set_coordinate_scaling(theta, states)

    def set_target_scaling(self, theta: Tensor) -> None:
        """Standardise u by these theta (N, dim): what is inferred is not spread as the prior is.

        A residual that moves on after the context (`robust=`) spreads farther than the prior, and
        a spline flow is the identity beyond its box. By quantiles, since a few theta lie at the
        very bounds, where u has no bound.
        """
        if self.transform.size:
            return  # coordinates by trajectory have a scale of their own
        u = self.transform.inverse(theta).double()
        low, middle, high = torch.quantile(u, torch.tensor([0.025, 0.5, 0.975]).double(), dim=0)
        self.u_mean.copy_(middle)
        self.u_std.copy_((high - low) / CENTRAL_95)

    def _set_input_scaling(self, states: Tensor | Segments) -> None:
        """Standardise inputs by the mean and standard deviation of `states` (N, T, input)."""
        if isinstance(states, Tensor):
            require_finite("states", states)
        rows, lengths = (states, None) if isinstance(states, Tensor) else states.rows()
        inputs, steps = self.features(rows, lengths)
        flat = inputs.reshape(-1, inputs.shape[-1]).double()
        if steps is not None:
            flat = flat[(torch.arange(inputs.shape[1]) < steps[:, None]).flatten()]
        require_finite("states", flat)
        self.input_mean.copy_(flat.mean(0))
        # A constant input carries no scale; leave it as it is.
        self.input_std.copy_(torch.where(flat.std(0) > 1e-6, flat.std(0), 1.0))

    def _set_coordinate_scaling(self, theta: Tensor, states: Tensor | Segments) -> None:
        """Standardise coordinates by driver, if there are any, by some of these pairs."""
        if self.transform.size:
            some = slice(SCALING_PAIRS)
            theta, columns = theta[some], describe_all(self.transform, states[some])
            w, _ = self.transform.whiten(self.transform.inverse(theta), columns)
            self.u_mean.copy_(w.mean(0))
            self.u_std.copy_(w.std(0))

    def teach(self, simulator: Simulator) -> Simulator:
        """The simulator that draws drive in, with what was learned along with this posterior."""
        if self.learned is None and not bool(self.lags.any()):
            return simulator
        leader, follower = self.lags.tolist()
        return simulator.taught(self.learned, (leader, follower))

    def forward(self, *_: Tensor) -> Tensor:
        """Not defined: a density with dropout on and one with dropout off are different things."""
        raise TypeError("call log_prob or sample (no dropout), or training_log_prob")

    def training_log_prob(
        self, theta: Tensor, states: Tensor | Segments, columns: Tensor | None = None
    ) -> Tensor:
        """log q(theta | x), row by row, in the module's mode: fresh dropout while training.

        `columns` are those of `transform.describe`, if they are known already.
        """
        return self._log_prob(theta, self.embed(states, None, columns), self.flow.log_prob)

    def training_sample(self, noise: Tensor, states: Tensor | Segments) -> Tensor:
        """Draws theta (B, n, D) that base noise (B, n, D) maps to, with gradients to the weights.

        As `training_log_prob`, in the module's mode. Nothing is redrawn: a draw outside the
        prior's support is moved to its edge, where it has no gradient.
        """
        theta = self._from_noise(noise, self.embed(states), self.flow.training_inverse)
        return theta.clamp(self.prior.low.to(theta), self.prior.high.to(theta))

    @torch.no_grad()
    def encode(self, states: Tensor | Segments, lengths: Tensor | None = None) -> Tensor:
        """Context vectors: (B, T, input) or segments -> (B, d)."""
        with evaluating(self):
            if isinstance(states, Segments):
                return torch.cat([self.embed(piece) for piece in states.split(SEGMENTS_CHUNK)])
            pieces = states.split(ENCODE_CHUNK)
            some = [None] * len(pieces) if lengths is None else lengths.split(ENCODE_CHUNK)
            return torch.cat([self.embed(*piece) for piece in zip(pieces, some, strict=True)])

    @torch.no_grad()
    def attention(self, segments: Segments) -> Tensor:
        """How much of the pool's attention each segment has, (B, J); 0 in empty slots."""
        if self.pool is None:
            return segments.present.to(segments.states.dtype)
        pool = self.pool
        with evaluating(self):
            return torch.cat(
                [
                    pool.weights(self._embed_rows(*piece.rows()), piece)
                    for piece in segments.split(SEGMENTS_CHUNK)
                ]
            )

    @torch.no_grad()
    def attention_to_samples(self, segments: Segments) -> Tensor:
        """How much of the attention each sample has, over all of a driver's segments, (B, J, T).

        The pool's to a segment, times the encoder's inside it; even inside it where the encoder
        has no `attention`.
        """
        share = torch.zeros(segments.states.shape[:3])
        read = getattr(self.encoder, "attention", None)
        with evaluating(self):
            for place in torch.nonzero(segments.present).split(ENCODE_CHUNK):
                states = segments.states[place[:, 0], place[:, 1]]
                lengths = segments.lengths[place[:, 0], place[:, 1]]
                inside = torch.arange(states.shape[1]) < lengths[:, None]
                each = inside.to(share.dtype)
                if read is not None:
                    inputs, steps = self.features(states, lengths)
                    found = read((inputs - self.input_mean) / self.input_std, steps)
                    # The last state of a segment may not be an input of its own.
                    each = nn.functional.pad(found, (0, states.shape[1] - found.shape[1])) * inside
                share[place[:, 0], place[:, 1]] = each / each.sum(1, keepdim=True)
        return share * self.attention(segments)[..., None]

    @torch.no_grad()
    def draw(self, noise: Tensor, states: Tensor | Segments) -> Tensor:
        """As `training_sample`, without dropout and without gradients."""
        theta = self._from_noise(noise, self.encode(states))
        return theta.clamp(self.prior.low.to(theta), self.prior.high.to(theta))

    @torch.no_grad()
    def log_prob(
        self, theta: Tensor, states: Tensor | Segments, lengths: Tensor | None = None
    ) -> Tensor:
        """Physical-space log-density; -inf outside the transform's range.

        The density is that of single draws of the flow: where the transform reaches beyond the
        prior's support, it is not renormalised for the redraws that `sample` makes.

        Args:
            theta: Parameters, one row (B, D) or n rows (B, n, D) per trajectory.
            states: Trajectories (B, T, input), or segments.
            lengths: Valid steps of each trajectory; None: all.

        Returns:
            log q(theta | x), (B,) or (B, n).
        """
        require_shape("theta", theta, (len(states), *[None] * (theta.ndim - 2), self.prior.dim))
        context = self.encode(states, lengths)
        with evaluating(self):
            flow = self.flow.log_prob if theta.ndim == 2 else self.flow.log_prob_many
            return self._log_prob(theta, context, flow)

    @torch.no_grad()
    def log_prob_grid(
        self, theta: Tensor, states: Tensor | Segments, lengths: Tensor | None = None
    ) -> Tensor:
        """log q(theta_n | x_c) for all pairs, each trajectory encoded once.

        Args:
            theta: Parameters (N, D).
            states: Trajectories (C, T, input), or segments.
            lengths: Valid steps of each trajectory; None: all.

        Returns:
            Log-densities (C, N).
        """
        require_shape("theta", theta, (None, self.prior.dim))
        context = self.encode(states, lengths)
        if not self.transform.size:
            return self._log_prob(theta, context, self.flow.log_prob_grid)
        # The flow's coordinates differ from one trajectory to the next.
        each = theta.expand(len(context), *theta.shape)
        return self._log_prob(each, context, self.flow.log_prob_many)

    @torch.no_grad()
    def sample(
        self,
        states: Tensor | Segments,
        n: int,
        rng: np.random.Generator,
        lengths: Tensor | None = None,
        max_tries: int = 20,
    ) -> PosteriorSamples:
        """n draws for each trajectory, all inside the prior's support.

        Draws outside it are redrawn at most `max_tries` times; `redraw` says what happens
        to the rest. The draws of trajectory i do not depend on the trajectories after it.
        """
        return self.sample_context(self.encode(states, lengths), n, rng, max_tries)

    @torch.no_grad()
    def sample_context(
        self, context: Tensor, n: int, rng: np.random.Generator, max_tries: int = 20
    ) -> PosteriorSamples:
        """As `sample`, from context vectors (B, d) that `encode` gave."""
        noise = standard_normal(rng, len(context), n, self.prior.dim).to(context.device)
        return self.accepted(self.flow.inverse(noise, context), context, rng, max_tries)

    @torch.no_grad()
    def accepted(
        self, u: Tensor, context: Tensor, rng: np.random.Generator, max_tries: int = 20
    ) -> PosteriorSamples:
        """The draws of `sample_context` for samples u (B, n, D) of the flow; some redrawn."""
        theta = self._physical(u, context)
        outside = ~self._usable(theta)
        redraw(theta, outside, context, self._from_noise, self._usable, self.prior, rng, max_tries)
        return PosteriorSamples(theta, outside.float().mean(1))

    def member(self, key: int) -> "Posterior":
        """The MC-dropout member of this key, frozen at the present weights.

        One dropout mask per layer is held for every theta, trajectory and pass, in the encoder and
        in the flow, so a member is a proper density. As in training, the steps of a trajectory
        have masks of their own. A member is a function of `key` and of the weights at the time of
        its creation: later training does not change it.
        """
        member = copy.deepcopy(self).eval().requires_grad_(False)
        fix_masks(member, key)
        return member

    def embed(
        self,
        states: Tensor | Segments,
        lengths: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        """Context vectors as `encode` gives them, in the module's mode and with gradients."""
        if isinstance(states, Segments) and self.pool is None:
            states, lengths = _only_segments(states)
        if isinstance(states, Segments):
            context = self._embed_segments(states)
        else:
            context = self._embed_rows(states, lengths)
        if not self.transform.size:
            return context
        if columns is None:
            columns = self.transform.describe(states, lengths)
        return torch.cat([context, columns], dim=-1)

    def _embed_rows(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        inputs, steps = self.features(states, lengths)
        return self.encoder((inputs - self.input_mean) / self.input_std, steps)

    def _embed_segments(self, segments: Segments) -> Tensor:
        assert self.pool is not None
        segments.check(self.pool.shortest)
        return self.pool(self._embed_rows(*segments.rows()), segments)

    def _log_prob(
        self, theta: Tensor, context: Tensor, flow: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        theta = theta / self.widening
        u, log_det = self._standardise(theta, context)
        log_q = flow(u, context) - log_det - self.widening.log().sum()
        return log_q.masked_fill(~self.transform.contains(theta), -torch.inf)

    def _from_noise(
        self,
        noise: Tensor,
        context: Tensor,
        inverse: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        return self._physical((inverse or self.flow.inverse)(noise, context), context)

    def _physical(self, u: Tensor, context: Tensor) -> Tensor:
        """theta from samples of the flow."""
        u = u * self.u_std + self.u_mean
        if self.transform.size:
            u = self.transform.unwhiten(u, context[:, -self.transform.size :])
        return self.transform(u) * self.widening

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights from before there was any widening have none."""
        state_dict.setdefault(f"{prefix}widening", torch.ones_like(self.widening))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _usable(self, theta: Tensor) -> Tensor:
        """Which draws (..., D) are inside the support and not on its edge by overflow."""
        inside = self.prior.contains(theta.cpu()).to(
            theta.device
        )  # a prior's bounds are on the CPU
        return inside & self.transform.resolves(theta)

    def _standardise(self, theta: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised u and the log-determinant of the map from it to theta."""
        u = self.transform.inverse(theta)
        log_det = self.transform.log_abs_det(u) + torch.log(self.u_std).sum()
        if self.transform.size:
            u, scale = self.transform.whiten(u, context[:, -self.transform.size :])
            log_det = log_det + scale
        return (u - self.u_mean) / self.u_std, log_det


def _only_segments(segments: Segments) -> tuple[Tensor, Tensor]:
    """States (B, T, 3) and lengths (B,) of drivers with one segment each; others are refused."""
    several = torch.nonzero(segments.present.sum(1) != 1).flatten()
    if len(several):
        count = int(segments.present[several[0]].sum())
        raise InputError(
            f"driver {int(several[0])} has {count} segments, but this model reads one of each "
            "driver; train with history=segments"
        )
    return segments.rows()
