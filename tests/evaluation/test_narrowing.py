"""What seconds are worth: spreads against posteriors drawn by hand, attention that is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.data.history import histories
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.evaluation.narrowing import AGES, narrowing
from asbc.evaluation.sbc import prior_variance
from asbc.evaluation.window_draws import sample_contexts

STEPS = 40


@pytest.fixture(scope="module")
def posterior():
    """A model of segments of at most 8 s, as if trained: what starts at zero is not."""
    torch.manual_seed(0)
    small = ["residual=gaussian", "encoder=differences", "transform=bounded", "history=segments"]
    size = ["encoder.model_dim=16", "encoder.heads=2", f"data.context_steps={STEPS}"]
    model = build(compose("train", [*small, *size]).estimator).posterior.eval()
    for layer in (model.pool.score, model.pool.correct):
        torch.nn.init.normal_(layer.weight, std=0.3)
    for attention in model.encoder.global_attention:
        torch.nn.init.normal_(attention.position_bias, std=1.0)
    return model


@pytest.fixture(scope="module")
def pairs(simulators, drivers, pairs_of) -> Pairs:
    """Six drivers; the first has two pairs of 18 s, the others one."""
    simulator = simulators["gaussian"]
    found = pairs_of(simulator, 7, 90, drivers(simulator, 7))
    return replace(found, follower=("r/a",) * 2 + found.follower[2:])


def test_spreads_are_those_of_histories_after_so_many_seconds(posterior, pairs) -> None:
    found = narrowing(posterior, posterior.prior, pairs, STEPS, 50, seed=3)
    assert found is not None
    # 18 s of each driver, and 36 s of one: too few to show.
    assert found.seconds.tolist() == [3.0, 5.0, 10.0, 15.0]
    assert found.drivers.tolist() == [6, 6, 6, 6]
    pool = posterior.pool
    first = [0, 2, 3, 4, 5, 6]
    for point, seconds in enumerate(found.seconds):
        known = histories(pairs, first, [round(seconds / 0.2)] * 6, STEPS, pool.shortest, 8)
        keys = [f"driver {pairs.follower[i]} after {seconds:g} s" for i in first]
        theta = sample_contexts(posterior, known, keys, 50, 3).theta
        ratio = theta.std(dim=1) / prior_variance(posterior.prior).sqrt()
        expected = np.quantile(ratio.double().numpy(), [0.25, 0.5, 0.75], axis=0)
        np.testing.assert_allclose(found.spread[:, point], expected, rtol=1e-5)
    saved = found.to_dict()
    assert saved["spread"]["T"] == found.spread[1, :, 2].tolist()


def test_attention_sums_to_one_and_follows_the_pool(posterior, pairs) -> None:
    known = histories(pairs, [1, 4], [85, 60], STEPS, posterior.pool.shortest, 8)
    share = posterior.attention_to_samples(known)
    assert share.shape == known.states.shape[:3]
    torch.testing.assert_close(share.sum(dim=(1, 2)), torch.ones(2))
    torch.testing.assert_close(share.sum(dim=2), posterior.attention(known))
    assert bool((share >= 0).all())
    beyond = torch.arange(STEPS) >= known.lengths[..., None]
    assert float(share[beyond].abs().sum()) == 0


def test_attention_inside_a_segment_is_what_the_encoder_averages_with(posterior, pairs) -> None:
    """One layer without local updates: [CLS] sees the steps by these weights alone."""
    attention = posterior.encoder.global_attention[0]
    states = pairs.contexts(STEPS)[:3]
    inputs, _ = posterior.features(states, None)
    inputs = (inputs - posterior.input_mean) / posterior.input_std
    seen = []
    handle = attention.register_forward_hook(lambda m, x, y: seen.append((x, y)))
    try:
        weights = posterior.encoder.attention(inputs)
    finally:
        handle.remove()
    (cls, steps), gathered = seen[0]
    heads = attention.weights(cls, steps)  # (B, h, T)
    torch.testing.assert_close(heads.sum(-1), torch.ones(3, attention.heads))
    value = (steps.tokens() @ attention.value.weight.T).unflatten(-1, (attention.heads, -1))
    mixed = torch.einsum("bht,bthk->bhk", heads, value).flatten(1)
    torch.testing.assert_close(attention.output(mixed), gathered, rtol=1e-4, atol=1e-5)
    assert weights.shape == inputs.shape[:2]


def test_an_even_model_attends_to_all_seconds_alike(posterior, pairs, monkeypatch) -> None:
    def even(segments: Segments) -> torch.Tensor:
        inside = torch.arange(segments.states.shape[2]) < segments.lengths[..., None]
        return inside / segments.total[:, None, None]

    monkeypatch.setattr(posterior, "attention_to_samples", even, raising=False)
    found = narrowing(posterior, posterior.prior, pairs, STEPS, 9, seed=0)
    assert found is not None and found.earlier == pytest.approx(1.0)
    reached = np.array([0.0, *AGES[:-1]]) < 18
    np.testing.assert_allclose(found.attention[reached], 1.0, rtol=1e-5)
    assert bool(np.isnan(found.attention[~reached]).all())


def test_drivers_with_too_little_have_no_figure(posterior, pairs) -> None:
    assert narrowing(posterior, posterior.prior, pairs.select([2, 3]), STEPS, 9, 0) is None
