"""The encoder against dense masked attention, with padding, and its cost in the length."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from asbc.errors import InputError
from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.kernels.attention import BandAttention, PooledAttention
from asbc.posterior.kernels.feedforward import Masks, ResidualUpdate


def dense_attention(attention, asking, answering, bias: Tensor, visible: Tensor) -> Tensor:
    """Textbook multi-head attention: every query against every key, then a mask."""
    batch, _, dim = asking.shape
    split = (batch, -1, attention.heads, dim // attention.heads)
    query = attention.query(asking).view(split).transpose(1, 2)
    key = attention.key(answering).view(split).transpose(1, 2)
    value = attention.value(answering).view(split).transpose(1, 2)
    scores = query @ key.transpose(-1, -2) / math.sqrt(split[-1]) + bias
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return attention.output((weights @ value).transpose(1, 2).reshape(batch, -1, dim))


def dense_update(block, state: Tensor, gathered: Tensor) -> Tensor:
    state = block.attention_norm(state + gathered)
    return block.output_norm(state + block.contract(F.gelu(block.expand(state))))


def dense_encoder(encoder, states: Tensor, lengths: Tensor | None) -> Tensor:
    """The whole encoder with (T, T) attention matrices, for every step and in every layer."""
    batch, steps, _ = states.shape
    time = torch.arange(steps)
    lengths = torch.full((batch,), steps) if lengths is None else lengths
    valid = time < lengths[:, None]
    tokens = encoder.input_projection(states.masked_fill(~valid[..., None], 0.0))
    cls = encoder.cls.expand(batch, 1, -1)
    for layer, attention in enumerate(encoder.global_attention):
        bias = attention.position_bias[:, attention._buckets(steps, states.device)][:, None]
        gathered = dense_attention(attention, cls, tokens, bias, valid[:, None, None])
        cls = dense_update(encoder.global_update[layer], cls, gathered)
        if layer < len(encoder.local_attention):
            local = encoder.local_attention[layer]
            offset = time[None] - time[:, None]
            bias = local.position_bias[:, (offset + local.window).clamp(0, 2 * local.window)]
            visible = (offset.abs() <= local.window) & valid[:, None]
            # A padded step may see anything: nothing looks at it.
            visible = (visible | ~valid[:, :, None])[:, None]
            gathered = dense_attention(local, tokens, tokens, bias, visible)
            tokens = dense_update(encoder.local_update[layer], tokens, gathered)
    return cls[:, 0]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_dense_masked_attention(layers, padded, roughened):
    encoder = roughened(LocalGlobalEncoder(layers=layers)).eval()
    states = torch.randn(8, 75, 3, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([75, 74, 1, 2, 5, 20, 71, 40]) if padded else None
    banded, dense = encoder(states, lengths), dense_encoder(encoder, states, lengths)
    torch.testing.assert_close(banded, dense, rtol=0, atol=1e-5)
    weights = torch.randn(banded.shape, generator=torch.Generator().manual_seed(1))
    parameters = list(encoder.parameters())
    for ours, reference in zip(
        torch.autograd.grad((banded * weights).sum(), parameters),
        torch.autograd.grad((dense * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-5)


def test_result_does_not_depend_on_padding(roughened):
    encoder = roughened(LocalGlobalEncoder()).eval()
    short = torch.randn(4, 30, 3)
    padded = torch.cat([short, torch.full((4, 45, 3), torch.nan)], 1)
    lengths = torch.full((4,), 30)
    torch.testing.assert_close(encoder(padded, lengths), encoder(short), rtol=1e-5, atol=1e-6)
    mixed = encoder(padded, torch.tensor([30, 12, 1, 29]))
    for row, length in enumerate([30, 12, 1, 29]):
        alone = encoder(short[row : row + 1, :length])[0]
        torch.testing.assert_close(mixed[row], alone, rtol=1e-5, atol=1e-6)


def test_padding_sends_no_gradient(roughened):
    encoder = roughened(LocalGlobalEncoder())
    states = torch.randn(2, 20, 3)
    states[0, 5:] = torch.nan
    encoder(states, torch.tensor([5, 20])).sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in encoder.parameters())


def test_cost_is_linear_in_the_length():
    encoder = LocalGlobalEncoder()

    def operations(steps: int) -> int:
        with FlopCounterMode(display=False) as counter:
            encoder(torch.randn(4, steps, 3)).sum().backward()
        return counter.get_total_flops()

    per_step = (operations(400) - operations(200)) / 200
    assert operations(800) - operations(400) == pytest.approx(400 * per_step, rel=1e-3)


def test_sees_every_step_and_their_order(roughened):
    encoder = roughened(LocalGlobalEncoder()).eval()
    states = torch.randn(1, 400, 3)
    states.requires_grad_()
    encoder(states).sum().backward()
    assert bool((states.grad.abs().sum(-1) > 0).all())
    with torch.no_grad():
        assert float((encoder(states) - encoder(states.flip(1))).abs().max()) > 1e-3


def test_training_mode_is_random_and_averages_to_the_dropout_free_scale(roughened):
    encoder = roughened(LocalGlobalEncoder(dropout=0.2), 0.05)
    states = torch.randn(3, 75, 3)
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([encoder(states) for _ in range(60)])
    assert float(draws.std(0).min()) > 0
    still = encoder.eval()(states)
    # Not equal in expectation (the network is not linear), but close to it.
    assert torch.corrcoef(torch.stack([draws.mean(0).flatten(), still.flatten()]))[0, 1] > 0.95


def test_gradient_reaches_every_parameter():
    encoder = LocalGlobalEncoder(layers=3)
    encoder(torch.randn(16, 30, 3)).square().mean().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_dim": 30}, "encoder.model_dim=30 is not a multiple of encoder.heads=4"),
        ({"model_dim": 0}, "encoder.model_dim=0; expected a whole number of at least 1"),
        ({"layers": 0}, "encoder.layers=0; expected a whole number of at least 1"),
        ({"heads": 0}, "encoder.heads=0"),
        ({"local_window": -1}, "encoder.local_window=-1"),
        ({"ffn_expansion": 0.5}, "encoder.ffn_expansion=0.5"),
        ({"dropout": 1.0}, "encoder.dropout=1.0; expected a number of at least 0 and below 1"),
    ],
)
def test_bad_sizes(options, message):
    with pytest.raises(InputError, match=message):
        LocalGlobalEncoder(**options)


def test_bad_input():
    encoder = LocalGlobalEncoder()
    with pytest.raises(InputError, match=r"states has shape \(2, 5, 4\), expected \(\*, \*, 3\)"):
        encoder(torch.zeros(2, 5, 4))
    with pytest.raises(InputError, match=r"lengths\[1\] is 6, expected between 1 and 5"):
        encoder(torch.zeros(2, 5, 3), torch.tensor([5, 6]))


def levels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("dropout", [False, True])
def test_update_gradient_against_finite_differences(dropout, monkeypatch):
    monkeypatch.setattr(
        "asbc.posterior.kernels.feedforward.VALUES", 4 * 6
    )  # four rows at once: several pieces, the last one short
    torch.manual_seed(0)
    shapes = [(10, 4), (10, 4), (4,), (4,), (6, 4), (6,), (4, 6), (4,), (4,), (4,)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    sites = (levels(10, 4), levels(10, 6), levels(10, 4)) if dropout else (None,) * 3
    masks = Masks(*sites, 77, 256 / 179)
    assert torch.autograd.gradcheck(lambda *args: ResidualUpdate.apply(*args, masks), inputs)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_band_gradient_against_finite_differences(key_heads):
    torch.manual_seed(0)
    shapes = [(2, 3, 6), (key_heads, 3, 10), (key_heads, 2, 10), (2, 5)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    mask = torch.zeros(5, 6, dtype=torch.float64)
    mask[:2, 0] = -1e9
    assert torch.autograd.gradcheck(lambda *args: BandAttention.apply(*args, mask), inputs)


@pytest.mark.parametrize("bias_rows", [1, 3])
def test_pooled_gradient_against_finite_differences(bias_rows):
    torch.manual_seed(0)
    shapes = [(3, 2, 4), (3, 5, 4), (bias_rows, 2, 5)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(PooledAttention.apply, inputs)
