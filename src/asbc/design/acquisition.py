"""Acquisition strategies: each plans which (theta, leader window) pairs a round simulates.

A strategy makes a plan; the plan hands out pairs, best first, for as long as it is asked. A pair
whose simulation is unusable is thus replaced by the next one of the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.design.greedy import GreedyPicker
from asbc.design.proposal import LeaderMixture, ThetaProposal
from asbc.design.scores import representativeness, standardise, uncertainty
from asbc.design.space import DesignSpace, PosteriorModel
from asbc.utils.checks import InputError
from asbc.utils.random import key, stream
from asbc.utils.stopwatch import Stopwatch


class Pairs(NamedTuple):
    """Pairs to simulate."""

    theta: Tensor  # (n, dim)
    window_id: Tensor  # (n,) int64, index into the leader bank
    log_ratio: Tensor  # (n,) log prior density - log proposal density of theta


@dataclass(frozen=True)
class Plan:
    """Pairs in the order in which to simulate them, and what there is to log about the choice."""

    take: Callable[[int], Pairs]  # the next n pairs
    diagnostics: dict[str, float]
    seconds: dict[str, float]  # by stage; selecting adds up while pairs are taken


class Acquisition(Protocol):
    """What to simulate next."""

    def plan(self, round: int, posterior: PosteriorModel, space: DesignSpace) -> Plan: ...


def prior_plan(space: DesignSpace) -> Plan:
    """The warm-up: parameters from the prior behind recorded leaders, for as long as asked."""
    rng = stream(space.seed, "warm-up")

    def take(n: int) -> Pairs:
        return Pairs(space.prior.sample(n, rng), space.bank.sample(n, 0.0, rng), torch.zeros(n))

    return Plan(take, {"lambda": 1.0, "alpha": 0.0}, {})


class RandomAcquisition:
    """Independent draws of parameters and windows: no choice is made.

    With the prior as the proposal this is plain NPE, the control at equal budget: parameters from
    the prior, windows uniformly from the round's mixture of recorded and synthetic ones.
    """

    def __init__(self, proposal: ThetaProposal, windows: LeaderMixture) -> None:
        self.proposal = proposal
        self.windows = windows

    def plan(self, round: int, posterior: PosteriorModel, space: DesignSpace) -> Plan:
        """Fresh draws for as long as they are asked for."""
        rng = stream(space.seed, "acquisition", round)
        diagnostics = {"alpha": self.windows.schedule[round]}

        def take(n: int) -> Pairs:
            candidates = self.proposal.draw(n, round, posterior, space, rng)
            diagnostics.update(candidates.diagnostics)
            window_id = self.windows.draw(n, round, space.bank, rng)
            return Pairs(candidates.theta, window_id, candidates.log_ratio)

        return Plan(take, diagnostics, {})


class ThetaAcquisition:
    """The paper's theta-only ablation: the most uncertain parameters, windows at random.

    Args:
        proposal: distribution of the parameter candidates.
        windows: distribution of the leader windows.
        candidates: parameters drawn per round.
        members: MC-dropout members behind the uncertainty score.
        uncertainty_epsilon: epsilon inside the score's logarithm.
    """

    def __init__(
        self,
        proposal: ThetaProposal,
        windows: LeaderMixture,
        candidates: int,
        members: int,
        uncertainty_epsilon: float,
    ) -> None:
        self.proposal = proposal
        self.windows = windows
        self.candidates = candidates
        self.members = members
        self.uncertainty_epsilon = uncertainty_epsilon

    def plan(self, round: int, posterior: PosteriorModel, space: DesignSpace) -> Plan:
        """Candidates by descending uncertainty, ties by index."""
        rng, watch = stream(space.seed, "acquisition", round), Stopwatch()
        with watch("propose"):
            drawn = self.proposal.draw(self.candidates, round, posterior, space, rng)
        with watch("score"):
            alpha = member_uncertainty(
                drawn.theta, round, posterior, space, self.members, self.uncertainty_epsilon
            )
        ranking = torch.sort(alpha, descending=True, stable=True).indices[: _usable(alpha)]
        start = 0

        def take(n: int) -> Pairs:
            nonlocal start
            chosen = ranking[start : start + n]
            if len(chosen) < n:
                raise InputError(
                    f"the pool of {len(ranking)} parameters is used up; raise "
                    "acquisition.candidates or lower training.pairs_per_round"
                )
            start += n
            window_id = self.windows.draw(n, round, space.bank, rng)
            return Pairs(drawn.theta[chosen], window_id, drawn.log_ratio[chosen])

        diagnostics = {"alpha": self.windows.schedule[round], **drawn.diagnostics}
        return Plan(take, diagnostics | score_quantiles(alpha), watch.seconds)


class JointAcquisition:
    """The paper's joint acquisition (eq. joint_score) over parameter-window pairs.

    Each round draws `candidates` parameters and `window_candidates` windows, pairs every parameter
    with `pairs_per_theta` of these windows, and picks pairs greedily by
    alpha(theta) * rho(window) - gamma * DivPen.

    Args:
        proposal: distribution of the parameters; the prior gives the prior-only ablation.
        windows: distribution of the leader windows.
        candidates: parameters drawn per round (N).
        window_candidates: windows drawn per round (N_l).
        pairs_per_theta: windows each parameter is paired with.
        members: MC-dropout members behind the uncertainty score (M).
        uncertainty_epsilon: epsilon inside that score's logarithm.
        neighbours: nearest windows behind the representativeness (K).
        neighbour_epsilon: epsilon of the representativeness.
        gamma: weight of the diversity penalty.
        tau_leader: its temperature in leader features.
        tau_theta: its temperature in parameters, in prior standard deviations.
    """

    def __init__(
        self,
        proposal: ThetaProposal,
        windows: LeaderMixture,
        candidates: int,
        window_candidates: int,
        pairs_per_theta: int,
        members: int,
        uncertainty_epsilon: float,
        neighbours: int,
        neighbour_epsilon: float,
        gamma: float,
        tau_leader: float,
        tau_theta: float,
    ) -> None:
        self.proposal = proposal
        self.windows = windows
        self.candidates = candidates
        self.window_candidates = window_candidates
        self.pairs_per_theta = pairs_per_theta
        self.members = members
        self.uncertainty_epsilon = uncertainty_epsilon
        self.neighbours = neighbours
        self.neighbour_epsilon = neighbour_epsilon
        self.penalty = {"gamma": gamma, "tau_leader": tau_leader, "tau_theta": tau_theta}

    def plan(self, round: int, posterior: PosteriorModel, space: DesignSpace) -> Plan:
        """Pairs in the order of the greedy selection."""
        rng, watch = stream(space.seed, "acquisition", round), Stopwatch()
        with watch("propose"):
            drawn = self.proposal.draw(self.candidates, round, posterior, space, rng)
            ids, counts = self.windows.draw(self.window_candidates, round, space.bank, rng).unique(
                return_counts=True
            )
            window = pair_up(self.candidates, self.pairs_per_theta, counts, rng)
        with watch("score"):
            alpha = member_uncertainty(
                drawn.theta, round, posterior, space, self.members, self.uncertainty_epsilon
            )
            features = space.bank.window_features[ids]
            rho = representativeness(features, self.neighbours, self.neighbour_epsilon)
        score = alpha[:, None] * rho[window]
        picker = GreedyPicker(
            score, window, drawn.theta / space.theta_scale, features, **self.penalty
        )

        def take(n: int) -> Pairs:
            with watch("select"):
                picks = picker.pick(n)
            theta = picks // window.shape[1]
            return Pairs(drawn.theta[theta], ids[window.view(-1)[picks]], drawn.log_ratio[theta])

        diagnostics = {"alpha": self.windows.schedule[round], **drawn.diagnostics}
        return Plan(take, diagnostics | score_quantiles(score), watch.seconds)


def member_uncertainty(
    theta: Tensor,
    round: int,
    posterior: PosteriorModel,
    space: DesignSpace,
    members: int,
    epsilon: float,
) -> Tensor:
    """alpha (candidates,) over fresh dropout members and the observed subset, standardised."""
    keys = [key(space.seed, "member", round, m) for m in range(members)]
    log_density = torch.stack(
        [posterior.member(k).log_prob_grid(theta, space.contexts) for k in keys]
    )
    return standardise(uncertainty(log_density, epsilon))


def pair_up(n: int, pairs: int, counts: Tensor, rng: np.random.Generator) -> Tensor:
    """For each of n parameters, `pairs` different windows: (n, pairs) indices into `counts`.

    A window drawn twice is twice as likely to be chosen, so that pairs follow the mixture the
    windows were drawn from (weighted sampling without replacement by exponential keys).
    """
    pairs = min(pairs, len(counts))
    keys = torch.from_numpy(rng.standard_exponential((n, len(counts)), dtype=np.float32))
    return keys.div_(counts).topk(pairs, dim=1, largest=False).indices


def score_quantiles(score: Tensor) -> dict[str, float]:
    """Quantiles of a pool's scores, for the log."""
    finite = score[torch.isfinite(score)].double()
    percents = (5, 50, 95, 99) if len(finite) else ()
    return {f"score_q{p:02d}": float(torch.quantile(finite, p / 100)) for p in percents}


def _usable(score: Tensor) -> int:
    return int((score > -torch.inf).sum())
