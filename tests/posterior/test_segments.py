"""Posteriors of several segments: padding, order, one segment as before, evidence that adds."""

import math

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.data.segments import Segments, concatenate_segments
from asbc.errors import InputError

STEPS, SHORTEST = 40, 15


@pytest.fixture(scope="module", params=["bounded", "laplace"])
def models(request):
    """A model that reads several segments, and the one that reads single trajectories."""
    size = ["encoder.model_dim=16", "encoder.heads=2", f"data.context_steps={STEPS}"]
    small = ["residual=matern", "encoder=differences", f"transform={request.param}", *size]
    found = []
    for history in ("segments", "none"):
        torch.manual_seed(0)
        cfg = compose("train", [*small, f"history={history}"])
        found.append(build(cfg.estimator).posterior.eval())
    pool = found[0].pool
    torch.manual_seed(1)  # as if trained: what starts at zero is not
    for layer in (pool.score, pool.correct):
        torch.nn.init.normal_(layer.weight, std=0.3)
    return found


def random_segments(count: int, slots: int, seed: int = 0, steps: int = STEPS) -> Segments:
    rng = np.random.default_rng(seed)
    states = torch.from_numpy(rng.uniform(1, 15, (count, slots, steps, 3))).float()
    lengths = torch.from_numpy(rng.integers(SHORTEST, steps + 1, (count, slots)))
    age = torch.from_numpy(rng.uniform(0, 300, (count, slots))).float()
    age[:, 0], age[0, -1] = 0.0, math.nan
    return Segments(states, lengths, age)


def test_one_segment_is_the_model_of_single_trajectories_bit_for_bit(models):
    several, single = models
    states = random_segments(5, 1).states
    weights = dict(several.state_dict())
    for name, value in single.state_dict().items():
        assert torch.equal(weights[name], value), name
    alone = single.encode(states[:, 0])
    assert torch.equal(several.encode(states[:, 0]), alone)
    padded = torch.nn.functional.pad(states, (0, 0, 0, 0, 0, 3))  # empty slots change nothing
    lengths = torch.tensor([[STEPS, 0, 0, 0]]).expand(5, -1)
    one = several.encode(Segments(padded, lengths, torch.zeros(5, 4)))
    torch.testing.assert_close(one, alone, rtol=0, atol=1e-6)
    theta = single.prior.sample(5, np.random.default_rng(0))
    segments = Segments.of(states[:, 0])
    torch.testing.assert_close(
        several.log_prob(theta, segments), single.log_prob(theta, states[:, 0])
    )


@pytest.mark.parametrize("more", [1, 60, 400])
def test_padding_of_any_length_and_content_changes_nothing(models, more):
    posterior, _ = models
    segments = random_segments(6, 4)
    pad = torch.full((6, 4, more, 3), math.nan)
    wild = segments.states.clone()
    beyond = torch.arange(STEPS) >= segments.lengths[..., None]
    wild[beyond] = math.nan
    wide = Segments(torch.cat([wild, pad], dim=2), segments.lengths, segments.age)
    torch.testing.assert_close(
        posterior.encode(wide), posterior.encode(segments), rtol=0, atol=1e-6
    )


def test_the_order_of_segments_does_not_matter(models):
    posterior, _ = models
    segments = random_segments(6, 5)
    order = torch.tensor([3, 0, 4, 2, 1])
    mixed = Segments(segments.states[:, order], segments.lengths[:, order], segments.age[:, order])
    torch.testing.assert_close(
        posterior.encode(mixed), posterior.encode(segments), rtol=0, atol=1e-6
    )
    attention = posterior.attention(segments)
    torch.testing.assert_close(attention.sum(1), torch.ones(6))
    torch.testing.assert_close(posterior.attention(mixed), attention[:, order])


def test_age_counts_only_where_it_is_on(models):
    posterior, _ = models
    segments = random_segments(4, 3)
    older = Segments(segments.states, segments.lengths, 2 * segments.age)
    assert not torch.allclose(posterior.encode(older), posterior.encode(segments))
    posterior.pool.age = False
    try:
        assert torch.equal(posterior.encode(older), posterior.encode(segments))
    finally:
        posterior.pool.age = True


def test_a_driver_does_not_depend_on_the_others_in_the_batch(models):
    posterior, _ = models
    segments = random_segments(70, 3)
    alone = posterior.encode(segments[10:11])
    torch.testing.assert_close(posterior.encode(segments)[10:11], alone, rtol=0, atol=1e-5)
    both = concatenate_segments([segments[:2], random_segments(1, 5, seed=1, steps=STEPS + 9)])
    assert both.states.shape == (3, 5, STEPS + 9, 3) and both.lengths[:2, 3:].sum() == 0
    torch.testing.assert_close(
        posterior.encode(both)[:2], posterior.encode(segments[:2]), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("samples", [15, 16, 300])
def test_3_s_and_3_2_s_and_60_s_work(models, samples):
    posterior, _ = models
    states = random_segments(2, 1, steps=samples).states[:, 0]
    draws = posterior.sample(Segments.of(states), 7, np.random.default_rng(0))
    assert draws.theta.shape == (2, 7, 7) and bool(posterior.prior.contains(draws.theta).all())


def test_gradients_reach_encoder_and_pool(models):
    posterior, _ = models
    posterior.embed(random_segments(3, 4)).square().sum().backward()
    for name, weight in [
        *posterior.encoder.named_parameters(),
        *posterior.pool.named_parameters(),
    ]:
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0), name
    posterior.zero_grad()


def test_what_cannot_be_read_is_refused(models):
    several, single = models
    segments = random_segments(3, 2)
    with pytest.raises(InputError, match="driver 0 has 2 segments.*train with history=segments"):
        single.encode(segments)
    short = Segments(segments.states, segments.lengths.clone(), segments.age)
    short.lengths[1, 1] = SHORTEST - 1
    with pytest.raises(InputError, match=r"segments.lengths\[1, 1\] is 14, expected 0 or >= 15"):
        several.encode(short)
    short.lengths[1] = 0
    with pytest.raises(InputError, match=r"segments\[1\]: no segment of this driver"):
        several.encode(short)
    with pytest.raises(InputError, match="history.shortest=20 s is longer"):
        build(compose("train", ["history=segments", "history.shortest=20.0"]).estimator)
