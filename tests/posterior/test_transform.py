"""Transforms: inverse, Jacobian against autograd, support."""

import pytest
import torch

from asbc.errors import InputError
from asbc.posterior.transform import Bounded, PriorNormal, Softplus
from asbc.simulator.prior import Prior

LOW = torch.tensor([20.0, 1.0, 0.6, 0.2, 0.4, 0.1])
HIGH = torch.tensor([40.0, 6.0, 4.5, 3.5, 4.0, 1.2])
transforms = pytest.mark.parametrize("transform", [Softplus(1e-4), Bounded(LOW, HIGH)])


@transforms
def test_inverse_in_float32(transform):
    share = torch.rand(1000, 6, generator=torch.Generator().manual_seed(0))
    theta = LOW + (HIGH - LOW) * share
    torch.testing.assert_close(transform(transform.inverse(theta)), theta, rtol=2e-6, atol=1e-6)
    u = 6 * share - 3
    torch.testing.assert_close(transform.inverse(transform(u)), u, rtol=0, atol=1e-4)


@transforms
def test_log_determinant_against_autograd(transform):
    u = torch.linspace(-6, 8, 36, dtype=torch.float64).view(6, 6)
    transform = transform.double()
    for row in u:
        jacobian = torch.autograd.functional.jacobian(transform, row)
        expected = torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(transform.log_abs_det(row), expected)
    transform.float()


def test_softplus_is_the_papers_formula():
    u = torch.tensor([-2.0, 0.0, 3.0, 35.0], dtype=torch.float64)
    transform = Softplus(0.01)
    torch.testing.assert_close(transform(u), torch.log1p(torch.exp(u)) + 0.01)
    torch.testing.assert_close(transform.inverse(transform(u)), u)
    assert transform.contains(torch.tensor([[0.011, 5.0], [0.01, 5.0]])).tolist() == [True, False]


def test_bounded_never_leaves_its_box():
    transform = Bounded(LOW, HIGH)
    theta = transform(torch.tensor([-1e4, -40.0, -16.0, 16.0, 40.0, 1e4])[:, None].expand(-1, 6))
    assert bool(((theta >= LOW) & (theta <= HIGH)).all())
    ends = torch.stack([LOW, HIGH])
    assert bool(transform.contains(ends).all())
    assert bool(torch.isfinite(transform.inverse(ends)).all())
    assert not bool(transform.contains(torch.stack([LOW - 1e-3, HIGH + 1e-2])).any())


def test_bad_settings():
    with pytest.raises(InputError, match="transform.epsilon=0; expected a number above 0"):
        Softplus(0)
    with pytest.raises(InputError, match="transform=bounded: .*; expected finite low < high"):
        Bounded(torch.zeros(2), torch.tensor([1.0, torch.inf]))


def test_prior_normal_against_autograd():
    marginal = {"unit": "m", "centre": 2.0, "log_scale": 0.5, "low": 1.0, "high": 6.0}
    transform = PriorNormal(Prior({"a": marginal}, {"b": marginal | {"centre": 4.0}}))
    u = torch.linspace(-3, 3, 14, dtype=torch.float64).view(7, 2)
    theta = transform(u)
    assert transform.contains(theta).all()
    torch.testing.assert_close(transform.inverse(theta), u)
    for row in u:
        jacobian = torch.autograd.functional.jacobian(transform, row)
        expected = torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(transform.log_abs_det(row), expected)
