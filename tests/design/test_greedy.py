import math
import time
import tracemalloc

import numpy as np
import pytest
import torch

from asbc.design.selection import GreedyPicker
from asbc.errors import InputError


def brute_force(score, window, theta, features, gamma, tau_leader, tau_theta, picks):
    """The definition, pair by pair: score minus gamma times the mean kernel to the selected."""
    theta, features = theta.tolist(), features.tolist()
    pairs = [(i, int(window[i, p])) for i in range(len(theta)) for p in range(window.shape[1])]
    value = [float(v) for v in score.flatten()]
    selected: list[int] = []
    for _ in range(picks):
        best, best_score = None, -math.inf
        for index, (i, w) in enumerate(pairs):
            if index in selected:
                continue
            penalty = 0.0
            for chosen in selected:
                j, u = pairs[chosen]
                leader = sum((a - b) ** 2 for a, b in zip(features[w], features[u], strict=True))
                parameter = sum((a - b) ** 2 for a, b in zip(theta[i], theta[j], strict=True))
                penalty += math.exp(-leader / tau_leader**2 - parameter / tau_theta**2)
            penalty /= max(len(selected), 1)
            total = value[index] - gamma * penalty
            if total > best_score:  # strictly: the lowest index wins a tie
                best, best_score = index, total
        selected.append(best)
    return selected


def pool(seed, candidates=12, pairs=3, windows=6, dim=2, features=3):
    rng = np.random.default_rng(seed)
    shapes = [(candidates, pairs), (candidates, dim), (windows, features)]
    score, theta, window_features = (torch.from_numpy(rng.standard_normal(s)) for s in shapes)
    window = torch.from_numpy(rng.integers(windows, size=(candidates, pairs)))
    return score, window, theta, window_features


@pytest.mark.parametrize("gamma", [0.0, 0.1, 1.0, 20.0])
@pytest.mark.parametrize("temperature", [(1.0, 1.0), (0.3, 2.0), (5.0, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_definition(seed, gamma, temperature):
    parts = pool(seed)
    picker = GreedyPicker(*parts, gamma, *temperature)
    assert picker.pick(20).tolist() == brute_force(*parts, gamma, *temperature, 20)


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_lowest_index(seed):
    score, window, theta, features = pool(seed, candidates=8, pairs=2, windows=3)
    # Few distinct scores, parameters and windows: every pick chooses among equals.
    score = score.round()
    theta, features = theta.round(), features.round()
    arguments = (score, window, theta, features, 0.7, 1.0, 1.0)
    picks = GreedyPicker(*arguments).pick(score.numel()).tolist()
    assert picks == brute_force(*arguments, score.numel())
    assert sorted(picks) == list(range(score.numel()))


def test_all_equal_scores_without_a_penalty_are_taken_in_order():
    score, window, theta, features = pool(0)
    picker = GreedyPicker(torch.zeros_like(score), window, theta, features, 0.0, 1.0, 1.0)
    assert picker.pick(36).tolist() == list(range(36))


def test_the_penalty_of_the_empty_set_is_zero():
    score, window, theta, features = pool(1)
    picker = GreedyPicker(score, window, theta, features, 1e9, 1.0, 1.0)
    assert picker.pick(1).item() == int(np.argmax(score.numpy()))


def test_asking_again_continues_the_sequence():
    arguments = (*pool(2), 0.5, 1.0, 1.0)
    at_once = GreedyPicker(*arguments).pick(15)
    picker = GreedyPicker(*arguments)
    assert torch.equal(torch.cat([picker.pick(4), picker.pick(0), picker.pick(11)]), at_once)


def test_unusable_candidates_are_never_picked():
    score, window, theta, features = pool(3)
    score[2:] = -torch.inf
    picker = GreedyPicker(score, window, theta, features, 0.1, 1.0, 1.0)
    assert sorted(picker.pick(6).tolist()) == list(range(6))
    with pytest.raises(
        InputError, match="no candidate left after 6 picks.*acquisition.candidates"
    ):
        picker.pick(1)


def test_a_penalty_spreads_the_picks():
    score, window, theta, features = pool(4, candidates=200, pairs=5, windows=40)
    spread = [
        theta[GreedyPicker(score * 0.1, window, theta, features, gamma, 1.0, 1.0).pick(50) // 5]
        .std(dim=0)
        .mean()
        for gamma in (0.0, 50.0)
    ]
    assert spread[1] > spread[0]


def picked(kind: type[GreedyPicker], count: int) -> tuple[torch.Tensor, int]:
    """Picks out of a pool of the paper's size, and the bytes held at the worst moment."""
    parts = pool(5, candidates=5000, pairs=10, windows=2000, dim=7)
    tracemalloc.start()  # numpy reports its arrays; the pool itself was made before
    picks = kind(*parts, 0.1, 1.0, 1.0).pick(count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return picks, peak


class HoardingPicker(GreedyPicker):
    """Keeps the kernel of every pick, in place of their sum."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.kernels: list[np.ndarray] = []

    def _add_kernel_of(self, index: int) -> None:
        super()._add_kernel_of(index)
        self.kernels.append(self._scratch.copy())


def test_the_papers_pool_takes_seconds_and_little_memory():
    start = time.process_time()
    picks, peak = picked(GreedyPicker, 2000)
    assert time.process_time() - start < 10
    assert len(picks.unique()) == 2000
    # A few arrays of the pool's 50,000 scores, however many are picked.
    assert peak < 10 * 50_000 * 8
    same, too_much = picked(HoardingPicker, 100)
    assert torch.equal(same, picks[:100])
    assert too_much > 10 * 50_000 * 8
