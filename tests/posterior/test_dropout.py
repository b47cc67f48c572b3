"""The dropout layer: keep rate, scale, independence, and the fixed masks of members."""

import math

import pytest
import torch
from torch import nn

from asbc.errors import InputError
from asbc.posterior.kernels.dropout import Dropout, fix_masks
from asbc.posterior.posterior import Posterior


@pytest.mark.parametrize("probability", [0.1, 0.2, 0.5, 0.9])
def test_keep_rate_and_scale(probability):
    layer = Dropout(probability, 64)
    torch.manual_seed(0)
    out = layer(torch.ones(4000, 64))
    kept = out != 0
    rate = 1 - layer.probability
    assert abs(layer.probability - probability) <= 0.5 / 256
    # Four standard deviations of a binomial share.
    assert float(kept.float().mean()) == pytest.approx(
        rate, abs=4 * math.sqrt(rate * (1 - rate) / kept.numel())
    )
    assert torch.unique(out[kept]).tolist() == pytest.approx([1 / rate])


def test_neighbouring_bytes_of_a_word_are_independent():
    torch.manual_seed(0)
    kept = (Dropout(0.2, 64)(torch.ones(4000, 64)) != 0).double()
    correlation = torch.corrcoef(kept.T)
    off_diagonal = correlation - torch.eye(64, dtype=torch.float64)
    # 2016 pairs, each with standard deviation 1 / sqrt(4000).
    assert float(off_diagonal.abs().max()) < 5 / math.sqrt(4000)
    assert float(kept.mean(0).std()) < 2 * math.sqrt(0.16 / 4000)


def test_mask_follows_the_global_generator():
    layer, ones = Dropout(0.2, 7), torch.ones(5, 3, 7)
    torch.manual_seed(1)
    first, second = layer(ones), layer(ones)
    torch.manual_seed(1)
    assert torch.equal(layer(ones), first)
    assert not torch.equal(first, second)


def test_evaluation_is_the_identity():
    inputs = torch.randn(5, 7)
    assert torch.equal(Dropout(0.2, 7).eval()(inputs), inputs)
    assert torch.equal(Dropout(0.0, 7)(inputs), inputs)


def test_gradient_is_the_mask():
    inputs = torch.randn(50, 7, requires_grad=True)
    out = Dropout(0.3, 7)(inputs)
    out.sum().backward()
    torch.testing.assert_close(inputs.grad * inputs.detach(), out.detach())


@pytest.mark.parametrize("training", [True, False])
def test_fixed_mask_is_shared_by_all_rows_and_passes(training):
    layer = Dropout(0.5, 32).train(training)
    layer.fix(0)
    out = layer(torch.ones(4, 5, 32))
    assert torch.equal(out, out[:1, :1].expand_as(out))
    assert torch.equal(out[0, 0], layer.fixed_mask)
    assert torch.equal(layer(torch.ones(4, 5, 32)), out)
    assert set(out.unique().tolist()) == {0.0, 2.0}


def test_steps_have_fixed_masks_of_their_own_that_longer_trajectories_continue():
    layer = Dropout(0.5, 32)
    layer.fix(3)
    device = torch.device("cpu")
    short = layer.levels(2 * 5, device, steps=5)
    assert torch.equal(short[:5], short[5:])  # the trajectories share them
    assert len(short[:5].unique(dim=0)) == 5
    assert torch.equal(layer.levels(9, device, steps=9)[:5], short[:5])
    assert torch.equal(layer.levels(2 * 5, device, steps=5), short)


def test_fixed_masks_are_a_function_of_key_and_place():
    def masks(key: int) -> list[torch.Tensor]:
        net = nn.Sequential(Dropout(0.5, 64), Dropout(0.5, 64))
        fix_masks(net, key)
        return [layer.fixed_mask for layer in net]

    first, again, other = masks(1), masks(1), masks(2)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_fixed_masks_keep_the_expected_share():
    layer = Dropout(0.2, 64)
    kept = []
    for key in range(200):
        fix_masks(layer, key)
        kept.append((layer.fixed_mask != 0).double().mean())
    expected = 1 - layer.probability
    error = 4 * math.sqrt(expected * (1 - expected) / (200 * 64))
    assert float(torch.stack(kept).mean()) == pytest.approx(expected, abs=error)


@pytest.mark.parametrize("probability", [-0.1, 1.0])
def test_probability_out_of_range(probability):
    with pytest.raises(InputError, match="dropout probability"):
        Dropout(probability, 4)


class Nested(nn.Module):
    """An encoder with a part somewhere inside it."""

    input_dim, output_dim = 3, 3

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"deep": nn.Sequential(part)}))

    def forward(self, states: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return self.body[0](states).mean(1)


@pytest.fixture
def posterior_with(make_estimator, box_prior):
    """A posterior with given networks, those of a small estimator where none is given."""
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    good = make_estimator(prior).posterior

    def build(encoder: nn.Module | None = None, flow: nn.Module | None = None) -> Posterior:
        return Posterior(encoder or good.encoder, flow or good.flow, good.transform, prior)

    return build


@pytest.mark.parametrize(
    "part",
    [
        nn.Dropout(0.1),
        nn.Dropout1d(0.1),
        nn.AlphaDropout(0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.LSTM(3, 3, num_layers=2, dropout=0.1),
        nn.TransformerEncoderLayer(4, 2, dropout=0.1),
    ],
    ids=lambda part: type(part).__name__,
)
def test_dropout_that_no_member_could_hold_fixed_is_refused(posterior_with, part):
    with pytest.raises(
        InputError, match=r"encoder\.body\.1\.deep\.0.*cannot be held fixed.*; use"
    ):
        posterior_with(Nested(part))
    with pytest.raises(InputError, match=r"flow\.1: the dropout of Dropout cannot be held fixed"):
        posterior_with(flow=nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))


@pytest.mark.parametrize(
    "part",
    [
        Dropout(0.1, 3),
        nn.Identity(),
        nn.Dropout(0.0),
        nn.TransformerEncoderLayer(4, 2, dropout=0.0),
        nn.GRU(3, 3),
    ],
    ids=lambda part: type(part).__name__,
)
def test_our_own_dropout_and_none_are_fine(posterior_with, part):
    encoder = Nested(part)
    assert posterior_with(encoder).encoder is encoder
