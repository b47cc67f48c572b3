"""Design where it pays: simulations near the drivers who were observed, unbiased by construction.

Parameters come from a mixture of the prior and the pooled posterior of the observed drivers; pairs
of parameters and windows are chosen at random, more often where members of q disagree. Densities
and inclusion probabilities are known, every simulation is kept, and weights undo both choices: q
is trained for the exact posterior under the prior, whatever was chosen. Where the likelihood is
known, the observed drivers themselves are training pairs beside the simulations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asbc.data.history import context_states
from asbc.data.pairs import Pairs
from asbc.design.acquisition import Acquisition
from asbc.design.disagreement import fit_surrogate, inclusion, systematic_picks
from asbc.design.known_drivers import known_pairs
from asbc.design.mixture import (
    PooledProposal,
    UniformPoints,
    log_balance,
    pool,
    prior_alone,
)
from asbc.design.proposal import DesignSpace, check_share
from asbc.design.selection import score_quantiles
from asbc.design.simulations import Choice, Plan, Simulations
from asbc.errors import InputError
from asbc.types import Density
from asbc.utils.checks import check_integer
from asbc.utils.progress import Stopwatch
from asbc.utils.random import key, stream


@dataclass(frozen=True, kw_only=True)
class TargetedAcquisition(Acquisition):
    """Soft-shrink mixture with a known density, and randomised selection by disagreement.

    Args:
        prior_share: of the prior in the mixture; no weight of a round alone exceeds its inverse.
        samples_per_trajectory: posterior draws behind the normal law of each observed driver.
        synthetic_share: windows that are synthetic; windows need no weights, since x shows them.
        cell_share: of the recorded windows, those drawn from equally likely cells of leaders.
        sobol: whether parameters are from a Sobol sequence, which fills their space evenly.
        candidates: pairs to choose from, for each pair that is simulated.
        uniform_share: of the choice that ignores disagreement; no selection changes a weight by
            more than its inverse. 1 for no selection.
        members: dropout members whose disagreement is measured.
        surrogate_pairs: kept simulations that the surrogate of the disagreement learns from.
        known_draws: exact posterior draws of each observed trajectory that are training pairs.
        known_share: of the loss, for these, if all have reliable draws; 0 for simulations alone.
    """

    prior_share: float
    samples_per_trajectory: int
    synthetic_share: float
    cell_share: float
    sobol: bool
    candidates: int
    uniform_share: float
    members: int
    surrogate_pairs: int
    known_draws: int
    known_share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = ("prior_share", "synthetic_share", "cell_share", "uniform_share", "known_share")
        for name in shares:
            check_share(f"acquisition.{name}", getattr(self, name))
        if self.known_share == 1:
            raise InputError(
                "acquisition.known_share=1 leaves simulations without a weight; expected below 1"
            )
        for name in ("prior_share", "uniform_share"):
            if getattr(self, name) == 0:
                raise InputError(
                    f"acquisition.{name}=0 leaves weights unbounded; expected a share above 0"
                )
        if not isinstance(self.sobol, bool):
            raise InputError(f"acquisition.sobol={self.sobol}; expected true or false")
        for name in ("samples_per_trajectory", "candidates", "surrogate_pairs", "known_draws"):
            check_integer(f"acquisition.{name}", getattr(self, name), minimum=1)
        check_integer("acquisition.members", self.members, minimum=2)
        if self.correction != "none":
            raise InputError(
                f"acquisition.correction={self.correction}: targeted weighs its simulations "
                "itself; leave it at none"
            )

    def check(self, rounds: int, pairs_per_round: int, synthetic_windows: int) -> None:
        """As for every strategy; the bank must have the windows that are asked for."""
        if self.synthetic_share and not synthetic_windows:
            raise InputError(
                "bank.synthetic_cap=0, but acquisition.synthetic_share asks for synthetic "
                "windows; set the share to 0 or the cap above 0"
            )

    def observed(self, train: Pairs, context_steps: int, seed: int) -> Tensor:
        """Contexts (size, steps, 3): stretches of training pairs that do not overlap."""
        places = [
            (pair, start)
            for pair, length in enumerate(train.lengths.tolist())
            for start in range(0, length - context_steps + 1, context_steps)
        ]
        order = stream(seed, "observed-subset").permutation(len(places))[: self.subset_size]
        pair, start = torch.tensor(places)[torch.from_numpy(order)].unbind(1)
        return context_states(train, pair, start, context_steps)

    def warm_up(self, space: DesignSpace) -> Plan:
        """Parameters from the prior behind recorded leaders, both spread out."""
        rng, points = stream(space.seed, "warm-up"), self._points(space, 0)
        proposal = prior_alone(space.prior)

        def take(n: int) -> Choice:
            theta = proposal.draw(points(n), space.prior)
            return Choice(theta, self._windows(n, space, 0.0, rng), torch.zeros(n))

        return Plan(take, {"lambda": 1.0, "alpha": 0.0}, {})

    def _points(self, space: DesignSpace, round: int) -> UniformPoints:
        return UniformPoints(space.prior.dim + 1, self.sobol, key(space.seed, "points", round))

    def _windows(
        self, n: int, space: DesignSpace, synthetic_share: float, rng: np.random.Generator
    ) -> Tensor:
        """Ids (n,) of leader windows."""
        recorded = space.bank.sample_spread(n, self.cell_share, rng)
        if not synthetic_share:
            return recorded
        mixed = space.bank.sample(n, synthetic_share, rng)
        return torch.where(space.bank.is_synthetic(mixed), mixed, recorded)

    def plan(self, round: int, posterior: Density, space: DesignSpace, kept: Simulations) -> Plan:
        """Pairs picked from a fresh pool whenever some are asked for."""
        rng, watch = stream(space.seed, "acquisition", round), Stopwatch()
        with watch("propose"):
            proposal = pool(
                posterior,
                space.contexts,
                self.prior_share,
                self.samples_per_trajectory,
                space.prior,
                rng,
            )
        diagnostics = {"lambda": self.prior_share, "alpha": self.synthetic_share}
        if self.uniform_share < 1:
            with watch("score"):
                surrogate = fit_surrogate(
                    posterior, kept, space, round, self.members, self.surrogate_pairs
                )
            diagnostics["surrogate_fit"] = surrogate.fit

        points = self._points(space, round)

        def candidates(n: int) -> tuple[Tensor, Tensor]:
            windows = self._windows(n, space, self.synthetic_share, rng)
            return proposal.draw(points(n), space.prior), windows

        def take(n: int) -> Choice:
            if self.uniform_share == 1:
                return Choice(*candidates(n), torch.zeros(n))
            with watch("select"):
                theta, window_id = candidates(n * self.candidates)
                leader = space.bank.window_features[window_id]
                score = surrogate.predict(space.prior.to_normal(theta), leader)
                picks, log_ratio = choose(score, n, self.uniform_share, rng)
                diagnostics.update(score_quantiles(score))
                return Choice(theta[picks], window_id[picks], log_ratio)

        known = self._known(round, posterior, space, watch)
        # Where few stretches have reliable draws, few pairs must not weigh as much as many.
        reliable = len(known or ()) / (len(space.contexts) * self.known_draws)
        share = self.known_share * reliable
        return Plan(take, diagnostics, watch.seconds, proposal, known, share)

    def _known(
        self, round: int, posterior: Density, space: DesignSpace, watch: Stopwatch
    ) -> Simulations | None:
        """Observed drivers as training pairs, by the first round; they do not change."""
        if round > 1 or not self.known_share or space.likelihood is None:
            return None
        rng = stream(space.seed, "known", round)
        with watch("known"):
            pairs = known_pairs(posterior, space.likelihood, space.contexts, self.known_draws, rng)
        return pairs if len(pairs) else None

    def weights(
        self, kept: Simulations, proposals: Mapping[int, PooledProposal], space: DesignSpace
    ) -> Tensor:
        """Prior over the mixture of all rounds, times the inverse of the selection; mean 1."""
        ids, counts = kept.round.unique(return_counts=True)
        held = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        z = space.prior.to_normal(kept.theta).double()
        log_weight = kept.log_ratio.double() - log_balance(z, proposals, held)
        weight = log_weight.exp()
        return (weight / weight.mean()).float()


def choose(
    score: Tensor, n: int, uniform_share: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """n of the candidates at random, and what each pick counts for one of an unselected pool.

    Args:
        score: (pool,) positive; a candidate is picked in proportion to it, but for
        n: picks.
        uniform_share: the share of the picks that ignores it.
        rng: source of the choice.
    """
    probability = inclusion(score, n, uniform_share)
    picks = systematic_picks(probability, rng)
    expected = n / len(score)
    return picks, torch.log(expected / probability[picks]).float()
