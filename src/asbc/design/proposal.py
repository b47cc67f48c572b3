"""Where candidates come from: parameters (eq. soft_proposal) and windows (eq. leader_mix).

Both are mixtures whose shares follow a schedule over the rounds. They draw from a `DesignSpace`:
the prior, the leader windows and the observed trajectories of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asbc.design.bank import LeaderBank
from asbc.errors import InputError
from asbc.simulator import Prior, Simulator
from asbc.simulator.prior import quantile_grid
from asbc.types import Density
from asbc.utils.random import uniform


@dataclass(frozen=True)
class DesignSpace:
    """The prior, the leader windows and the observed trajectories a run designs with."""

    prior: Prior
    bank: LeaderBank
    contexts: Tensor  # (trajectories, steps, 3), X_sub: a fixed subset of the training split
    seed: int
    # Leaders of the validation split, for a hold-out that sees whether training knows its leaders
    # by heart; None where no window fits.
    holdout: LeaderBank | None = None
    # Whose likelihood gives the posterior that q is trained for; None where no likelihood does.
    likelihood: Simulator | None = None

    @property
    def theta_scale(self) -> Tensor:
        """(dim,) prior standard deviations: the diagonal of the paper's Sigma_theta."""
        return quantile_grid(self.prior).double().std(dim=0)


@dataclass(frozen=True)
class Constant:
    """The same number in every round, for loops whose length is not known ahead."""

    value: float

    def __getitem__(self, round: int) -> float:
        return self.value


Schedule = Sequence[float] | Constant


def check_schedule(field: str, schedule: Sequence[float], rounds: int) -> None:
    """Raise, naming `field`, unless the schedule has a share in [0, 1] for rounds 0 .. rounds.

    Example:
        >>> check_schedule("acquisition.lambda_schedule", [1.0, 0.5], rounds=2)
        Traceback (most recent call last):
        ...
        asbc.errors.InputError: acquisition.lambda_schedule has 2 entries, needs 3 or more
    """
    if isinstance(schedule, str) or not isinstance(schedule, Sequence):
        raise InputError(f"{field}={schedule}; expected a list of shares, one per round")
    if len(schedule) < rounds + 1:
        raise InputError(f"{field} has {len(schedule)} entries, needs {rounds + 1} or more")
    for index, value in enumerate(schedule):
        check_share(f"{field}[{index}]", value)


def check_share(field: str, value: object) -> None:
    """Raise, naming `field`, unless the value is a number between 0 and 1."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{field}={value}; expected a share between 0 and 1")


class Candidates(NamedTuple):
    """Parameter candidates and how much likelier each is under the prior than as proposed."""

    theta: Tensor  # (n, dim)
    log_ratio: Tensor  # (n,) log prior density - log proposal density
    diagnostics: dict[str, float]


class ThetaProposal(Protocol):
    """A distribution over parameters that may change from round to round."""

    def draw(
        self,
        n: int,
        round: int,
        posterior: Density,
        space: DesignSpace,
        rng: np.random.Generator,
    ) -> Candidates: ...


class PriorProposal:
    """The prior in every round."""

    def draw(
        self,
        n: int,
        round: int,
        posterior: Density,
        space: DesignSpace,
        rng: np.random.Generator,
    ) -> Candidates:
        """Independent draws from the prior."""
        return Candidates(space.prior.sample(n, rng), torch.zeros(n), {"lambda": 1.0})


class SoftShrinkProposal:
    """lambda_r prior + (1 - lambda_r) pooled posterior samples of the observed subset.

    Args:
        schedule: lambda_r by round, round 0 first.
        samples_per_trajectory: posterior samples each observed trajectory adds to the pool.
    """

    def __init__(self, schedule: Schedule, samples_per_trajectory: int) -> None:
        self.schedule = schedule
        self.samples_per_trajectory = samples_per_trajectory

    def draw(
        self,
        n: int,
        round: int,
        posterior: Density,
        space: DesignSpace,
        rng: np.random.Generator,
    ) -> Candidates:
        """Independent draws from the mixture; posterior draws are resampled from the pool."""
        share = self.schedule[round]
        from_prior = uniform(rng, n) < share
        theta = space.prior.sample(n, rng)
        pooled = posterior.sample(space.contexts, self.samples_per_trajectory, rng)
        pool = pooled.theta.flatten(0, 1)
        # A permutation, started again when used up: no candidate twice while the pool lasts.
        resampled = pool[np.resize(rng.permutation(len(pool)), n)]
        theta = torch.where(from_prior[:, None], theta, resampled)
        log_pool = pool_log_density(theta, posterior, space.contexts, pooled.leak_rate)
        log_prior = space.prior.log_prob(theta).double()
        log_proposal = torch.logaddexp(
            log_prior + _log(share), log_pool.double() + _log(1 - share)
        )
        diagnostics = {"lambda": share, "leak_rate": float(pooled.leak_rate.mean())}
        return Candidates(theta, (log_prior - log_proposal).float(), diagnostics)


def constant_shrink(share: float, samples_per_trajectory: int) -> ThetaProposal:
    """The same mixture in every round; the prior alone needs no posterior samples."""
    if share == 1:
        return PriorProposal()
    return SoftShrinkProposal(Constant(share), samples_per_trajectory)


def pool_log_density(
    theta: Tensor, posterior: Density, contexts: Tensor, leak_rate: Tensor
) -> Tensor:
    """log of the pooled posterior density (n,): the mean over trajectories of q restricted to the
    prior's support, which is what redrawing the leaked share samples from."""
    log_q = posterior.log_prob_grid(theta, contexts)  # (contexts, n)
    log_kept = torch.log1p(-leak_rate.clamp(max=1 - 1e-6))
    return torch.logsumexp(log_q - log_kept[:, None], dim=0) - np.log(len(contexts))


def _log(share: float) -> float:
    return float(np.log(share)) if share > 0 else -np.inf


class LeaderMixture:
    """(1 - alpha_r) real windows + alpha_r synthetic windows.

    Args:
        schedule: alpha_r by round, round 0 first.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def draw(self, n: int, round: int, bank: LeaderBank, rng: np.random.Generator) -> Tensor:
        """Ids (n,) of windows drawn independently from the round's mixture."""
        return bank.sample(n, self.schedule[round], rng)
