"""Contexts of windows: what `latest` may see and shares with `first`, what changes nothing."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from asbc.data.history import context_start, context_states
from asbc.data.windows import EvaluationWindows, evaluation_windows, leader_windows
from asbc.errors import InputError
from asbc.evaluation import window_draws
from asbc.evaluation.evaluate import (
    evaluate_draws,
    evaluate_posterior,
    protocol_windows,
    require_first_context,
)
from asbc.evaluation.protocol import EvaluationSettings, score_windows
from asbc.evaluation.window_draws import LatestDraws, sample_pairs
from asbc.posterior.posterior import PosteriorSamples
from asbc.simulator import Prior
from asbc.simulator.robust import ContextSimulator
from asbc.utils.random import uniform

STEPS = 75
SMALL = EvaluationSettings(samples=8, bootstrap=20, simulated_drivers=0)
LATEST = replace(SMALL, context="latest")


class Recognising:
    """A posterior whose first parameter says what its context was; it counts what it encodes."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.seen: list[Tensor] = []

    def encode(self, states: Tensor) -> Tensor:
        return states.mean(dim=1)

    def sample(self, states: Tensor, n: int, rng: np.random.Generator) -> PosteriorSamples:
        self.seen.append(states)
        u = uniform(rng, len(states), n, self.prior.dim, dtype=torch.float64)
        theta = self.prior.icdf(u).float()
        # Anything that is a function of each single sample of the context.
        theta[..., 0] += 1e-2 * states.sum(dim=(1, 2))[:, None].sin()
        return PosteriorSamples(theta, torch.zeros(len(states)))


@pytest.fixture(scope="module")
def setting(simulators, drivers, pairs_of):
    simulator = simulators["matern"]
    return simulator, pairs_of(simulator, 6, 240, drivers(simulator, 6))


def latest(setting, seed: int = 0, n: int = 8) -> tuple[Recognising, LatestDraws, Tensor]:
    simulator, pairs = setting
    posterior = Recognising(simulator.prior)
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    theta = sample_pairs(posterior, pairs, STEPS, n, seed).theta
    posterior.seen.clear()
    return posterior, LatestDraws(posterior, pairs, windows, STEPS, theta, seed), theta


def test_a_latest_context_ends_right_before_its_window(setting) -> None:
    _, pairs = setting
    windows = evaluation_windows(pairs, 50, 20, 20, STEPS)
    start = context_start("latest", windows.start, STEPS)
    assert torch.equal(start + STEPS, windows.start)
    states = context_states(pairs, windows.pair, start, STEPS)
    for i in (0, 7, len(start) - 1):
        own, t = pairs.pair(int(windows.pair[i])), int(windows.start[i])
        assert torch.equal(states[i, :, 0], own["gap"][t - STEPS : t])
        assert torch.equal(states[i, :, 1], own["speed"][t - STEPS : t])
        approach = own["speed"] - own["leader_speed"]
        assert torch.equal(states[i, :, 2], approach[t - STEPS : t])


def test_samples_from_the_start_on_change_no_draw_and_those_before_do(setting) -> None:
    simulator, pairs = setting
    window = EvaluationWindows(torch.tensor([2]), torch.tensor([135]), 50)
    row = int(pairs.offsets[2]) + 135

    def draws(changed: slice) -> Tensor:
        gap = pairs.gap.clone()
        gap[changed] += 3.0
        return latest((simulator, replace(pairs, gap=gap)))[1].of(window)

    before = latest(setting)[1].of(window)
    assert torch.equal(before, draws(slice(row, None)))
    assert not torch.equal(before, draws(slice(row - 1, row)))
    assert not torch.equal(before, draws(slice(row - STEPS, row - STEPS + 1)))
    assert torch.equal(before, draws(slice(row - STEPS - 1, row - STEPS)))


def test_windows_without_enough_samples_before_them_are_predicted_as_by_first(setting) -> None:
    _, pairs = setting
    _, draws, theta = latest(setting)
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    own, early = draws.of(windows), windows.start <= STEPS
    assert torch.equal(own[early], theta[windows.pair[early]])
    same = (own == theta[windows.pair]).flatten(1).all(dim=1)
    assert torch.equal(same, early)


def test_each_context_is_encoded_once_whatever_the_chunk(setting) -> None:
    simulator, pairs = setting
    windows, _ = protocol_windows(pairs, STEPS, SMALL)
    contexts = int((windows.start > STEPS).sum())
    tables = []
    for chunk in (1, 5, 1000):
        posterior, draws, _ = latest(setting)
        tables.append(score_windows(simulator, draws, pairs, windows, chunk=chunk).table)
        assert sum(len(states) for states in posterior.seen) == contexts
        assert max(len(states) for states in posterior.seen) <= window_draws.CHUNK
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


def test_draws_are_keyed_by_pair_and_window(setting) -> None:
    simulator, pairs = setting
    together = latest(setting)[1]
    alone = latest((simulator, pairs.select([4])))[1]
    for start in (95, 175):
        there = EvaluationWindows(torch.tensor([4]), torch.tensor([start]), 50)
        here = EvaluationWindows(torch.tensor([0]), torch.tensor([start]), 50)
        assert torch.equal(together.of(there), alone.of(here))
    other = latest(setting, seed=1)[1]
    assert not torch.equal(together.of(there), other.of(there))


def test_evaluations_differ_where_contexts_do_only(setting) -> None:
    simulator, pairs = setting
    posterior, training = Recognising(simulator.prior), ContextSimulator(simulator)
    leaders = leader_windows(pairs, STEPS, 25)
    first, last = (
        evaluate_posterior(posterior, training, pairs, STEPS, leaders, settings)
        for settings in (SMALL, LATEST)
    )
    by_pair = evaluate_draws(
        simulator, sample_pairs(posterior, pairs, STEPS, 8, 0).theta, pairs, STEPS, SMALL
    )
    assert first.windows.equals(by_pair.windows)
    early = first.windows["start"] <= STEPS
    assert first.windows[early].equals(last.windows[early])
    assert (first.windows.loc[~early, "es_s"] != last.windows.loc[~early, "es_s"]).all()
    np.testing.assert_array_equal(first.cases.mean, last.cases.mean)
    assert last.metrics["settings"]["context"] == "latest"


def test_what_cannot_be_is_refused_in_one_line(setting) -> None:
    simulator, pairs = setting
    with pytest.raises(InputError, match="context=last; expected one of first, latest, all"):
        EvaluationSettings(context="last")
    with pytest.raises(InputError, match="evaluation.context=latest needs a posterior"):
        require_first_context(LATEST)
    theta = simulator.prior.sample(6 * 8, np.random.default_rng(0)).view(6, 8, -1)
    with pytest.raises(InputError, match="use evaluation.context=first"):
        evaluate_draws(simulator, theta, pairs, STEPS, LATEST)
