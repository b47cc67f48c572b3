"""The paper's acquisitions: the most uncertain parameters, alone or jointly with their window.

Their score alpha is the mean of log q over members and observed trajectories plus the logarithm of
its variance. The mean decides: alpha ranks candidates by how typical they are of the observed
drivers' posteriors, not by how uncertain q is (docs/strongest-model.md has the numbers).
"""

from dataclasses import dataclass

import torch

from asbc.design.acquisition import ShrunkProposal
from asbc.design.proposal import DesignSpace
from asbc.design.selection import (
    GreedyPicker,
    member_uncertainty,
    pair_up,
    representativeness,
    score_quantiles,
)
from asbc.design.simulations import Choice, Plan, Simulations
from asbc.errors import InputError
from asbc.types import Density
from asbc.utils.checks import check_integer, check_number
from asbc.utils.progress import Stopwatch
from asbc.utils.random import stream


@dataclass(frozen=True, kw_only=True)
class ThetaAcquisition(ShrunkProposal):
    """The paper's theta-only ablation: the most uncertain parameters, windows at random.

    Args:
        candidates: parameters drawn per round.
        members: MC-dropout members behind the uncertainty score.
        uncertainty_epsilon: epsilon inside the score's logarithm.
    """

    candidates: int
    members: int
    uncertainty_epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("candidates", "members"):
            check_integer(f"acquisition.{name}", getattr(self, name), minimum=1)
        check_number("acquisition.uncertainty_epsilon", self.uncertainty_epsilon, above=0)
        if self.correction != "none":
            raise InputError(
                f"acquisition.correction={self.correction}: which candidates {self.name} picks "
                "has no density to divide by, so weights would not make q right; use "
                "correction=none, or acquisition=targeted, whose weights are exact"
            )

    @property
    def pool(self) -> int:
        """Pairs to choose from in a round."""
        return self.candidates

    def check(self, rounds: int, pairs_per_round: int, synthetic_windows: int) -> None:
        """As for every strategy; the pool must hold a round's pairs."""
        super().check(rounds, pairs_per_round, synthetic_windows)
        if pairs_per_round > self.pool:
            raise InputError(
                f"training.pairs_per_round={pairs_per_round} is more than the pool of "
                f"{self.pool} pairs; raise acquisition.candidates"
            )

    def plan(self, round: int, posterior: Density, space: DesignSpace, kept: Simulations) -> Plan:
        """Candidates by descending uncertainty, ties by index."""
        rng, watch = stream(space.seed, "acquisition", round), Stopwatch()
        with watch("propose"):
            drawn = self.proposal.draw(self.candidates, round, posterior, space, rng)
        with watch("score"):
            alpha = member_uncertainty(
                drawn.theta, round, posterior, space, self.members, self.uncertainty_epsilon
            )
        usable = int((alpha > -torch.inf).sum())
        ranking = torch.sort(alpha, descending=True, stable=True).indices[:usable]
        start = 0

        def take(n: int) -> Choice:
            nonlocal start
            chosen = ranking[start : start + n]
            if len(chosen) < n:
                raise InputError(
                    f"the pool of {len(ranking)} parameters is used up; raise "
                    "acquisition.candidates or lower training.pairs_per_round"
                )
            start += n
            window_id = self.windows.draw(n, round, space.bank, rng)
            return Choice(drawn.theta[chosen], window_id, drawn.log_ratio[chosen])

        diagnostics = {"alpha": self.windows.schedule[round], **drawn.diagnostics}
        return Plan(take, diagnostics | score_quantiles(alpha), watch.seconds)


@dataclass(frozen=True, kw_only=True)
class JointAcquisition(ThetaAcquisition):
    """The paper's joint acquisition (eq. joint_score) over parameter-window pairs.

    Each round draws `candidates` parameters and `window_candidates` windows, pairs every parameter
    with `pairs_per_theta` of these windows, and picks pairs greedily by
    alpha(theta) * rho(window) - gamma * DivPen. Without a lambda_schedule this is the paper's
    prior-only ablation.

    Args:
        window_candidates: windows drawn per round (N_l).
        pairs_per_theta: windows each parameter is paired with.
        neighbours: nearest windows behind the representativeness (K).
        neighbour_epsilon: epsilon of the representativeness.
        gamma: weight of the diversity penalty.
        tau_leader: its temperature in leader features.
        tau_theta: its temperature in parameters, in prior standard deviations.
    """

    window_candidates: int
    pairs_per_theta: int
    neighbours: int
    neighbour_epsilon: float
    gamma: float
    tau_leader: float
    tau_theta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window_candidates", "pairs_per_theta", "neighbours"):
            check_integer(f"acquisition.{name}", getattr(self, name), minimum=1)
        for name in ("neighbour_epsilon", "tau_leader", "tau_theta"):
            check_number(f"acquisition.{name}", getattr(self, name), above=0)
        check_number("acquisition.gamma", self.gamma, minimum=0)

    @property
    def pool(self) -> int:
        """Pairs to choose from in a round."""
        return self.candidates * self.pairs_per_theta

    def plan(self, round: int, posterior: Density, space: DesignSpace, kept: Simulations) -> Plan:
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
            score,
            window,
            drawn.theta / space.theta_scale,
            features,
            gamma=self.gamma,
            tau_leader=self.tau_leader,
            tau_theta=self.tau_theta,
        )

        def take(n: int) -> Choice:
            with watch("select"):
                picks = picker.pick(n)
            theta = picks // window.shape[1]
            return Choice(drawn.theta[theta], ids[window.view(-1)[picks]], drawn.log_ratio[theta])

        diagnostics = {"alpha": self.windows.schedule[round], **drawn.diagnostics}
        return Plan(take, diagnostics | score_quantiles(score), watch.seconds)
