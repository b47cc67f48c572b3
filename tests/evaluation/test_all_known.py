"""`evaluation.context=all`: nothing of the future, earlier pairs, short ones, own numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from asbc.data.history import histories
from asbc.data.pairs import STATE_COLUMNS, Pairs
from asbc.data.segments import Segments
from asbc.data.windows import EvaluationWindows, leader_windows
from asbc.design.history_law import HistoryLaw
from asbc.errors import InputError
from asbc.evaluation import window_draws
from asbc.evaluation.evaluate import evaluate_posterior, protocol_windows
from asbc.evaluation.observation import Recorded, error_spread
from asbc.evaluation.protocol import EvaluationSettings, score_windows
from asbc.evaluation.results import choices
from asbc.evaluation.window_draws import HistoryDraws, LatestDraws, sample_pairs
from asbc.posterior.posterior import PosteriorSamples
from asbc.simulator import Prior
from asbc.simulator.kinematics import PaperKinematics
from asbc.simulator.robust import ContextSimulator, simulate_histories
from asbc.utils.random import uniform

STEPS, SHORTEST = 75, 15
SMALL = EvaluationSettings(samples=8, bootstrap=20, simulated_drivers=0)
ALL = replace(SMALL, context="all")


class Reader:
    """A posterior of any segments whose first parameter says what was read; it counts them."""

    def __init__(self, prior: Prior) -> None:
        self.prior, self.seen = prior, 0
        self.pool = SimpleNamespace(shortest=SHORTEST, max_segments=8)

    def encode(self, states: Tensor | Segments) -> Tensor:
        return _sums(states)[:, None].expand(-1, 2) + torch.randn(len(states), 2)

    def sample(
        self, states: Tensor | Segments, n: int, rng: np.random.Generator
    ) -> PosteriorSamples:
        self.seen += len(states)
        theta = self.prior.icdf(uniform(rng, len(states), n, self.prior.dim, dtype=torch.float64))
        theta[..., 0] += 1e-2 * _sums(states)[:, None].sin()
        return PosteriorSamples(theta.float(), torch.zeros(len(states)))

    def log_prob(self, theta: Tensor, states: Tensor | Segments) -> Tensor:
        return torch.zeros(theta.shape[:-1])


def _sums(states: Tensor | Segments) -> Tensor:
    values = (
        states.states.double().sum(dim=(1, 2, 3))
        if isinstance(states, Segments)
        else (states.double().sum(dim=(1, 2)))
    )
    return values


@pytest.fixture(scope="module")
def setting(simulators, drivers, pairs_of):
    """Seven pairs; the first three are one driver's, of which the second is very short."""
    simulator = simulators["matern"]
    whole = pairs_of(simulator, 7, 240, drivers(simulator, 7))
    return simulator, shortened(replace(whole, follower=("r/a",) * 3 + whole.follower[3:]))


def shortened(pairs: Pairs, index: int = 1, samples: int = 40) -> Pairs:
    keep = torch.ones(len(pairs.gap), dtype=torch.bool)
    keep[int(pairs.offsets[index]) + samples : int(pairs.offsets[index + 1])] = False
    lengths = pairs.lengths.clone()
    lengths[index] = samples
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    columns = {name: getattr(pairs, name)[keep] for name in STATE_COLUMNS}
    return replace(pairs, offsets=offsets, **columns)


def draws_of(setting, kind=HistoryDraws, seed: int = 0) -> tuple[Reader, HistoryDraws, Tensor]:
    simulator, pairs = setting
    posterior = Reader(simulator.prior)
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    theta = sample_pairs(posterior, pairs, STEPS, 8, seed).theta
    posterior.seen = 0
    return posterior, kind(posterior, pairs, windows, STEPS, theta, seed), theta


def poisoned(pairs: Pairs, pair: int, start: int) -> Pairs:
    """Nothing at or after `start` of the pair, nor of what comes after it, can be read."""
    columns = {name: getattr(pairs, name).clone() for name in STATE_COLUMNS}
    for values in columns.values():
        values[int(pairs.offsets[pair]) + start :] = float("nan")
    return replace(pairs, **columns)


@pytest.mark.parametrize(("pair", "start"), [(0, 80), (2, 0), (2, 40), (2, 160), (3, 75)])
def test_nothing_at_or_after_a_windows_start_is_read(setting, pair, start) -> None:
    simulator, pairs = setting
    window = EvaluationWindows(torch.tensor([pair]), torch.tensor([start]), 50)
    _, draws, theta = draws_of(setting)
    blind = poisoned(pairs, pair, start)
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    again = HistoryDraws(draws.posterior, blind, windows, STEPS, theta, 0)
    again._contexts = draws._codes(window)[draws._codes(window) % draws._base > 0]
    assert torch.equal(again.of(window), draws.of(window))
    model = Recorded(STEPS, "all")
    spread = model.spread(simulator, pairs, window)
    assert bool(torch.isfinite(spread).all())
    assert torch.equal(model.spread(simulator, blind, window), spread)


def test_every_sample_before_it_counts_and_those_of_earlier_pairs(setting) -> None:
    simulator, pairs = setting
    window = EvaluationWindows(torch.tensor([2]), torch.tensor([100]), 50)
    before = draws_of(setting)[1].of(window)
    end = int(pairs.offsets[2]) + 100
    for row in (0, 239, 240, 279, int(pairs.offsets[2]) + 20, end - 1, end):
        gap = pairs.gap.clone()
        gap[row] += 3.0
        changed = draws_of((simulator, replace(pairs, gap=gap)))[1].of(window)
        assert torch.equal(changed, before) == (row == end), row


def test_windows_that_know_the_first_context_only_have_its_draws(setting) -> None:
    _, pairs = setting
    _, draws, theta = draws_of(setting)
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    own = draws.of(windows)
    same = (own == theta[windows.pair]).flatten(1).all(dim=1)
    alone = (windows.pair == 0) | (windows.pair > 2)
    expected = alone & ((windows.start < SHORTEST) | (windows.start == STEPS))
    assert torch.equal(same, expected)
    latest = draws_of(setting, LatestDraws)[1].of(windows)
    at_75 = alone & (windows.start == STEPS)
    assert bool(at_75.any()) and torch.equal(latest[at_75], own[at_75])


def test_each_history_is_encoded_once_whatever_the_chunk(setting) -> None:
    simulator, pairs = setting
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    tables = []
    for chunk in (1, 5, 1000):
        posterior, draws, theta = draws_of(setting)
        assert len(draws._contexts) > window_draws.CHUNK
        observed = Recorded(STEPS, "all")
        scored = score_windows(simulator, draws, pairs, windows, chunk=chunk, observation=observed)
        tables.append(scored.table)
        assert posterior.seen == len(draws._contexts)
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


def test_draws_are_keyed_by_pair_and_window(setting) -> None:
    simulator, pairs = setting
    alone = draws_of((simulator, pairs.select([5])))[1]
    together = draws_of(setting)[1]
    for start in (40, 95, 175):
        there = EvaluationWindows(torch.tensor([5]), torch.tensor([start]), 50)
        here = EvaluationWindows(torch.tensor([0]), torch.tensor([start]), 50)
        assert torch.equal(together.of(there), alone.of(here))
    assert not torch.equal(together.of(there), draws_of(setting, seed=1)[1].of(there))


def test_an_evaluation_reads_short_pairs_and_says_what_it_read(setting) -> None:
    simulator, pairs = setting
    posterior, training = Reader(simulator.prior), ContextSimulator(simulator)
    leaders = leader_windows(pairs, STEPS, 25)
    settings = replace(ALL, simulated_drivers=20, posterior_draws=9, observation="recorded")
    found, latest = (
        evaluate_posterior(
            posterior, training, pairs, STEPS, leaders, chosen, law=HistoryLaw(shortest=3.0)
        )
        for chosen in (settings, replace(settings, context="latest"))
    )
    assert choices(found.metrics) == ("all that is known", "as recorded")
    assert choices(latest.metrics) == ("latest 15 s", "as recorded")
    assert found.metrics["data"]["n_pairs"] == 7
    assert found.windows["start"].equals(latest.windows["start"])
    assert found.metrics["simulated_drivers"]["n_drivers"] == 20
    after = found.windows["after_context"]
    assert (found.windows.loc[after, "es_s"] != latest.windows.loc[after, "es_s"]).mean() > 0.5


def test_a_model_of_single_trajectories_is_refused(setting) -> None:
    simulator, pairs = setting
    posterior, training = Reader(simulator.prior), ContextSimulator(simulator)
    posterior.pool = None  # type: ignore[assignment]
    long = pairs.select([0, 3])
    with pytest.raises(
        InputError, match="evaluation.context=all .* train with experiment=history"
    ):
        evaluate_posterior(posterior, training, long, STEPS, leader_windows(long, STEPS, 25), ALL)
    with pytest.raises(InputError, match="context_steps=75 is longer than the shortest pair"):
        sample_pairs(posterior, pairs, STEPS, 8, 0)


def test_errors_of_segments_are_means_over_all_of_them(setting) -> None:
    """Against the definition, segment by segment and lag by lag."""
    _, pairs = setting
    noise = np.random.default_rng(0).normal(0, 0.4, len(pairs.gap))
    recorded = replace(pairs, gap=pairs.gap + torch.from_numpy(noise).float())
    known = histories(recorded, [2, 3], [100, 30], STEPS, SHORTEST, 8)
    found = error_spread(known, PaperKinematics(), pairs.dt, 60)
    for driver in range(2):
        last = None
        for k in range(1, 61):
            squares = []
            for states, length in zip(known.states[driver], known.lengths[driver], strict=True):
                if k > max(2 * int(length) // 3, 1):
                    continue
                gap, speed, approach = states[:length].double().numpy().T
                leader = speed - approach
                for t in range(int(length) - k):
                    steps = range(t, t + k)
                    moved = sum(
                        (leader[i] - (speed[i] + speed[i + 1]) / 2) * pairs.dt for i in steps
                    )
                    squares.append((gap[t + k] - gap[t] - moved) ** 2)
            last = np.sqrt(np.mean(squares)) if squares else last
            assert float(found[driver, k - 1]) == pytest.approx(last, rel=1e-6), (driver, k)


def test_simulated_histories_are_the_priors_and_none_collided(setting) -> None:
    simulator, pairs = setting
    training, law = ContextSimulator(simulator, drift=0.2), HistoryLaw(max_segments=3)
    drivers = simulate_histories(training, leader_windows(pairs, STEPS, 25), 50, 0, law.draw)
    assert isinstance(drivers.states, Segments) and drivers.theta.shape == (50, 7)
    drivers.states.check(SHORTEST)
    inside = torch.arange(STEPS) < drivers.states.lengths[..., None]
    assert bool((drivers.states.states[..., 0][inside] > 0).all())
    assert len(drivers.states.present.sum(1).unique()) == 3
    again = simulate_histories(training, leader_windows(pairs, STEPS, 25), 50, 0, law.draw)
    assert torch.equal(again.states.states, drivers.states.states)
