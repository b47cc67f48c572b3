"""The window protocol: what a rollout may see, what it is scored on, what changes nothing."""

import multiprocessing
import resource
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from asbc.data.windows import EvaluationWindows, evaluation_windows
from asbc.errors import InputError
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import score_windows
from asbc.simulator.kinematics import NO_LAG
from asbc.simulator.learned_residual import READS, LearnedResidual
from asbc.utils.random import stream

PREFIX = {"prefix_steps": 5, "prefix_noise": 1e-2}


def with_memory(simulator):
    """The simulator with a learned residual whose outputs depend on what it remembers."""
    learned = LearnedResidual(6, simulator.parameter_names).requires_grad_(False)
    learned.out.weight.normal_(0, 0.4, generator=torch.Generator().manual_seed(0))
    return simulator.taught(learned, NO_LAG)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_observations_inside_a_window_change_no_sample(
    simulators, drivers, pairs_of, residual, learned
) -> None:
    simulator = with_memory(simulators[residual]) if learned else simulators[residual]
    pairs = pairs_of(simulator, 2, 120, drivers(simulator, 2))
    theta = simulator.prior.sample(2 * 8, stream(0, "t")).view(2, 8, -1)
    windows = EvaluationWindows(torch.tensor([0, 1]), torch.tensor([40, 55]), 50)
    inside = torch.zeros(240, dtype=torch.bool)
    inside[41:91] = True
    inside[120 + 56 : 120 + 106] = True
    at_start = inside.clone()
    at_start[[40, 120 + 55]] = True  # the acceleration at the start belongs to the window
    changed = replace(
        pairs,
        gap=torch.where(inside, 999.0, pairs.gap),
        speed=torch.where(inside, 77.0, pairs.speed),
        acceleration=torch.where(at_start, -8.0, pairs.acceleration),
    )
    before = predict_windows(simulator, theta, pairs, windows, **PREFIX, seed=1)
    after = predict_windows(simulator, theta, changed, windows, **PREFIX, seed=1)
    for first, second in zip(before, after, strict=True):
        assert torch.equal(first, second)


def test_the_matern_prefix_is_used_and_the_gaussian_one_is_not(
    simulators, drivers, pairs_of
) -> None:
    for residual, differs in (("gaussian", False), ("matern", True)):
        simulator = simulators[residual]
        pairs = pairs_of(simulator, 1, 120, drivers(simulator, 1))
        theta = drivers(simulator, 8).unsqueeze(0)
        windows = EvaluationWindows(torch.tensor([0]), torch.tensor([40]), 50)
        shifted = replace(pairs, acceleration=pairs.acceleration + 0.3)
        first, second = (
            predict_windows(simulator, theta, p, windows, **PREFIX, seed=1).gap
            for p in (pairs, shifted)
        )
        assert torch.equal(first, second) is not differs


def test_a_learned_residual_reads_the_samples_before_a_window_and_no_more(
    simulators, drivers, pairs_of
) -> None:
    simulator = with_memory(simulators["matern"])
    pairs = pairs_of(simulator, 1, 120, drivers(simulator, 1))
    theta = drivers(simulator, 8).unsqueeze(0)
    windows = EvaluationWindows(torch.tensor([0]), torch.tensor([40]), 50)

    def drive(first: int, steps: int = PREFIX["prefix_steps"]) -> torch.Tensor:
        """With other accelerations up to, not including, the sample `first`."""
        other = pairs.acceleration.clone()
        other[:first] += 1.0
        changed = replace(pairs, acceleration=other)
        return predict_windows(simulator, theta, changed, windows, steps, 0.01, seed=1).gap

    assert torch.equal(drive(40 - READS), drive(0))
    assert not torch.equal(drive(40 - READS + 1), drive(0))
    assert torch.equal(drive(40, steps=0), drive(0, steps=0))  # asked for none


def test_prefix_residuals_lie_just_before_the_start(simulators, drivers, pairs_of) -> None:
    """A long-correlated residual continues from the last observed one, with the known theta."""
    simulator = simulators["matern"]
    truth = drivers(simulator, 1)
    truth[:, -1] = 20.0  # correlation length in s: one step ahead is almost certain
    pairs = pairs_of(simulator, 1, 120, truth)
    theta = truth.repeat(200, 1).unsqueeze(0)
    start = 60
    windows = EvaluationWindows(torch.tensor([0]), torch.tensor([start]), 50)
    rollout = predict_windows(simulator, theta, pairs, windows, 20, 1e-3, seed=0)
    predicted = rollout.acceleration[0, :, 0]
    assert predicted.mean().item() == pytest.approx(pairs.acceleration[start].item(), abs=0.03)
    assert predicted.std().item() < 0.04  # the stationary process would give 0.3


def test_windows_at_the_first_sample_have_no_prefix(simulators, drivers, pairs_of) -> None:
    simulator = simulators["matern"]
    pairs = pairs_of(simulator, 1, 80, drivers(simulator, 1))
    theta = drivers(simulator, 30).unsqueeze(0)
    windows = EvaluationWindows(torch.tensor([0]), torch.tensor([0]), 50)
    conditioned = predict_windows(simulator, theta, pairs, windows, **PREFIX, seed=3)
    free = predict_windows(simulator, theta, pairs, windows, 0, 1e-2, seed=3)
    torch.testing.assert_close(conditioned.gap, free.gap)


def test_a_noise_free_model_predicts_its_own_trajectories(simulators, drivers, pairs_of) -> None:
    """With the true theta and no noise every error is zero: start, leader and steps line up."""
    simulator = simulators["gaussian"]
    truth = drivers(simulator, 3)
    truth[:, -1] = 1e-6
    pairs = pairs_of(simulator, 3, 200, truth)
    scores = score_windows(
        simulator, truth[:, None].repeat(1, 4, 1), pairs, evaluation_windows(pairs), **PREFIX
    )
    errors = scores.table[[f"{score}_{x}" for score in ("rmse", "es", "crps") for x in "sva"]]
    assert errors.to_numpy().max() < 1e-3


def test_rmse_of_a_shifted_observation_is_the_shift(simulators, drivers, pairs_of) -> None:
    simulator = simulators["gaussian"]
    truth = drivers(simulator, 1)
    truth[:, -1] = 1e-6
    pairs = pairs_of(simulator, 1, 51, truth)
    # The recorded speed is 0.5 higher from the second sample on; the start stays as it was.
    speed = pairs.speed + 0.5 * (torch.arange(51) > 0)
    scores = score_windows(
        simulator,
        truth[:, None],
        replace(pairs, speed=speed),
        evaluation_windows(pairs),
        **PREFIX,
    )
    assert scores.table["rmse_v"].item() == pytest.approx(0.5, abs=1e-4)
    assert scores.table["es_v"].item() == pytest.approx(0.5 * np.sqrt(50), abs=1e-3)


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_results_do_not_depend_on_chunks_or_other_pairs(
    simulators, drivers, pairs_of, residual
) -> None:
    simulator = simulators[residual]
    pairs = pairs_of(simulator, 4, 160, drivers(simulator, 4))
    theta = simulator.prior.sample(4 * 20, stream(0, "t")).view(4, 20, -1)
    windows = evaluation_windows(pairs, stride=25)
    whole = score_windows(simulator, theta, pairs, windows, chunk=1000)
    small = score_windows(simulator, theta, pairs, windows, chunk=3)
    pd.testing.assert_frame_equal(whole.table, small.table, rtol=1e-5, atol=1e-5)
    single = score_windows(simulator, theta, pairs, windows, chunk=1)
    pd.testing.assert_frame_equal(whole.table, single.table, rtol=1e-5, atol=1e-5)
    last = pairs.select([3])
    alone = score_windows(simulator, theta[3:], last, evaluation_windows(last, stride=25))
    expected = whole.table[whole.table["pair_id"] == "r/3"].reset_index(drop=True)
    pd.testing.assert_frame_equal(expected, alone.table, rtol=1e-5, atol=1e-5)
    for name, values in whole.simulated.items():
        np.testing.assert_allclose(values, small.simulated[name], rtol=1e-5)


def test_the_true_model_covers_at_the_nominal_rate(simulators, pairs_of) -> None:
    simulator = simulators["gaussian"]
    truth = simulator.prior.sample(60, stream(4, "truth"))
    pairs = pairs_of(simulator, 60, 160, truth)
    scores = score_windows(
        simulator, truth[:, None].repeat(1, 200, 1), pairs, evaluation_windows(pairs)
    ).table
    for level in (50, 80, 95):
        for variable in "sva":
            expected = level / 100 * 199 / 201  # interpolated quantiles of 200 draws
            assert scores[f"coverage{level}_{variable}"].mean() == pytest.approx(
                expected, abs=0.05
            )


def test_collisions_are_counted(simulators, drivers, pairs_of) -> None:
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, 1, 60, drivers(simulator, 1))
    standing = replace(
        pairs,
        gap=torch.full((60,), 2.0),
        speed=torch.full((60,), 25.0),
        leader_speed=torch.zeros(60),
    )
    theta = drivers(simulator, 10).unsqueeze(0)
    table = score_windows(simulator, theta, standing, evaluation_windows(standing)).table
    assert table["collision_rate"].tolist() == [1.0]
    assert np.isfinite(table.select_dtypes("number")).all().all()


def test_wrong_input_is_refused_by_name(simulators, drivers, pairs_of) -> None:
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, 2, 60, drivers(simulator, 2))
    windows = evaluation_windows(pairs)
    with pytest.raises(InputError, match="theta has shape"):
        score_windows(simulator, drivers(simulator, 3)[:, None], pairs, windows)
    broken = drivers(simulator, 2)[:, None].clone()
    broken[1, 0, 2] = torch.nan
    with pytest.raises(InputError, match=r"theta\[1, 0, 2\] is nan"):
        score_windows(simulator, broken, pairs, windows)
    with pytest.raises(InputError, match=r"set data.dt=0.2"):
        slow = replace(pairs, dt=0.1)
        score_windows(simulator, drivers(simulator, 2)[:, None], slow, windows)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_windows(simulators, drivers, pairs_of) -> None:
    """Peak memory of a forked process: 1,600 windows need no more than 400 do."""
    simulator = simulators["matern"]

    def peak_megabytes(count: int) -> float:
        pairs = pairs_of(simulator, count, 440, drivers(simulator, count))
        theta = drivers(simulator, 500).expand(count, -1, -1)
        receiver, sender = multiprocessing.Pipe(duplex=False)

        def child() -> None:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            score_windows(simulator, theta, pairs, evaluation_windows(pairs))
            sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        peak = receiver.recv()
        process.join()
        return peak

    small, large = peak_megabytes(20), peak_megabytes(80)
    assert large < small + 100
    assert large < 1000
