"""Gradients of the score by theta and by the weights, and where they must not grow."""

import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.predictive.objective import DRAW_LIMIT
from asbc.predictive.proper_scores import bounded_gradient
from asbc.predictive.recorded_windows import Examples, RecordedWindows
from asbc.utils.random import stream

RESIDUALS = ("gaussian", "matern")


def examples_of(pairs, objective, steps=20) -> Examples:
    recorded = RecordedWindows(
        pairs, steps, objective.horizon, objective.residual_prefix_steps, "training"
    )
    return recorded.draw(objective.windows, "random", 1.0, stream(0, "windows"))


def in_double(examples: Examples) -> Examples:
    names = ("gap", "speed", "leader_speed", "acceleration")
    columns = {name: getattr(examples.pairs, name).double() for name in names}
    pairs = Pairs(**{**vars(examples.pairs), **columns})
    return Examples(examples.states.double(), pairs, examples.windows)


@pytest.fixture
def driven(simulators, typical, pairs_of):
    def make(residual: str) -> Pairs:
        theta = typical[residual].expand(8, -1)
        return pairs_of(simulators[residual], theta, 80)

    return make


@pytest.mark.parametrize("residual", RESIDUALS)
def test_score_by_theta_agrees_with_finite_differences(
    residual, simulators, typical, driven, small
):
    simulator = simulators[residual]
    examples = in_double(examples_of(driven(residual), small))
    spread = torch.randn(6, 4, len(typical[residual]), generator=torch.Generator().manual_seed(0))
    theta = typical[residual].double() * (0.1 * spread.double()).exp()

    def score(values):
        return small.scores(small.roll_out(simulator, values, examples, 3), examples).mean()

    theta.requires_grad_()
    (grad,) = torch.autograd.grad(score(theta), theta)
    assert bool((grad != 0).any(-1).all())  # every draw counts
    direction = torch.randn(theta.shape, generator=torch.Generator().manual_seed(1)).to(theta)
    step = 1e-6
    with torch.no_grad():
        ends = [score(theta + sign * step * direction) for sign in (1, -1)]
    slope = float((ends[0] - ends[1]) / (2 * step))
    # Coefficients of the residual process are rounded to the precision of theta, here double.
    assert float((grad * direction).sum()) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("flow", ["maf", "nsf"])
@pytest.mark.parametrize("residual", RESIDUALS)
def test_loss_by_weights_agrees_with_finite_differences(
    flow, residual, simulators, driven, small, small_posterior
):
    posterior = small_posterior(flow, residual).double()
    examples = in_double(examples_of(driven(residual), small))
    scales = torch.tensor([9.0, 2.8, 1.7], dtype=torch.float64)

    def loss():
        return small.loss(posterior, simulators[residual], examples, scales, 5)

    parameters = [value for value in posterior.parameters() if value.requires_grad]
    grads = torch.autograd.grad(loss(), parameters)
    assert all(bool(grad.isfinite().all()) for grad in grads)
    generator = torch.Generator().manual_seed(2)
    steps = [torch.randn(v.shape, generator=generator).to(v) * 1e-6 for v in parameters]
    ends = []
    for sign in (1, -2):
        with torch.no_grad():
            for value, step in zip(parameters, steps, strict=True):
                value.add_(sign * step)
            ends.append(loss())
    slope = float(ends[0] - ends[1]) / 2
    expected = float(sum((g * s).sum() for g, s in zip(grads, steps, strict=True)))
    assert expected == pytest.approx(slope, rel=2e-3)


@pytest.mark.parametrize("flow", ["maf", "nsf"])
def test_training_inverse_is_nflows_inverse_with_its_gradients(flow, small_posterior):
    density = small_posterior(flow, "matern").flow
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 5, density.dim, generator=generator)
    context = torch.randn(3, 8, generator=generator, requires_grad=True)
    ours = density.training_inverse(noise, context)
    theirs, _ = density.flow._transform.inverse(
        noise.flatten(0, 1), context.repeat_interleave(5, 0)
    )
    torch.testing.assert_close(ours, theirs.view_as(ours), rtol=1e-4, atol=1e-5)
    parameters = [context, *density.parameters()]
    weight = torch.randn(ours.shape, generator=generator)
    grads = [
        torch.autograd.grad((out.view_as(ours) * weight).sum(), parameters, allow_unused=True)
        for out in (ours, theirs)
    ]
    for mine, other in zip(*grads, strict=True):
        if other is not None:
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("flow", ["maf", "nsf"])
def test_with_dropout_the_draws_of_a_context_are_those_of_one_member(flow, small_posterior):
    density = small_posterior(flow, "matern").flow
    for block in density.modules():
        if hasattr(block, "dropped"):
            block.dropped, block.scale = 64, 256 / 192
    noise = torch.zeros(2, 4, density.dim)  # the same noise: the same draw, whatever is dropped
    context = torch.ones(2, 8)
    torch.manual_seed(0)
    dropped = density.train().training_inverse(noise, context).detach()
    torch.testing.assert_close(dropped, dropped[:, :1].expand_as(dropped))
    assert float((dropped[0] - dropped[1]).abs().max()) > 1e-3  # another member
    kept = density.eval().training_inverse(noise, context)
    torch.testing.assert_close(kept, density.inverse(noise, context))


def test_no_gradient_explodes_at_standstill_at_a_bound_or_at_a_tiny_gap(
    simulators, small, small_posterior
):
    simulator = simulators["matern"]
    steps = 60
    still = torch.zeros(1, steps)
    leader = torch.stack(
        [
            torch.zeros(steps),  # a driver who stands
            torch.cat([torch.full((30,), 15.0), torch.zeros(30)]),  # a leader who stops at once
            torch.full((steps,), 5.0),  # 1 m behind, where the law is stiff
        ]
    )
    gap = torch.stack([still[0] + 2.0, still[0] + 12.0, still[0] + 1.0])
    pairs = Pairs.from_series(gap, leader, leader, simulator.dt)
    place = torch.arange(3)
    examples = Examples(
        torch.stack([gap, leader, torch.zeros_like(gap)], -1)[:, :20],
        pairs,
        EvaluationWindows(place, torch.full((3,), steps - 51), 50),
    )
    objective = type(small)(windows=3, draws=16)
    posterior = small_posterior("nsf", "matern")
    noise = 3 * torch.randn(3, 16, 7, generator=torch.Generator().manual_seed(0))
    theta = posterior.draw(noise, examples.states).requires_grad_()
    raw = objective.scores(objective.roll_out(simulator, theta, examples, 0), examples)
    (grad,) = torch.autograd.grad(raw.sum(), theta)
    assert bool(grad.isfinite().all())
    assert float(grad.abs().max()) > 1e4  # the stiff driver, without the bound on draws
    limited = posterior.draw(noise, examples.states).requires_grad_()
    limit = DRAW_LIMIT / 48
    out = objective.roll_out(simulator, bounded_gradient(limited, limit), examples, 0)
    (grad,) = torch.autograd.grad(objective.scores(out, examples).sum(), limited)
    assert float((grad * limited).detach().norm(dim=-1).max()) <= limit * 1.001
    loss = objective.loss(posterior, simulator, examples, torch.ones(3), 0)
    loss.backward()
    total = sum(v.grad.square().sum() for v in posterior.parameters() if v.grad is not None)
    assert bool(torch.isfinite(total)) and float(total) < 1e6
