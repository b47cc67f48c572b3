"""MC-dropout members: frozen, proper, reproducible, different from each other, encoded once."""

import copy

import pytest
import torch

from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.kernels.dropout import Dropout, fix_masks
from asbc.utils.random import stream


@pytest.fixture(params=["maf", "nsf"])
def posterior(request, make_estimator, box_prior):
    return make_estimator(box_prior([0.5, 1.0], [2.0, 5.0]), request.param, dropout=0.3).posterior


@pytest.fixture
def states():
    return torch.randn(4, 20, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def theta(posterior):
    return posterior.prior.sample(30, stream(0, "theta"))


def test_reproducible_by_key_in_any_mode(posterior, states, theta):
    first = posterior.train().member(5).log_prob_grid(theta, states)
    torch.manual_seed(123)
    assert torch.equal(posterior.eval().member(5).log_prob_grid(theta, states), first)
    assert torch.equal(posterior.member(5).encode(states), posterior.member(5).encode(states))


def test_members_differ(posterior, states, theta):
    grids = torch.stack([posterior.member(k).log_prob_grid(theta, states) for k in range(20)])
    assert float(grids.var(0).min()) > 0
    contexts = torch.stack([posterior.member(k).encode(states) for k in range(20)])
    assert float(contexts.var(0).max()) > 0


def test_no_dropout_means_equal_members(make_estimator, box_prior, states):
    posterior = make_estimator(box_prior([0.5, 1.0], [2.0, 5.0]), dropout=0.0).posterior
    theta = torch.tensor([[1.0, 2.0]])
    expected = posterior.log_prob_grid(theta, states)
    torch.testing.assert_close(posterior.member(1).log_prob_grid(theta, states), expected)


def box_grid(cells: int = 250) -> torch.Tensor:
    """Midpoints of equal cells of the box [0.5, 2] x [1, 5]."""
    middle = (torch.arange(cells) + 0.5) / cells
    size = torch.tensor([1.5, 4.0])
    return torch.tensor([0.5, 1.0]) + torch.cartesian_prod(middle, middle) * size


def test_each_member_is_a_proper_density(posterior, states):
    for key in range(3):
        log_q = posterior.member(key).log_prob_grid(box_grid(), states[:2]).double()
        mass = log_q.exp().mean(1) * 6.0
        torch.testing.assert_close(mass, torch.ones(2, dtype=torch.float64), rtol=0, atol=0.01)


def test_sampling_and_density_belong_together(posterior, states):
    """E[(theta - mean)^2] of a member's samples against its own density on a grid."""
    member, grid = posterior.member(2), box_grid()
    weights = member.log_prob_grid(grid, states[:1])[0].double().softmax(0)[:, None]
    mean = (weights * grid).sum(0)
    deviation = (weights * (grid - mean).square()).sum(0).sqrt()
    draws = member.sample(states[:1], 20_000, stream(0, "draws")).theta[0].double()
    # Five standard errors of the mean and of the deviation.
    assert float(((draws.mean(0) - mean) / deviation).abs().max()) < 5 / 20_000**0.5
    assert float((draws.std(0) / deviation - 1).abs().max()) < 5 / 20_000**0.5


def test_single_rows_and_grids_agree(posterior, states, theta):
    member = posterior.member(1)
    grid = member.log_prob_grid(theta[:4], states)
    rows = member.log_prob(theta[:4], states)
    torch.testing.assert_close(grid.diagonal(), rows, rtol=1e-5, atol=1e-5)


def test_frozen_against_later_training(posterior, states, theta):
    member = posterior.member(1)
    before = member.log_prob_grid(theta, states)
    optimizer = torch.optim.Adam(posterior.parameters())
    posterior.training_log_prob(theta[:4], states).sum().backward()
    optimizer.step()
    assert torch.equal(member.log_prob_grid(theta, states), before)
    assert not torch.equal(posterior.member(1).log_prob_grid(theta, states), before)


def test_members_leave_the_estimator_alone(posterior, states, theta):
    before = posterior.log_prob_grid(theta, states)
    posterior.member(1).log_prob_grid(theta, states)
    assert torch.equal(posterior.log_prob_grid(theta, states), before)


def test_each_context_is_encoded_once_per_member(posterior, states, theta):
    encoded = []

    def count(_, inputs, __):
        encoded.append(len(inputs[0]))

    posterior.encoder.register_forward_hook(count)  # members copy it
    for key in range(20):
        posterior.member(key).log_prob_grid(theta, states)
    assert sum(encoded) == 20 * len(states)


def test_members_vary_as_training_does():
    """A mask shared by all steps would vary the context more than training's dropout does."""
    encoder = LocalGlobalEncoder(model_dim=16, layers=2, heads=2, dropout=0.3)
    for part in encoder.global_update.modules():
        if isinstance(part, Dropout):
            part.dropped, part.scale = 0, 1.0  # leaves the dropout of the steps
    states = torch.randn(1, 75, 3, generator=torch.Generator().manual_seed(0))
    members = []
    for key in range(300):
        fix_masks(member := copy.deepcopy(encoder), key)
        members.append(member.eval()(states))
    passes = [encoder.train()(states) for _ in range(300)]
    spread, expected = (torch.stack(x).detach().double().std(0).mean() for x in (members, passes))
    assert float(spread) == pytest.approx(float(expected), rel=0.1)
