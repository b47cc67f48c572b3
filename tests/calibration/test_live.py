"""A driver watched live: the batch's posterior at every step, forecasts, and changes noticed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from asbc.data.history import LATEST, histories
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.observation import observation_model
from asbc.evaluation.predict import predict_windows
from asbc.live import Live, Surprise, rank_p_value
from asbc.posterior.posterior import PosteriorSamples
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.trained_model import Model
from asbc.utils.random import RowStreams, stream

NAME, DRAWS = "r/d", 40


@pytest.fixture(scope="module")
def drives(history_run: Run, simulate_pairs) -> Pairs:
    """Three drives of one driver, of 130, 9 and 47 samples."""
    _, pairs = simulate_pairs(history_run.simulator, 3, seed=2, steps=130)
    lengths = torch.tensor([130, 9, 47])
    rows = torch.cat([130 * i + torch.arange(n) for i, n in enumerate(lengths.tolist())])
    return replace(
        pairs,
        follower=(NAME,) * 3,
        offsets=torch.tensor([0, 130, 139, 186]),
        **{n: getattr(pairs, n)[rows] for n in ("gap", "speed", "leader_speed", "acceleration")},
    )


def feed(live: Live, pair: dict[str, torch.Tensor], start: int = 0, end: int | None = None):
    """Every sample in turn, and what was known after it."""
    columns = torch.stack([pair[n][start:end] for n in ("gap", "speed", "leader_speed")], dim=1)
    for count, sample in enumerate(columns.tolist(), start + 1):
        yield count, live.update(*sample)


def test_the_posterior_is_that_of_the_recording_up_to_now(history_run: Run, drives: Pairs) -> None:
    live = history_run.follow(NAME, seed=4, surprise=None)
    posterior = history_run.posterior
    for drive in range(3):
        for end, now in feed(live, drives.pair(drive)):
            if drive == 0 and end < 15:
                assert now.segments == 0 and live.segments() is None
                continue
            known = histories(drives, [drive], [end], 20, 15, 4)
            found = live.segments()
            assert torch.equal(found.lengths, known.lengths)
            assert torch.equal(found.states, known.states)
            torch.testing.assert_close(found.age, known.age, equal_nan=True, rtol=1e-6, atol=1e-6)
            assert now.seconds == pytest.approx(0.2 * float(known.total))
            if end % 9 == 0:
                rng = RowStreams([stream(4, "posterior", f"driver {NAME}")])
                batch = posterior.sample(found, DRAWS, rng).theta[0]
                assert torch.equal(now.theta(DRAWS), batch)
        live.pause()
    assert now.segments == 4


def test_it_is_what_calibrating_the_recording_gives(history_run: Run, drives: Pairs) -> None:
    live = history_run.follow(NAME, seed=4)
    for drive in range(3):
        if drive:
            live.pause()
        for _end, _now in feed(live, drives.pair(drive)):
            pass
    now = live.now
    fit = history_run.calibrate(drives, samples=DRAWS, seed=4)
    assert torch.equal(live.posterior(DRAWS), fit.theta[0])
    assert fit.flags["seconds"][0] == pytest.approx(now.seconds)
    summary = now.summary
    assert summary["parameter"].tolist() == list(history_run.simulator.parameter_names)
    expected = history_run.calibrate(drives, samples=500, seed=4).summary.drop(columns="follower")
    assert summary.equals(expected)


def test_pauses_of_known_length_are_ages(history_run: Run, drives: Pairs) -> None:
    """As with recordings of one clock: the second drive after 10 s, the third after 30 s."""
    begin = [0.0, 129 * 0.2 + 10]
    begin.append(begin[1] + 8 * 0.2 + 30)
    timed = replace(drives, begin=torch.tensor(begin, dtype=torch.float64))
    live = history_run.follow(NAME, surprise=None)
    for drive, pause in enumerate((None, 10.0, 30.0)):
        if drive:
            live.pause(pause)
        for end, _now in feed(live, timed.pair(drive)):
            if drive and end % 4 == 0:
                known = histories(timed, [drive], [end], 20, 15, 4)
                torch.testing.assert_close(live.segments().age, known.age, rtol=1e-6, atol=1e-4)
                assert torch.equal(live.segments().states, known.states)
    with pytest.raises(InputError, match="pause=-1; expected seconds above 0"):
        live.pause(-1)


def test_a_model_of_single_trajectories_reads_the_latest(gaussian_run: Run, drives: Pairs) -> None:
    live = gaussian_run.follow("r/0", seed=4, surprise=None)
    first = drives.select([0])
    for end, now in feed(live, drives.pair(0)):
        if end < 20:
            with pytest.raises(InputError, match="driver r/0: nothing is known yet; a posterior"):
                now.theta()
            continue
        states = live.segments().states[0, 0]
        assert torch.equal(states[:, 0], drives.pair(0)["gap"][end - 20 : end])
        assert now.segments == 1 and now.seconds == pytest.approx(4.0)
        if end == 20:
            fit = gaussian_run.calibrate(first, samples=DRAWS, seed=4)
            torch.testing.assert_close(now.theta(DRAWS), fit.theta[0], rtol=1e-5, atol=1e-6)
    live.pause()
    before = live.segments()
    live.update(*(20.0, 10.0, 10.0))  # too little of the new drive: the last of the old one
    assert torch.equal(live.segments().states, before.states)


def test_memory_does_not_grow(history_run: Run, drives: Pairs) -> None:
    live = history_run.follow(surprise=None)

    def size() -> int:
        return live._drive.nbytes + sum(closed.samples.nbytes for closed in live._closed)

    def watch(times: int) -> None:
        samples = np.stack([drives.pair(0)[n] for n in ("gap", "speed", "leader_speed")]).T
        for sample in np.tile(samples, (times, 1)):
            live.update(*sample)

    watch(2)
    live.pause()
    watch(1)
    before = size()
    for _ in range(3):
        watch(3)
        live.pause(5.0)
    assert size() <= before and live._held <= len(live._drive)
    assert live.now.segments == 4 and live.now.seconds == pytest.approx(16.0)


@pytest.mark.parametrize("observation", ["exact", "recorded"])
def test_predictions_are_those_of_the_batch(
    history_run: Run, drives: Pairs, observation: str
) -> None:
    live = history_run.follow("r/0", seed=4, observation=observation, surprise=None)
    pair = drives.pair(0)
    for _end, _now in feed(live, pair, end=60):
        pass
    found = live.predict(pair["leader_speed"][60:85], n=30)
    theta = live.posterior(30)[None]
    windows = EvaluationWindows(torch.tensor([0]), torch.tensor([59]), 25)
    expected = predict_windows(
        history_run.simulator,
        theta,
        drives.select([0]),
        windows,
        5,
        1e-2,
        4,
        observation_model(observation, 20, LATEST),
    )
    for name in ("gap", "speed", "acceleration"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name)[0])
    assert found.gap.shape == (30, 26) and bool((found.gap[:, 0] == pair["gap"][59]).all())
    if observation == "exact":
        assert torch.equal(found.collided, expected.collided[0])
    # Right after a pause nothing is known of this recording's error, and there is no residual.
    live.pause()
    live.update(20.0, 10.0, 10.0)
    after = live.predict([10.0] * 5, n=30)
    assert bool((after.gap[:, 0] == 20.0).all()) and bool(torch.isfinite(after.gap).all())


def test_what_cannot_be_used_is_refused(history_run: Run) -> None:
    live = history_run.follow("r/7")
    for sample, message in (
        ((0.0, 1.0, 1.0), r"driver r/7: gap=0.0; expected a positive number \(m\)"),
        ((9.0, -1.0, 1.0), r"driver r/7: speed=-1.0; expected 0 or more"),
        ((9.0, 1.0, math.nan), "driver r/7: leader_speed=nan"),
        ((math.inf, 1.0, 1.0), "driver r/7: gap=inf"),
    ):
        with pytest.raises(InputError, match=message):
            live.update(*sample)
    with pytest.raises(InputError, match="nothing is known yet; a posterior needs 3 s"):
        live.predict([1.0])
    for _ in range(20):
        live.update(20.0, 10.0, 10.0)
    with pytest.raises(InputError, match="leader_speed: expected speeds of the next steps"):
        live.predict([-1.0])
    live.pause()
    with pytest.raises(InputError, match="no sample since the pause"):
        live.predict([1.0])
    with pytest.raises(InputError, match="surprise.drives=3"):
        Surprise(drives=3)
    with pytest.raises(InputError, match="follow.observation=no"):
        history_run.follow(observation="no")


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

    def __init__(self, theta: torch.Tensor) -> None:
        self.theta = theta

    def encode(self, _: object) -> torch.Tensor:
        return torch.zeros(1, 1)

    def sample_context(self, _: torch.Tensor, n: int, rng: object) -> PosteriorSamples:
        return PosteriorSamples(self.theta.expand(1, n, -1), torch.zeros(1))


def watched(
    simulator: Simulator, theta: torch.Tensor, driven: Pairs, surprise: Surprise, name: str
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


def test_false_alarms_and_changes(gaussian_run: Run, simulate_pairs) -> None:
    """A driver of constant theta is called changed at the level's rate; another one soon."""
    simulator, surprise = gaussian_run.simulator, Surprise(seconds=4.0, drives=60, level=0.02)
    found: list[float] = []
    alarms = seen = 0
    for seed in range(12):
        theta, driven = simulate_pairs(simulator, 1, seed=100 + seed, steps=620)
        p_values, changed = watched(simulator, theta[0], driven, surprise, str(seed))
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
        _, changed = watched(simulator, theta[0], second, surprise, str(seed))
        seen += any(310 < end <= 310 + 75 for end in changed)  # within 15 s
    print(alarms, len(found), seen)
    assert len(found) > 300 and stats.kstest(np.array(found) - 0.5 / 61, "uniform").pvalue > 0.01
    assert alarms / len(found) < 0.02 + 3 * (0.02 / len(found)) ** 0.5
    assert seen >= 9


def test_a_pause_ends_the_check(history_run: Run, drives: Pairs) -> None:
    live = history_run.follow(NAME, surprise=Surprise(seconds=1.0, drives=20))
    for _end, _now in feed(live, drives.pair(0), end=30):
        pass
    now = live.now
    assert not math.isnan(now.surprise) and 0 < now.surprise <= 1
    live.pause()
    assert live._forecast is None
    for _end, after in feed(live, drives.pair(2), end=4):
        assert after.surprise == now.surprise  # no check is over yet
