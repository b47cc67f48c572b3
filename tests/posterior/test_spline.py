"""Splines by rows against nflows' own, and the sampler that is made of them."""

import pytest
import torch
from nflows.transforms.autoregressive import (
    MaskedPiecewiseRationalQuadraticAutoregressiveTransform as Layer,
)

from asbc.posterior.flow import NeuralSplineFlow
from asbc.posterior.kernels.spline import Spline

POINTS = 4000


def layer(bins: int, **settings: float) -> Layer:
    return Layer(
        features=1, hidden_features=16, num_bins=bins, tails="linear", tail_bound=3.0, **settings
    )


def packed(spline: Spline, params: torch.Tensor) -> torch.Tensor:
    """Parameters as the layer's last product gives them once it is packed, (rows, points)."""
    _, bias = spline.pack(torch.zeros(len(params), 1).double(), params)
    return bias


@pytest.mark.parametrize("bins", [1, 2, 8])
@pytest.mark.parametrize("settings", [{}, {"min_bin_width": 0.05, "min_bin_height": 0.02}])
def test_a_spline_equals_that_of_nflows(bins, settings):
    torch.manual_seed(bins)
    theirs = layer(bins, **settings)
    ours = Spline(theirs)
    params = 3 * torch.randn(3 * bins - 1, POINTS).double()
    # Inside, outside, at the bounds, and at 0.
    values = 4 * torch.randn(POINTS).double()
    values[:3] = torch.tensor([-3.0, 0.0, 3.0])
    rows = packed(ours, params)
    y, log_slope = ours.forward(values, rows)
    expected, log_det = theirs._elementwise_forward(values[:, None], params.T.contiguous())
    torch.testing.assert_close(y, expected[:, 0], rtol=0, atol=1e-9)
    torch.testing.assert_close(log_slope, log_det, rtol=0, atol=1e-9)
    x = ours.inverse(values, rows)
    expected, _ = theirs._elementwise_inverse(values[:, None], params.T.contiguous())
    torch.testing.assert_close(x, expected[:, 0], rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.inverse(y, rows), values, rtol=0, atol=1e-7)
    outside = values.abs() > 3
    assert torch.equal(y[outside], values[outside]) and torch.equal(x[outside], values[outside])


def test_single_precision_stays_finite_at_every_knot():
    torch.manual_seed(0)
    ours = Spline(layer(8))
    rows = packed(ours, 5 * torch.randn(23, POINTS).double()).float()
    knots = ours._knots(rows[:16].unflatten(0, (2, 8)))
    for knot in range(9):
        assert bool(torch.isfinite(ours.inverse(knots[1, knot], rows)).all())
        assert bool(torch.isfinite(torch.stack(ours.forward(knots[0, knot], rows))).all())


@pytest.mark.parametrize("shift", [0.0, 0.03])
@torch.no_grad()
def test_samples_are_those_of_nflows_in_double_precision(shift):
    torch.manual_seed(0)
    flow = NeuralSplineFlow(6, 16).eval()
    for parameter in flow.parameters():
        parameter += shift * torch.randn_like(parameter)
    noise, context = torch.randn(40, 100, 6), torch.randn(40, 16)
    ours = flow.inverse(noise, context).flatten(0, 1)
    exact = flow.flow.double()._transform
    repeated = context.double().repeat_interleave(100, 0)
    expected, _ = exact.inverse(noise.double().flatten(0, 1), repeated)
    assert float((ours - expected).abs().max()) < 1e-5
