"""Both flows: exact densities, invertibility, the packed evaluation against nflows' own."""

import math

import pytest
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.posterior.flow import ConditionalFlow, NeuralSplineFlow
from asbc.posterior.kernels.dropout import fix_masks

CONTEXT = 5


@pytest.fixture
def make_flow(flow_class, roughened):
    def make(dim: int, member: int | None = None) -> ConditionalFlow:
        torch.manual_seed(dim)
        flow = roughened(flow_class(dim, CONTEXT, layers=3, hidden=32, dropout=0.3), 0.05).eval()
        if member is not None:
            fix_masks(flow, member)
        return flow

    return make


def contexts(n: int) -> Tensor:
    return torch.randn(n, CONTEXT, generator=torch.Generator().manual_seed(1))


def points(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


dims = pytest.mark.parametrize("dim", [1, 2, 6, 7])
members = pytest.mark.parametrize("member", [None, 3], ids=["no dropout", "member"])


@dims
@members
def test_log_prob_against_the_jacobian_of_autograd(make_flow, dim, member):
    flow = make_flow(dim, member).double()
    u, context = points(4, dim).double(), contexts(4).double()
    for row, c, log_q in zip(u, context, flow.log_prob(u, context), strict=True):

        def to_noise(x: Tensor, c: Tensor = c) -> Tensor:
            return flow.flow.transform_to_noise(x[None], c[None])[0]

        jacobian = torch.autograd.functional.jacobian(to_noise, row)
        base = -0.5 * (to_noise(row).square() + math.log(2 * math.pi)).sum()
        assert float(log_q.detach()) == pytest.approx(
            float((base + torch.linalg.slogdet(jacobian).logabsdet).detach()), abs=1e-9
        )


@members
def test_density_integrates_to_one_in_one_dimension(make_flow, member):
    flow = make_flow(1, member)
    grid = torch.linspace(-30, 30, 12_001)
    with torch.no_grad():
        log_q = flow.log_prob_grid(grid[:, None], contexts(3))
    mass = torch.trapezoid(log_q.double().exp(), grid.double())
    torch.testing.assert_close(mass, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-3)


@members
def test_density_integrates_to_one_in_two_dimensions(make_flow, member):
    flow = make_flow(2, member)
    # The grid follows the samples, so that it covers the mass without being huge.
    samples = flow.inverse(points(1, 4000, 2), contexts(1))[0]
    centre, spread = samples.mean(0), samples.std(0)
    axis = torch.linspace(-7, 7, 281)
    grid = torch.cartesian_prod(axis, axis) * spread + centre
    mass = flow.log_prob_grid(grid, contexts(1)).double().exp().sum() * (
        (axis[1] - axis[0]).double().square() * spread.double().prod()
    )
    assert float(mass) == pytest.approx(1, abs=5e-3)


@dims
@members
def test_round_trip(make_flow, dim, member):
    flow = make_flow(dim, member)
    noise, context = points(20, 30, dim), contexts(20)
    u = flow.inverse(noise, context)
    with torch.no_grad():
        back = flow.flow.transform_to_noise(u.flatten(0, 1), context.repeat_interleave(30, 0))
    assert float((back.view_as(noise) - noise).abs().max()) < 1e-4


@dims
def test_sampler_equals_nflows_for_the_same_noise(make_flow, dim):
    flow = make_flow(dim)
    noise, context = points(20, 30, dim), contexts(20)
    with torch.no_grad():
        reference, _ = flow.flow._transform.inverse(
            noise.flatten(0, 1), context.repeat_interleave(30, 0)
        )
    ours = flow.inverse(noise, context)
    assert float((ours.flatten(0, 1) - reference).abs().max()) < 1e-4


@dims
@members
def test_packed_density_equals_nflows(make_flow, dim, member, monkeypatch):
    monkeypatch.setattr(
        "asbc.posterior.kernels.fast_flow.CHUNK", 50
    )  # chunks that split rows unevenly
    monkeypatch.setattr("asbc.posterior.flow.CONTEXTS", 3)
    flow = make_flow(dim, member)
    u, context = points(7, 9, dim), contexts(7)
    with torch.no_grad():
        rows = flow.log_prob(u.flatten(0, 1), context.repeat_interleave(9, 0)).view(7, 9)
        grid = flow.log_prob(u[0].expand(7, -1, -1).flatten(0, 1), context.repeat_interleave(9, 0))
    torch.testing.assert_close(flow.log_prob_many(u, context), rows, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        flow.log_prob_grid(u[0], context), grid.view(7, 9), rtol=1e-5, atol=1e-4
    )


def test_chunks_do_not_change_samples(make_flow, monkeypatch):
    flow = make_flow(6)
    noise, context = points(5, 300, 6), contexts(5)
    whole = flow.inverse(noise, context)
    monkeypatch.setattr("asbc.posterior.kernels.fast_flow.CHUNK", 70)
    monkeypatch.setattr("asbc.posterior.flow.CONTEXTS", 2)
    torch.testing.assert_close(flow.inverse(noise, context), whole, rtol=1e-4, atol=1e-5)


def test_gradient_reaches_every_parameter(flow_class):
    torch.manual_seed(0)
    flow = flow_class(6, CONTEXT)
    (-flow.log_prob(points(64, 6), contexts(64)).mean()).backward()
    for name, parameter in flow.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, name


def test_every_variable_of_every_layer_depends_on_the_context(make_flow):
    flow = make_flow(6)
    for transform in flow.flow._transform._transforms[::2]:
        context = contexts(1).requires_grad_()
        noise, _ = transform(points(1, 6), context)
        for value in noise[0]:
            (gradient,) = torch.autograd.grad(value, context, retain_graph=True)
            assert float(gradient.abs().max()) > 0


def test_starts_near_the_base_density(flow_class):
    torch.manual_seed(0)
    flow = flow_class(6, CONTEXT)
    sample = flow.inverse(points(50, 100, 6), contexts(50))
    assert float(sample.std(dim=(0, 1)).log().abs().max()) < 0.1


@pytest.mark.parametrize("dim", [6, 7])
def test_save_and_load(make_flow, flow_class, dim, tmp_path):
    flow = make_flow(dim)
    torch.save(flow.state_dict(), tmp_path / "flow.pt")
    torch.manual_seed(99)
    copy = flow_class(dim, CONTEXT, layers=3, hidden=32).eval()
    copy.load_state_dict(torch.load(tmp_path / "flow.pt", weights_only=True))
    u, context = points(5, dim), contexts(5)
    assert torch.equal(flow.log_prob(u, context), copy.log_prob(u, context))
    assert torch.equal(flow.inverse(u[:, None], context), copy.inverse(u[:, None], context))


def test_member_masks_change_the_density_and_no_dropout_site_is_left_out(make_flow):
    flow, member = make_flow(6), make_flow(6, 3)
    u, context = points(50, 6), contexts(50)
    assert float((flow.log_prob(u, context) - member.log_prob(u, context)).abs().min()) > 0
    assert not [m for m in flow.modules() if isinstance(m, torch.nn.Dropout)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "flow.layers=0; expected a whole number of at least 1"),
        ({"hidden": 2.5}, "flow.hidden=2.5; expected a whole number"),
        ({"blocks": 0}, "flow.blocks=0"),
        ({"dropout": -0.1}, "flow.dropout=-0.1; expected a number of at least 0 and below 1"),
    ],
)
def test_bad_settings(flow_class, options, message):
    with pytest.raises(InputError, match=message):
        flow_class(2, CONTEXT, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0}, "flow.bins=0; expected a whole number of at least 1"),
        ({"tail_bound": 0.0}, "flow.tail_bound=0.0; expected a number above 0"),
    ],
)
def test_bad_splines(options, message):
    with pytest.raises(InputError, match=message):
        NeuralSplineFlow(2, CONTEXT, **options)
