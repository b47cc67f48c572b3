"""Acquisition strategies: each plans which (theta, leader window) pairs a round simulates.

Strategies hold their own values, those of conf/acquisition/, and refuse bad ones when they are
built. Here are those that do not choose; `joint` has the paper's, `targeted` ours.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.design.mixture import PooledProposal
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
from asbc.design.simulations import Choice, Plan, Simulations
from asbc.design.weights import correction
from asbc.errors import InputError
from asbc.types import Density
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import stream


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

    def observed(self, train: Pairs, context_steps: int, seed: int) -> Tensor:
        """X_sub: contexts (size, steps, 3) of training pairs drawn once, without replacement."""
        # A driver's short segments are part of its history, but no context.
        long = torch.nonzero(train.lengths >= context_steps).flatten().numpy()
        chosen = stream(seed, "observed-subset").permutation(len(long))[: self.subset_size]
        return train.select(long[chosen]).contexts(context_steps)

    def warm_up(self, space: DesignSpace) -> Plan:
        """What is simulated before the first round: parameters must be from the prior."""
        return prior_plan(space)

    @abstractmethod
    def plan(self, round: int, posterior: Density, space: DesignSpace, kept: Simulations) -> Plan:
        """What this round simulates.

        Args:
            round: 1 for the first after the warm-up.
            posterior: as trained in the rounds before.
            space: what can be chosen from.
            kept: simulations of the rounds before that are still in the buffer.
        """

    def weights(
        self, kept: Simulations, proposals: Mapping[int, PooledProposal], space: DesignSpace
    ) -> Tensor:
        """Weight (n,) of each simulation in the loss, mean 1.

        Args:
            kept: what the buffer holds.
            proposals: of the rounds whose plan had one; the prior's for the warm-up.
            space: of the run.
        """
        return correction(self.correction)(kept.log_ratio)

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

    def plan(self, round: int, posterior: Density, space: DesignSpace, kept: Simulations) -> Plan:
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

    def plan(self, round: int, posterior: Density, space: DesignSpace, kept: Simulations) -> Plan:
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
