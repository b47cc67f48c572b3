"""Learned residuals against the process they start from, and against their formula in numpy."""

import numpy as np
import pytest
import torch

from asbc.errors import InputError
from asbc.population.ring import Ring, simulate_ring
from asbc.simulator import Prefix, Simulator
from asbc.simulator.kinematics import NO_LAG
from asbc.simulator.learned_residual import (
    LEAST_MOMENTUM,
    READS,
    LearnedResidual,
    Situation,
    State,
)
from asbc.utils.random import RowStreams, stream

DT = 0.2


def rows(count: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    each = {
        "gap": rng.uniform(0.1, 40, count),
        "speed": np.where(rng.random(count) < 0.2, 0.1, rng.uniform(0, 20, count)),
        "approach_rate": rng.normal(0, 2, count),
        "leader_acceleration": rng.normal(0, 3, count),
        "law": rng.normal(0, 3, count),
    }
    return {name: torch.from_numpy(values) for name, values in each.items()}


def shaken(residual: LearnedResidual, seed: int = 0) -> LearnedResidual:
    """The residual with outputs that depend on the state, as after a training."""
    torch.manual_seed(seed)
    with torch.no_grad():
        residual.out.weight.normal_(0, 0.4)
        residual.out.bias.normal_(0, 0.4)
    return residual


def drivers(simulator: Simulator, count: int) -> torch.Tensor:
    return simulator.prior.sample(count, stream(0, "drivers"))


@pytest.fixture
def taught(simulators):
    """Simulators whose drives have a learned residual that is not the process any more."""
    return {
        name: own.taught(shaken(LearnedResidual(6, own.parameter_names)), (0.1, 0.4))
        for name, own in simulators.items()
    }


def test_untrained_it_is_an_ornstein_uhlenbeck_process() -> None:
    """Mean r0 k^t and variance sigma^2 (1 - k^(2t)), whatever the state."""
    names, count, sigma, ell, first = ("sigma", "ell"), 200_000, 0.4, 1.1, 1.5
    residual = LearnedResidual(5, names)
    theta = torch.tensor([[sigma, ell]]).expand(count, -1)
    now = Situation(**{k: v.float() for k, v in rows(count).items()})
    state, rng = residual.empty(theta[:, 0]), np.random.default_rng(1)
    state = state._replace(residual=torch.full((count,), first))
    kept = np.exp(-DT / ell)
    with torch.no_grad():
        for step in range(1, 9):
            noise = torch.from_numpy(rng.normal(size=count)).float()
            state = residual(theta, now, state, noise, DT)
            value = state.residual
            assert float(value.mean()) == pytest.approx(first * kept**step, abs=0.004)
            variance = sigma**2 * (1 - kept ** (2 * step))
            assert float(value.var()) == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("names", [("v0", "sigma", "ell"), ("v0", "sigma")])
def test_a_step_is_the_formula(names) -> None:
    residual, count = shaken(LearnedResidual(6, names)).double(), 50
    rng, state = np.random.default_rng(2), rows(50)
    theta = rng.uniform(0.3, 2, (count, len(names)))
    last, noise = rng.normal(0, 3, count), rng.normal(size=count)
    change, asked = rng.normal(0, 1, count), rng.normal(0, 3, count)
    with torch.no_grad():
        memory = rng.normal(0, 0.5, (count, 6))
        before = State(*map(torch.from_numpy, (last, change, asked, memory)))
        given = (before, torch.from_numpy(noise), DT)
        after = residual(torch.from_numpy(theta), Situation(**state), *given)
    found = after.residual
    weights = {name: value.detach().numpy() for name, value in residual.named_parameters()}
    for i in range(count):
        gap, v, dv, al, law = (float(column[i]) for column in state.values())
        gap, sigma = max(gap, 0.3), theta[i, 1]
        ell = theta[i, 2] if "ell" in names else 1.0
        limited = [min(max(x, -4), 4) for x in (al, law, last[i])]
        inputs = [gap / 20, np.log(gap) - 2, v / 10, np.log(1 + v), float(v < 0.2)]
        inputs += [gap / (v + 1) / 3 - 1, dv / 2, *limited, np.log(sigma) + 1, np.log(ell)]
        seen = weights["cell.weight_ih"] @ inputs + weights["cell.bias_ih"]
        known = weights["cell.weight_hh"] @ memory[i] + weights["cell.bias_hh"]
        reset, update = (1 / (1 + np.exp(-(seen + known)[k : k + 6])) for k in (0, 6))
        new = np.tanh(seen[12:] + reset * known[12:])
        hidden = (1 - update) * new + update * memory[i]
        more, level, size, momentum, delay, ignored = (
            weights["out.weight"] @ hidden + weights["out.bias"]
        )
        base = np.exp(-DT / ell) if "ell" in names else 0.02
        kept = 1 / (1 + np.exp(-(np.log(base / (1 - base)) + more)))
        spread = sigma * np.sqrt(1 - kept**2) * np.exp(min(max(size, -4), 2))
        expected = kept * last[i] + (1 - kept) * level + spread * noise[i]
        expected += max(np.tanh(momentum), -0.5) * change[i]
        asks = min(max(law, -v / DT, -9), 5)
        expected -= (1 - kept) * np.tanh(ignored) * asked[i]
        expected -= np.tanh(delay) * min(max(asks - asked[i], -1), 1)
        assert float(after.law[i]) == pytest.approx(asks, rel=1e-9)
        assert float(found[i]) == pytest.approx(expected, rel=1e-9)
        assert float(after.change[i]) == pytest.approx(expected - last[i], rel=1e-8)


def test_where_the_law_is_ignored_its_parameters_change_nothing(simulators) -> None:
    """c = g = 1: accelerations of the past go on by themselves, whatever the law asks for."""
    own = simulators["matern"]
    learned = LearnedResidual(4, own.parameter_names).requires_grad_(False)
    learned.out.bias[-2:] = 20.0  # tanh is 1
    theta = drivers(own, 3)
    theta[:, -2:] = theta[0, -2:]  # sigma and ell alike
    leader, start = torch.full((3, 30), 9.0), (torch.full((3,), 30.0), torch.full((3,), 9.0))
    states = torch.tensor([30.0, 9.0, 0.0]).expand(3, READS, 3)
    residuals = own.residuals(theta, states, torch.zeros(3, READS))
    known = torch.ones_like(residuals, dtype=torch.bool)
    prefix = Prefix(residuals, known, 0.01, states)
    noise = RowStreams([stream(1, "same") for _ in range(3)])
    drives = own.taught(learned, NO_LAG).rollout(theta, leader, *start, noise, prefix)
    torch.testing.assert_close(drives.speed[1:], drives.speed[:1].expand(2, -1))
    usual = own.taught(LearnedResidual(4, own.parameter_names), NO_LAG)
    noise = RowStreams([stream(1, "same") for _ in range(3)])
    speed = usual.rollout(theta, leader, *start, noise, prefix).speed
    assert float((speed[1:] - speed[:1]).detach().abs().max()) > 0.5


def test_whatever_the_network_says_residuals_do_not_grow() -> None:
    """Roots of the recursion's characteristic polynomial, z^2 - (k + j) z + j."""
    for kept in np.linspace(0.001, 0.999, 30):
        for momentum in np.linspace(LEAST_MOMENTUM, 0.999, 30):
            roots = np.roots([1, -(kept + momentum), momentum])
            assert np.abs(roots).max() < 1


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_step_by_step_is_the_rollout_and_rows_do_not_depend_on_each_other(
    residual, taught
) -> None:
    simulator = taught[residual]
    theta = drivers(simulator, 6)
    leader = 8 + 2 * torch.sin(0.2 * torch.arange(40)).expand(6, -1)
    start = torch.full((6,), 15.0), torch.full((6,), 7.0)
    prefix = Prefix(torch.tensor([[0.4, 0.9]] * 6), torch.ones(6, 2, dtype=torch.bool), 0.01)
    whole = simulator.rollout(theta, leader, *start, stream(0, "drive"), prefix)
    drive = simulator.begin(theta, *start, 40, stream(0, "drive"), prefix)
    for step, speed in enumerate(leader[0].tolist()):
        drive.follow(speed)
        if step == 20:
            drive.rollout()  # looking on the way changes nothing
    for name in ("gap", "speed", "acceleration"):
        assert torch.equal(getattr(drive.rollout(), name), getattr(whole, name)), name
    few = Prefix(prefix.residuals[:2], prefix.observed[:2], 0.01)
    first = simulator.rollout(
        *(theta[:2], leader[:2], start[0][:2], start[1][:2], stream(0, "drive"), few)
    )
    torch.testing.assert_close(first.gap, whole.gap[:2])


def test_a_drive_that_was_watched_until_now_goes_on_as_if_it_had_not_stopped(taught) -> None:
    """Samples before a drive leave the memory that driving through them would have left."""
    simulator, count = taught["matern"], 5
    theta = drivers(simulator, count)
    theta[:, -2] = 0.1  # sigma: no bound of a residual or an acceleration is met
    leader = 9 + torch.sin(0.3 * torch.arange(40)).expand(count, -1)
    start = torch.full((count,), 22.0), torch.full((count,), 9.0)

    def noise(skipped: int) -> RowStreams:
        streams = [stream(0, row) for row in range(count)]
        for rng in streams:
            rng.standard_normal(skipped, dtype=np.float32)
        return RowStreams(streams)

    whole = simulator.rollout(theta, leader, *start, noise(0))
    seen = whole.states[:, :READS]
    residuals = simulator.residuals(theta, seen, whole.acceleration[:, :READS])
    assert float(residuals.detach().abs().max()) < 2.9
    known = torch.ones_like(residuals, dtype=torch.bool)

    def later(prefix: Prefix) -> torch.Tensor:
        begin = whole.gap[:, READS], whole.speed[:, READS]
        return simulator.rollout(theta, leader[:, READS:], *begin, noise(READS), prefix).gap

    torch.testing.assert_close(later(Prefix(residuals, known, 0.01, seen)), whole.gap[:, READS:])
    forgotten = later(Prefix(residuals, known, 0.01))
    assert float((forgotten - whole.gap[:, READS:]).detach().abs().max()) > 0.05
    # Samples that were not observed say nothing, whatever stands in for them.
    known[:, :7] = False
    partly = later(Prefix(residuals, known, 0.01, seen))
    other = residuals.index_fill(1, torch.arange(7), torch.nan)
    torch.testing.assert_close(later(Prefix(other, known, 0.01, seen)), partly)


def test_drives_go_on_from_what_was_observed(taught) -> None:
    simulator = taught["matern"]
    theta, leader = drivers(simulator, 4), torch.full((4, 3), 9.0)
    start = torch.full((4,), 25.0), torch.full((4,), 9.0)
    seen = torch.tensor([[0.0, -2.0], [0.0, 2.0], [0.0, 50.0], [0.0, 2.0]])
    known = torch.tensor([[True, True]] * 3 + [[True, False]])
    found = [
        simulator.rollout(theta[:1].expand(4, -1), leader, *start, stream(1), prefix)
        for prefix in (Prefix(seen, known, 0.01), None)
    ]
    a = found[0].acceleration[:, 0]
    assert a[0] < a[1] < a[2]
    assert torch.equal(a[3], found[1].acceleration[3, 0])  # what was not observed counts as 0


def test_gradients_agree_with_finite_differences(simulators) -> None:
    own = simulators["matern"]
    learned = shaken(LearnedResidual(4, own.parameter_names)).double()
    simulator = own.taught(learned, NO_LAG)
    theta, leader = drivers(own, 3).double(), torch.full((3, 15), 9.0).double()
    start = torch.full((3,), 20.0).double(), torch.full((3,), 8.0).double()

    def result() -> torch.Tensor:
        # Small enough for no bound of a gradient to matter.
        return simulator.rollout(theta, leader, *start, stream(2)).gap[:, -1].sum() / 1e3

    result().backward()
    for weights in learned.parameters():
        for place in (0, weights.numel() - 1):
            at = weights.detach().view(-1)
            kept, step = float(at[place]), 1e-5
            ends = []
            for sign in (1, -1):
                at[place] = kept + sign * step
                ends.append(float(result().detach()))
            at[place] = kept
            slope = (ends[0] - ends[1]) / (2 * step)
            assert float(weights.grad.view(-1)[place]) == pytest.approx(slope, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("size", [1e9, float("inf")])
def test_gradients_are_bounded_whatever_comes_back_from_a_drive(simulators, size) -> None:
    own = simulators["matern"]
    learned = shaken(LearnedResidual(4, own.parameter_names))
    theta = drivers(own, 64)
    leader = torch.zeros(64, 50)
    leader[:, 25:] = 8.0
    start = torch.full((64,), 0.5), torch.full((64,), 12.0)
    drives = own.taught(learned, NO_LAG).rollout(theta, leader, *start, stream(4))
    drives.gap.backward(torch.full_like(drives.gap, size))
    sizes = [float(weights.grad.norm()) for weights in learned.parameters()]
    # 10 for all rows of a step together, in 50 steps; inputs of the network are of order one.
    assert max(sizes) < 10 * 10 * 50
    assert size == float("inf") or min(sizes) > 0


def test_the_ring_drives_with_it(simulators) -> None:
    """A level of -1 m/s^2 whatever happens slows everybody down."""
    own = simulators["matern"]
    theta = drivers(own, 10)[None]
    ring = Ring(radius=40.0, duration=40.0)
    learned = LearnedResidual(4, own.parameter_names)
    plain = simulate_ring(own.taught(learned, NO_LAG), theta, ring, stream(3))
    with torch.no_grad():
        learned.out.bias[1] = -1.0
    slower = simulate_ring(own.taught(learned, NO_LAG), theta, ring, stream(3))
    assert slower.speed.mean() < 0.9 * plain.speed.mean()


def test_likelihood_and_the_simulators_own_drives_know_nothing_of_it(simulators, taught) -> None:
    assert simulators["matern"].learned is None
    assert taught["matern"].residual is simulators["matern"].residual


def test_without_a_sigma_there_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="no sigma among the parameters v0, T"):
        LearnedResidual(4, ("v0", "T"))
