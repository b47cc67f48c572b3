"""Laplace coordinates against direct optimisation and dense matrices, and the flow on them."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from scipy import optimize

from asbc.config import build as build_section
from asbc.config import compose
from asbc.data.segments import Segments
from asbc.errors import InputError
from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.flow import NeuralSplineFlow
from asbc.posterior.laplace import Laplace
from asbc.posterior.posterior import Posterior
from asbc.posterior.transform import PriorNormal
from asbc.utils.random import stream

RESIDUALS = ("gaussian", "matern")


@pytest.fixture(scope="module")
def simulators():
    configs = {name: compose("train", [f"residual={name}"]) for name in RESIDUALS}
    return {name: build_section(config.simulator) for name, config in configs.items()}


def drive(simulator, count, steps=75, seed=0, drives=1):
    """Drivers of the prior, so many times each, behind wavy leaders: parameters and states."""
    theta = simulator.prior.sample(count, stream(seed, "theta")).repeat_interleave(drives, dim=0)
    count = len(theta)
    phase = 6 * torch.rand(count, 1, generator=torch.Generator().manual_seed(seed))
    leader = 10 + 4 * torch.sin(0.15 * torch.arange(steps) + phase)
    gap = simulator.law.equilibrium_gap(theta, leader[:, 0])
    return theta, simulator.rollout(theta, leader, gap, leader[:, 0], stream(seed, "r")).states


def free(simulator, theta, states):
    """Those that no step of which is clipped."""
    lower, upper = simulator.censored(states)
    kept = ~(lower | upper).any(1)
    return theta[kept], states[kept]


def drive_segments(simulator, count, slots=3, seed=0, censored=True):
    """Drivers with one to `slots` segments of 3 to 15 s: parameters and segments."""
    theta, states = drive(simulator, count, seed=seed, drives=slots)
    rng = stream(seed, "lengths")
    lengths = torch.from_numpy(rng.integers(15, 76, (count, slots)))
    lengths[torch.arange(slots) >= torch.from_numpy(rng.integers(1, slots + 1, (count, 1)))] = 0
    segments = Segments(states.unflatten(0, lengths.shape), lengths, torch.zeros(count, slots))
    if not censored:
        lower, upper = simulator.censored(segments.states)
        kept = ~((lower | upper) & (torch.arange(1, 75) < lengths[..., None])).any(2).any(1)
        return theta[::slots][kept], segments[kept]
    return theta[::slots], segments


def pieces(segments, driver):
    """The segments of one driver, without their padding, float64."""
    own = zip(segments.states[driver], segments.lengths[driver].tolist(), strict=True)
    return [states[:length].double() for states, length in own if length]


def minimise(simulator, start, own):
    """What a general optimiser gains, from `start`, on prior times product of likelihoods."""

    def value(u):
        """Negative log-posterior and gradient, from the simulator's own parts."""
        u = torch.from_numpy(u).requires_grad_()
        theta = simulator.prior.from_normal(u)
        likelihood = sum(simulator.log_likelihood(theta, states) for states in own)
        total = 0.5 * u.square().sum() - likelihood
        return total.item(), torch.autograd.grad(total, u)[0].numpy()

    found = optimize.minimize(value, start.numpy(), jac=True, options={"maxiter": 30})
    return value(start.numpy())[0] - found.fun


def dense_information(simulator, mode, own):
    """Of one series about the coordinates in which the prior is normal, by differences."""
    law, small = len(simulator.law.parameters), 1e-5

    def parts(u):
        theta = simulator.prior.from_normal(u)
        residuals = simulator.residuals(theta, own)
        unit = simulator.residual.correlation(theta[None, law + 1 :], len(own) - 1, 0.2)[0]
        return residuals, theta[law].square() * unit

    mean, spread = [], []
    for move in small * torch.eye(simulator.dim, dtype=torch.float64):
        ahead, behind = parts(mode + move), parts(mode - move)
        mean.append((ahead[0] - behind[0]) / (2 * small))
        spread.append((ahead[1] - behind[1]) / (2 * small))
    inverse = torch.linalg.inv(parts(mode)[1])
    jacobian = torch.stack(mean, dim=1)
    scaled = torch.stack([inverse @ change for change in spread])
    return jacobian.T @ inverse @ jacobian + 0.5 * torch.einsum("iab,jba->ij", scaled, scaled)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_the_mode_is_where_an_optimiser_finds_it(simulators, residual):
    simulator = simulators[residual]
    _, states = free(simulator, *drive(simulator, 4))
    modes, _ = Laplace(simulator, iterations=40, shapes=97).fit(states)
    gained = [
        minimise(simulator, mode, [own]) for mode, own in zip(modes, states.double(), strict=True)
    ]
    # The best sigma for given parameters is the most likely one, which its prior moves a little.
    assert np.median(gained) < 0.1 and max(gained) < 1.0


@pytest.mark.parametrize("residual", RESIDUALS)
def test_the_covariance_is_that_of_the_dense_information(simulators, residual):
    simulator = simulators[residual]
    _, states = free(simulator, *drive(simulator, 4, seed=1))
    laplace = Laplace(simulator, iterations=15, shapes=193)
    modes, covariances = laplace.fit(states)
    for mode, covariance, own in zip(modes, covariances, states.double(), strict=True):
        information = dense_information(simulator, mode, own) + torch.eye(simulator.dim).double()
        torch.testing.assert_close(torch.linalg.inv(covariance), information, rtol=5e-3, atol=0.5)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_several_segments_are_the_product_of_their_likelihoods(simulators, residual):
    simulator = simulators[residual]
    _, segments = drive_segments(simulator, 8, seed=6, censored=False)
    assert int(segments.present.sum(1).max()) > 1
    laplace = Laplace(simulator, iterations=40, shapes=193)
    modes, covariances = laplace.fit(segments)
    gained = []
    for driver, (mode, covariance) in enumerate(zip(modes, covariances, strict=True)):
        own = pieces(segments, driver)
        gained.append(minimise(simulator, mode, own))
        information = sum(dense_information(simulator, mode, states) for states in own)
        information += torch.eye(simulator.dim).double()
        torch.testing.assert_close(torch.linalg.inv(covariance), information, rtol=5e-3, atol=0.5)
    assert np.median(gained) < 0.1 and max(gained) < 1.0


@pytest.mark.parametrize("residual", RESIDUALS)
def test_one_segment_is_a_single_trajectory_exactly(simulators, residual):
    simulator = simulators[residual]
    _, states = drive(simulator, 12, seed=7)
    laplace = Laplace(simulator)
    alone = laplace.describe(states, None)
    assert torch.equal(laplace.describe(Segments.of(states), None), alone)
    slots = torch.full((12, 3, *states.shape[1:]), torch.nan)
    lengths = torch.zeros(12, 3, dtype=torch.int64)
    place = torch.arange(12) % 3
    slots[torch.arange(12), place], lengths[torch.arange(12), place] = states, 75
    found = laplace.describe(Segments(slots, lengths, torch.zeros(12, 3)), None)
    assert torch.equal(found, alone)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_order_and_padding_of_segments_change_nothing(simulators, residual):
    simulator = simulators[residual]
    _, segments = drive_segments(simulator, 20, slots=4, seed=8)
    laplace = Laplace(simulator)
    columns = laplace.describe(segments, None)
    order = torch.tensor([2, 0, 3, 1])
    mixed = Segments(segments.states[:, order], segments.lengths[:, order], segments.age[:, order])
    wild = torch.nn.functional.pad(segments.states, (0, 0, 0, 60))
    wild[torch.arange(135) >= segments.lengths[..., None]] = torch.nan
    padded = Segments(wild, segments.lengths, segments.age)
    for other in (mixed, padded):
        torch.testing.assert_close(laplace.describe(other, None), columns, rtol=0, atol=1e-6)
    few = laplace.describe(segments[5:8], None)
    torch.testing.assert_close(few, columns[5:8], rtol=0, atol=1e-6)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_padding_and_steps_at_standstill_are_left_out(simulators, residual):
    simulator = simulators[residual]
    _, states = free(simulator, *drive(simulator, 8, seed=2))
    laplace = Laplace(simulator, iterations=40)
    short = laplace.describe(states[:, :50], None)
    padded = states.clone()
    padded[:, 50:] = torch.nan
    lengths = torch.full((len(states),), 50)
    away, _ = laplace.whiten(short[:, : laplace.dim], laplace.describe(padded, lengths))
    assert away.abs().max() < 1e-4  # standard deviations

    # A gap in the series: the whitened rest has the density of the marginal normal.
    used = torch.ones(20, dtype=torch.bool)
    used[[0, 7, 8]] = False
    whitener = laplace.whitener(used)
    series = torch.randn(20, generator=torch.Generator().manual_seed(0))
    series = series.double() * used
    at = torch.zeros(len(laplace.grid), simulator.dim).double()
    at[:, laplace.law_dim + 1 :] = laplace.grid[:, None]
    shape = simulator.prior.from_normal(at)[:, laplace.law_dim + 1 :]
    matrices = simulator.residual.correlation(shape, 20, simulator.dt)
    for index in (0, len(laplace.grid) // 2, len(laplace.grid) - 1):
        dense = matrices[index][used][:, used]
        expected = series[used] @ torch.linalg.solve(dense, series[used])
        white = whitener.matrix[index] @ series
        torch.testing.assert_close(white.square().sum(), expected)
        torch.testing.assert_close(whitener.log_det[index, -1], torch.logdet(dense))
    # The first of its steps are those of a shorter series.
    short = Laplace(simulator).whitener(used[:12])
    torch.testing.assert_close(whitener.matrix[:, :12, :12], short.matrix)
    torch.testing.assert_close(whitener.log_det[:, :13], short.log_det)
    shapes = len(laplace.grid)
    whole, part = (
        torch.stack([w.information(i) for i in range(shapes)]) for w in (whitener, short)
    )
    torch.testing.assert_close(whole[..., :13], part)


def test_coordinates_are_inverse_to_each_other_with_the_right_volume(simulators):
    simulator = simulators["matern"]
    theta, states = drive(simulator, 5, seed=3)
    laplace = Laplace(simulator)
    columns = laplace.describe(states, None).double()
    assert columns.shape == (5, laplace.size)
    u = simulator.prior.to_normal(theta.double())
    w, log_det = laplace.whiten(u, columns)
    torch.testing.assert_close(laplace.unwhiten(w[:, None], columns)[:, 0], u)
    many, many_log_det = laplace.whiten(u[:, None].expand(-1, 3, -1), columns)
    torch.testing.assert_close(many[:, 1], w)
    torch.testing.assert_close(many_log_det[:, 2], log_det)
    for i in range(5):
        jacobian = torch.autograd.functional.jacobian(
            lambda x, i=i: laplace.unwhiten(x[None, None], columns[i : i + 1])[0, 0], w[i]
        )
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, log_det[i])


def build(simulator) -> Posterior:
    torch.manual_seed(0)
    return PosteriorEstimator(
        LocalGlobalEncoder(model_dim=8, heads=2, dropout=0.1),
        partial(NeuralSplineFlow, layers=2, hidden=8, dropout=0.1),
        Laplace(simulator),
        simulator.prior,
    ).posterior.eval()


def test_the_density_is_one_density(simulators, roughened):
    """It integrates to one over the prior's support, and every way to ask for it agrees."""
    simulator = simulators["gaussian"]
    theta, states = drive(simulator, 300, steps=8, seed=4)
    posterior = roughened(build(simulator), 0.05)
    before = posterior.u_std.clone()
    posterior.set_scaling(theta, states)
    assert not torch.equal(posterior.u_std, before)
    few, draws = states[:3], simulator.prior.sample(100_000, stream(0, "integral"))
    grid = posterior.log_prob_grid(draws, few)
    total = (grid.double() - simulator.prior.log_prob(draws.double())).exp()
    error = total.std(1) / len(draws) ** 0.5
    assert (error < 0.1).all() and ((total.mean(1) - 1).abs() < 4 * error).all()
    torch.testing.assert_close(
        posterior.log_prob(draws[None, :5].expand(3, -1, -1), few), grid[:, :5]
    )
    rows = torch.stack([posterior.log_prob(draws[i].expand(3, -1), few) for i in range(2)], dim=1)
    torch.testing.assert_close(rows, grid[:, :2], rtol=1e-4, atol=1e-4)
    sampled = posterior.sample(few, 200, stream(0, "draws"))
    # Nothing leaves the support; what an untrained flow sends to its very edge is drawn again.
    assert simulator.prior.contains(sampled.theta).all() and float(sampled.leak_rate.max()) < 0.9
    assert simulator.prior.within_tails(sampled.theta).all()


def test_an_untrained_flow_is_close_to_the_approximation_and_far_from_the_prior(simulators):
    simulator = simulators["matern"]
    theta, states = free(simulator, *drive(simulator, 200, seed=5))
    posterior = build(simulator)
    posterior.set_scaling(theta, states)
    gain = posterior.log_prob(theta, states) - simulator.prior.log_prob(theta)
    assert gain.mean() > 5


def test_members_share_what_was_computed(simulators):
    posterior = build(simulators["gaussian"])
    copied = copy.deepcopy(posterior)
    assert copied.transform is posterior.transform
    _, states = drive(simulators["gaussian"], 2)
    columns = posterior.member(1).encode(states)[:, 8:]
    torch.testing.assert_close(columns, posterior.transform.describe(states, None))


def test_its_coordinates_are_those_in_which_the_prior_is_normal(simulators):
    simulator = simulators["matern"]
    laplace, normal = Laplace(simulator), PriorNormal(simulator.prior)
    u = torch.linspace(-3, 3, 35).view(5, 7)
    theta = normal(u)
    assert torch.equal(laplace(u), theta)
    assert torch.equal(laplace.inverse(theta), normal.inverse(theta))
    assert torch.equal(laplace.log_abs_det(u), normal.log_abs_det(u))
    assert laplace.contains(theta).all() and not laplace.contains(2 * simulator.prior.high)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "transform.iterations=0; expected a whole number of at least 1"),
        ({"shapes": 2}, "transform.shapes=2; expected a whole number of at least 3"),
    ],
)
def test_bad_settings(simulators, options, message):
    with pytest.raises(InputError, match=message):
        Laplace(simulators["gaussian"], **options)


def test_a_residual_that_does_not_fit_is_refused(simulators):
    odd = copy.copy(simulators["gaussian"])
    odd.residual = type("Odd", (), {"parameters": ("sigma", "a", "b")})()
    with pytest.raises(InputError, match="transform=laplace: Odd .* use transform=prior"):
        Laplace(odd)
