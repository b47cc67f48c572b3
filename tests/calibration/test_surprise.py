"""Whether a driver is still as before: ranks, alarms, and forecasts driven step by step."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.data.history import LATEST
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.evaluation.observation import observation_model
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import PREFIX_NOISE, PREFIX_STEPS
from asbc.live import Live
from asbc.posterior.posterior import PosteriorSamples
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.simulator.black_box import BlackBoxSimulator
from asbc.simulator.learned_residual import LearnedResidual
from asbc.surprise import Surprise, rank_p_value
from asbc.trained_model import Model
from asbc.utils.random import key, stream, uniform


def test_ranks_of_one_among_its_kind_are_uniform() -> None:
    rng = np.random.default_rng(0)
    series = torch.from_numpy(rng.standard_normal((400, 50, 2, 6)).cumsum(-1))
    p_values = np.array([rank_p_value(one[0], one[1:]) for one in series])
    assert stats.kstest(p_values - 0.01, "uniform").pvalue > 0.01
    assert p_values.min() >= 1 / 50
    apart = [rank_p_value(one[0] + 6, one[1:]) for one in series[:50]]
    assert np.mean(np.array(apart) <= 0.02) > 0.9
    standing = torch.zeros(2, 6)
    assert rank_p_value(standing, standing.expand(20, 2, 6)) == 1.0


class Known:
    """A posterior that knows the driver: nothing but the statistic is tested then."""

    pool = None
    flow = SimpleNamespace(layers=0)

    def __init__(self, theta: torch.Tensor) -> None:
        self.theta, self.prior = theta, SimpleNamespace(dim=len(theta))

    def encode(self, _: object) -> torch.Tensor:
        return torch.zeros(1, 1)

    def accepted(self, u: torch.Tensor, *_: object) -> PosteriorSamples:
        return PosteriorSamples(self.theta.expand_as(u), torch.zeros(1))


def watched(
    feed, simulator: Simulator, theta: torch.Tensor, driven: Pairs, surprise: Surprise, name: str
) -> tuple[list[float], list[int]]:
    """p-values of all checks of one drive, and the samples at which a change was seen."""
    live = Live(Model(Known(theta), simulator, 20, "gaussian"), name, surprise=surprise)
    found: list[float] = []
    changed = []
    for end, now in feed(live, driven.pair(0)):
        if live._p_values and (not found or live._forecast.made == end):
            found.append(live._p_values[-1])
        if now.changed:
            changed.append(end)
    return found, changed


def test_false_alarms_and_changes(gaussian_run: Run, simulate_pairs, feed) -> None:
    """A driver of constant theta is called changed at the level's rate; another one soon."""
    simulator, surprise = gaussian_run.simulator, Surprise(seconds=4.0, drives=60, level=0.02)
    found: list[float] = []
    alarms = seen = 0
    for seed in range(12):
        theta, driven = simulate_pairs(simulator, 1, seed=100 + seed, steps=620)
        p_values, changed = watched(feed, simulator, theta[0], driven, surprise, str(seed))
        found += p_values
        alarms += len({end // 20 for end in changed})
        # The same leader, and from half time on a driver who keeps another distance.
        other = theta.clone()
        other[:, 2] = torch.where(theta[:, 2] > 1.5, theta[:, 2] / 2.5, theta[:, 2] * 2.5)
        other = other.clamp(simulator.prior.low, simulator.prior.high)
        half = driven.pair(0)
        again = simulator.rollout(
            other,
            half["leader_speed"][None, 310:],
            half["gap"][310:311],
            half["speed"][310:311],
            np.random.default_rng(seed),
        )
        columns = {"gap": again.gap, "speed": again.speed}
        second = replace(
            driven,
            **{n: torch.cat([half[n][:310], new[0]]).clamp_min(0.1) for n, new in columns.items()},
        )
        _, changed = watched(feed, simulator, theta[0], second, surprise, str(seed))
        seen += any(310 < end <= 310 + 75 for end in changed)  # within 15 s
    print(alarms, len(found), seen)
    assert len(found) > 300 and stats.kstest(np.array(found) - 0.5 / 61, "uniform").pvalue > 0.01
    assert alarms / len(found) < 0.02 + 3 * (0.02 / len(found)) ** 0.5
    assert seen >= 9


def test_a_copy_of_a_watched_driver_goes_on_by_itself(
    history_run: Run, drives: Pairs, feed
) -> None:
    """At any state of a forecast: what happens if the driver does this, or that?"""
    for end in range(30, 40):
        live = history_run.follow("r/d", surprise=Surprise(seconds=2.0, drives=20))
        for _end, _now in feed(live, drives.pair(0), end=end):
            pass
        other = copy.deepcopy(live)
        for one in (other, live):
            for _end, _now in feed(one, drives.pair(0), end, 60):
                pass
        assert other.now.surprise == live.now.surprise and other._count == live._count == 60


def test_a_pause_ends_the_check(history_run: Run, drives: Pairs, feed) -> None:
    live = history_run.follow("r/d", surprise=Surprise(seconds=1.0, drives=20))
    for _end, _now in feed(live, drives.pair(0), end=33):  # the last forecast is half driven
        pass
    now = live.now
    assert not math.isnan(now.surprise) and 0 < now.surprise <= 1
    live.pause()
    assert live._forecast is None
    for _end, after in feed(live, drives.pair(2), end=5):
        assert after.surprise == now.surprise  # no check is over yet


class Boxed:
    """A simulator of which only the trajectories are known."""

    def __init__(self, inner: Simulator) -> None:
        self.inner, self.parameters = inner, inner.parameter_names

    def simulate(self, theta, leader_speed, gap, speed, dt, rng) -> torch.Tensor:
        return self.inner.rollout(theta, leader_speed, gap, speed, rng, check=False).states


def boxed(inner: Simulator) -> BlackBoxSimulator:
    return BlackBoxSimulator(Boxed(inner), inner.prior, dt=inner.dt)


def whole_rollout(live: Live, pair: dict[str, torch.Tensor], made: int, theta: torch.Tensor):
    """The drives of a check by `predict_windows`, from the samples of the recording."""
    steps, horizon = live.model.context_steps, live._checked
    first = max(0, made - steps)
    columns = (pair[n][None, first : made + horizon] for n in ("gap", "speed", "leader_speed"))
    recording = replace(Pairs.from_series(*columns, live.dt), pair_id=(live.name,))
    start = made - 1 - first
    observation = live.observation if start > 1 else "exact"
    return predict_windows(
        live.model.simulator,
        theta[None],
        recording,
        EvaluationWindows(torch.tensor([0]), torch.tensor([start]), horizon),
        PREFIX_STEPS,
        PREFIX_NOISE,
        key(live.seed, "check", live.key, made + horizon),
        observation_model(observation, start, LATEST),
    )


@pytest.mark.parametrize("seconds", [0.2, 0.6, 3.0])
@pytest.mark.parametrize("observation", ["exact", "recorded"])
@pytest.mark.parametrize("kind", ["gaussian", "matern", "learned", "black box"])
def test_drives_step_by_step_are_those_of_the_whole_window(
    gaussian_model: Model, matern_model: Model, simulate_pairs, kind, observation, seconds
) -> None:
    model = matern_model if kind in ("matern", "learned") else gaussian_model
    _, driven = simulate_pairs(model.simulator, 1, seed=3, steps=110)
    if kind == "black box":
        model = replace(model, simulator=boxed(model.simulator))
    if kind == "learned":
        learned = LearnedResidual(5, model.simulator.parameter_names)
        torch.nn.init.normal_(learned.out.weight, std=0.3)
        learned.requires_grad_(False)  # as that of a run
        model = replace(model, simulator=model.simulator.taught(learned, (0.1, 0.4)))
    pair = driven.pair(0)
    pair["gap"] = (pair["gap"] + 0.3 * uniform(stream(0, "jitter"), 110)).clamp_min(1)
    live = Live(model, "r/d", 6, observation, Surprise(seconds=seconds, drives=12))
    samples = torch.stack([pair[n] for n in ("gap", "speed", "leader_speed")], dim=1).tolist()
    for sample in samples[:37]:  # a forecast is half driven when the driver is lost
        live.update(*sample)
    live.pause()
    found, known = [], {}
    for end, sample in enumerate(samples, 1):
        forecast = live._forecast
        before = live.now
        now = known[end] = live.update(*sample)
        if forecast is not None and live._forecast is not forecast:
            theta = known[forecast.made].theta(12, "forecast", forecast.made)
            whole = whole_rollout(live, pair, forecast.made, theta)
            simulated = torch.stack([whole.gap, whole.speed], dim=2)[0, ..., 1:]
            series = torch.stack([pair["gap"], pair["speed"]])[:, forecast.made : end]
            assert live._p_values[-1] == rank_p_value(series.double(), simulated)
            if kind != "black box":  # which would drive again, with other noise
                ours = forecast._behind.rollout()
                assert torch.equal(ours.speed, whole.speed[0])
                assert torch.equal(ours.gap, whole.gap[0]) == (forecast._errors is None)
            found.append(live._p_values[-1])
        else:
            assert now.surprise == before.surprise
    assert len(found) == (110 - 1) // live._checked and len(set(found)) > 1
