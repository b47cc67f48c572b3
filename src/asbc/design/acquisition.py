"""Acquisition strategies: each plans which (theta, leader window) pairs a round simulates.

A strategy makes a plan; the plan hands out pairs, best first, for as long as it is asked. A pair
whose simulation is unusable is thus replaced by the next one of the same plan. Strategies hold
their own values, those of conf/acquisition/, and refuse bad ones when they are built.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asbc.design.proposal import (
    Constant,
    DesignSpace,
    LeaderMixture,
    PriorProposal,
    SoftShrinkProposal,
    ThetaProposal,
    check_schedule,
    check_share,
    constant_shrink,
)
from asbc.design.selection import (
    GreedyPicker,
    member_uncertainty,
    pair_up,
    representativeness,
    score_quantiles,
)
from asbc.design.weights import correction
from asbc.errors import InputError
from asbc.types import Density
from asbc.utils.checks import check_integer, check_number
from asbc.utils.progress import Stopwatch
from asbc.utils.random import stream


class Choice(NamedTuple):
    """Pairs to simulate."""

    theta: Tensor  # (n, dim)
    window_id: Tensor  # (n,) int64, index into the leader bank
    log_ratio: Tensor  # (n,) log prior density - log proposal density of theta


@dataclass(frozen=True)
class Plan:
    """Pairs in the order in which to simulate them, and what there is to log about the choice."""

    take: Callable[[int], Choice]  # the next n pairs
    diagnostics: dict[str, float]
    seconds: dict[str, float]  # by stage; selecting adds up while pairs are taken


@dataclass(frozen=True, kw_only=True)
class Acquisition(ABC):
    """What to simulate next; a bad value fails here, naming its field.

    Args:
        name: of the strategy, in tables.
        subset_size: |X_sub|, observed training trajectories set aside for proposal and score.
        correction: how simulations are weighted in the loss, see `asbc.design.weights`.
    """

    name: str
    subset_size: int
    correction: str = "none"

    def __post_init__(self) -> None:
        check_integer("acquisition.subset_size", self.subset_size, minimum=1)
        correction(self.correction)

    @abstractmethod
    def plan(self, round: int, posterior: Density, space: DesignSpace) -> Plan:
        """What this round simulates."""

    def rounds(self, given: int | None) -> int | None:
        """Active rounds of the loop: as the config says, where the strategy does not know."""
        return given

    def check(self, rounds: int, pairs_per_round: int, synthetic_windows: int) -> None:
        """Raise unless the strategy can serve a loop and a leader bank of these sizes."""
        return None


@dataclass(frozen=True, kw_only=True)
class MixedWindows(Acquisition):
    """A strategy whose windows are recorded or synthetic, as a schedule says (eq. leader_mix).

    Args:
        alpha_schedule: share of synthetic windows by round, round 0 first.
    """

    alpha_schedule: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_schedule("acquisition.alpha_schedule", self.alpha_schedule, rounds=0)

    @property
    def windows(self) -> LeaderMixture:
        """The distribution of the leader windows."""
        return LeaderMixture(self.alpha_schedule)

    def check(self, rounds: int, pairs_per_round: int, synthetic_windows: int) -> None:
        """As for every strategy; the schedule must be long enough, and the bank have windows."""
        check_schedule("acquisition.alpha_schedule", self.alpha_schedule, rounds)
        if not synthetic_windows and any(self.alpha_schedule[1 : rounds + 1]):
            raise InputError(
                "bank.synthetic_cap=0, but acquisition.alpha_schedule asks for synthetic windows; "
                "set the schedule to zeros or the cap above 0"
            )


@dataclass(frozen=True, kw_only=True)
class ShrunkProposal(MixedWindows):
    """A strategy that draws parameters ever more from posteriors of the observed subset.

    Args:
        lambda_schedule: share of the prior by round, round 0 first; None: the prior always.
        samples_per_trajectory: posterior samples each observed trajectory adds to the pool.
    """

    lambda_schedule: Sequence[float] | None = None
    samples_per_trajectory: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("acquisition.samples_per_trajectory", self.samples_per_trajectory, minimum=1)
        if self.lambda_schedule is not None:
            check_schedule("acquisition.lambda_schedule", self.lambda_schedule, rounds=0)

    @property
    def proposal(self) -> ThetaProposal:
        """The distribution of the parameters."""
        if self.lambda_schedule is None:
            return PriorProposal()
        return SoftShrinkProposal(self.lambda_schedule, self.samples_per_trajectory)

    def check(self, rounds: int, pairs_per_round: int, synthetic_windows: int) -> None:
        """As for every strategy; both schedules must be long enough."""
        if self.lambda_schedule is not None:
            check_schedule("acquisition.lambda_schedule", self.lambda_schedule, rounds)
        super().check(rounds, pairs_per_round, synthetic_windows)


def prior_plan(space: DesignSpace) -> Plan:
    """The warm-up: parameters from the prior behind recorded leaders, for as long as asked."""
    rng = stream(space.seed, "warm-up")

    def take(n: int) -> Choice:
        return Choice(space.prior.sample(n, rng), space.bank.sample(n, 0.0, rng), torch.zeros(n))

    return Plan(take, {"lambda": 1.0, "alpha": 0.0}, {})


@dataclass(frozen=True, kw_only=True)
class RandomAcquisition(MixedWindows):
    """Parameters from the prior, windows uniformly from the round's mixture: no choice is made.

    This is plain NPE, the control at equal budget.
    """

    def plan(self, round: int, posterior: Density, space: DesignSpace) -> Plan:
        """Fresh draws for as long as they are asked for."""
        return independent_plan(PriorProposal(), self.windows, round, posterior, space)


@dataclass(frozen=True, kw_only=True)
class StreamAcquisition(Acquisition):
    """For a cheap simulator: fresh draws in every round, none of which is used twice.

    Args:
        simulations: budget, rounded to whole chunks.
        chunk: simulations per round.
        lambda_share: share of the prior among the parameters; the rest is from posteriors of the
            observed subset.
        alpha_share: share of synthetic windows.
        samples_per_trajectory: as for `ShrunkProposal`.
        minutes: wall time to fill, if shorter than the budget; None for no limit.
    """

    simulations: int
    chunk: int
    lambda_share: float = 1.0
    alpha_share: float = 0.5
    samples_per_trajectory: int = 200
    minutes: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("simulations", "chunk", "samples_per_trajectory"):
            check_integer(f"acquisition.{name}", getattr(self, name), minimum=1)
        for name in ("lambda_share", "alpha_share"):
            check_share(f"acquisition.{name}", getattr(self, name))
        if self.minutes is not None:
            check_number("acquisition.minutes", self.minutes, above=0)

    def rounds(self, given: int | None) -> int:
        """The chunks that the budget pays for, after the first."""
        if given is not None:
            raise InputError(
                f"training.rounds={given}; a stream is as long as its budget says, set "
                "acquisition.simulations or acquisition.minutes"
            )
        return max(1, round(self.simulations / self.chunk)) - 1

    def plan(self, round: int, posterior: Density, space: DesignSpace) -> Plan:
        """Fresh draws for as long as they are asked for."""
        proposal = constant_shrink(self.lambda_share, self.samples_per_trajectory)
        windows = LeaderMixture(Constant(self.alpha_share))
        return independent_plan(proposal, windows, round, posterior, space)


def independent_plan(
    proposal: ThetaProposal,
    windows: LeaderMixture,
    round: int,
    posterior: Density,
    space: DesignSpace,
) -> Plan:
    """Independent draws of parameters and windows for as long as they are asked for."""
    rng = stream(space.seed, "acquisition", round)
    diagnostics = {"alpha": windows.schedule[round]}

    def take(n: int) -> Choice:
        candidates = proposal.draw(n, round, posterior, space, rng)
        diagnostics.update(candidates.diagnostics)
        window_id = windows.draw(n, round, space.bank, rng)
        return Choice(candidates.theta, window_id, candidates.log_ratio)

    return Plan(take, diagnostics, {})


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

    def plan(self, round: int, posterior: Density, space: DesignSpace) -> Plan:
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

    def plan(self, round: int, posterior: Density, space: DesignSpace) -> Plan:
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


def own_values(strategy: type, section: Mapping[str, Any]) -> dict[str, Any]:
    """A config section without the sizes that an experiment sets for other strategies.

    `experiment=smoke` makes every strategy small, and so names what only some of them have. What
    no strategy has stays, for the strategy to refuse.
    """
    own = {field.name for field in fields(strategy)} if is_dataclass(strategy) else set(section)
    others = {field.name for kind in _kinds(Acquisition) for field in fields(kind)}
    return {name: value for name, value in section.items() if name in own or name not in others}


def _kinds(strategy: type[Any]) -> Iterator[type[Any]]:
    """All strategies that derive from this one."""
    for kind in strategy.__subclasses__():
        yield kind
        yield from _kinds(kind)
