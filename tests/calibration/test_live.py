"""A driver watched live: the batch's posterior at every step, and predictions from it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.data.history import LATEST, histories
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.observation import observation_model
from asbc.evaluation.predict import predict_windows
from asbc.run import Run
from asbc.surprise import Surprise
from asbc.utils.random import RowStreams, stream

NAME, DRAWS = "r/d", 40


def test_the_posterior_is_that_of_the_recording_up_to_now(
    history_run: Run, drives: Pairs, feed
) -> None:
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


def test_it_is_what_calibrating_the_recording_gives(history_run: Run, drives: Pairs, feed) -> None:
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


def test_pauses_of_known_length_are_ages(history_run: Run, drives: Pairs, feed) -> None:
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


def test_a_model_of_single_trajectories_reads_the_latest(
    gaussian_run: Run, drives: Pairs, feed
) -> None:
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
    history_run: Run, drives: Pairs, feed, observation: str
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
