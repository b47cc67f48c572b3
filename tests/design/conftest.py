import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.design.bank import LeaderBank
from asbc.design.proposal import DesignSpace
from asbc.design.simulations import Simulations
from asbc.simulator import Prior, Simulator
from asbc.utils.random import stream

STEPS = 20


def make_pairs(count: int, length: int, seed: int = 0, gap: float = 25.0) -> Pairs:
    """Followers at a steady distance behind leaders with smooth random speeds."""
    rng = np.random.default_rng(seed)
    noise = np.cumsum(rng.standard_normal((count, length)) * 0.15, axis=1)
    leader = np.clip(rng.uniform(6, 14, (count, 1)) + noise, 1.0, None)
    flat = torch.from_numpy(leader.astype(np.float32)).flatten()
    names = tuple(f"p{i}" for i in range(count))
    return Pairs(
        pair_id=names,
        follower=names,
        recording=("r",) * count,
        follower_class=("car",) * count,
        dt=0.2,
        offsets=torch.arange(count + 1) * length,
        gap=torch.full_like(flat, gap),
        speed=flat.clone(),
        leader_speed=flat,
        acceleration=torch.zeros_like(flat),
    )


class StubPosterior:
    """A posterior with known densities: theta ~ N(mean of the context, 1), capped to the prior.

    Member k is the same density with its mean moved by k modulo 7.
    """

    def __init__(self, prior: Prior, leak: float = 0.0, shift: float = 0.0) -> None:
        self.prior, self.leak, self.shift = prior, leak, shift

    def _density(self, states: torch.Tensor) -> Independent:
        centre = self.prior.icdf(torch.full((self.prior.dim,), 0.5))
        spread = 0.1 * (self.prior.high - self.prior.low)
        offset = 0.1 * states.mean(dim=(1, 2))[:, None] + self.shift * spread
        return Independent(Normal(centre + offset, spread), 1)

    def sample(self, states, n, rng):
        density = self._density(states).base_dist
        noise = torch.from_numpy(rng.standard_normal((len(states), n, self.prior.dim))).float()
        theta = density.loc[:, None] + density.scale[:, None] * noise
        theta = theta.clamp(self.prior.low, self.prior.high)
        return SamplesStub(theta, torch.full((len(states),), self.leak))

    def log_prob_grid(self, theta, states):
        return self._density(states).log_prob(theta[:, None]).T

    def log_prob(self, theta, states):
        return self._density(states).log_prob(theta)

    def member(self, key):
        return StubPosterior(self.prior, self.leak, shift=float(key % 7))


class SamplesStub:
    def __init__(self, theta, leak_rate):
        self.theta, self.leak_rate = theta, leak_rate


@pytest.fixture(scope="session")
def pair_maker():
    return make_pairs


@pytest.fixture(scope="session")
def simulator() -> Simulator:
    return build(compose("train").simulator)


@pytest.fixture(scope="session")
def prior(simulator) -> Prior:
    return simulator.prior


@pytest.fixture(scope="session")
def bank():
    return LeaderBank(make_pairs(30, 60), steps=STEPS, stride=10, synthetic_cap=200)


@pytest.fixture
def space(prior, bank):
    contexts = torch.from_numpy(stream(0, "contexts").standard_normal((4, STEPS, 3))).float()
    return DesignSpace(prior=prior, bank=bank, contexts=contexts, seed=3)


@pytest.fixture
def kept(prior, bank):
    """Simulations of a warm-up; their trajectories are noise."""
    rng = stream(0, "kept")
    states = torch.from_numpy(rng.standard_normal((300, STEPS, 3))).float()
    return Simulations(
        theta=prior.sample(300, rng),
        states=states,
        window_id=bank.sample(300, 0.0, rng),
        round=torch.zeros(300, dtype=torch.int64),
        log_ratio=torch.zeros(300),
    )


@pytest.fixture
def posterior(prior):
    return StubPosterior(prior)
