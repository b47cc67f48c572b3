import pytest
import torch

from asbc.design.acquisition import RandomAcquisition
from asbc.design.bank import LeaderBank
from asbc.design.simulations import Choice, Plan, simulate_plan
from asbc.errors import InputError
from asbc.simulator.robust import ContextSimulator
from asbc.utils.random import stream

STEPS = 20


@pytest.fixture
def contexts(simulator):
    return ContextSimulator(simulator)


def random_plan(space, posterior, kept, round=1):
    strategy = RandomAcquisition(name="random", subset_size=4, alpha_schedule=[0, 0.5])
    return strategy.plan(round, posterior, space, kept)


def test_simulations_are_the_simulators_rollouts_of_the_planned_pairs(
    space, posterior, kept, simulator, contexts
):
    simulated, redraws = simulate_plan(
        random_plan(space, posterior, kept), 50, 1, contexts, space.bank, stream(0, "s"), 20
    )
    pairs = random_plan(space, posterior, kept).take(50)
    windows = space.bank.windows.take(pairs.window_id)
    rollout = simulator.rollout(
        pairs.theta, windows.leader_speed, windows.gap, windows.speed, stream(0, "s")
    )
    assert redraws == int(rollout.collided.sum()) == 0
    assert torch.equal(simulated.states, rollout.states)
    assert torch.equal(simulated.window_id, pairs.window_id)
    assert simulated.round.tolist() == [1] * 50
    # The trajectory starts at the window's observed state.
    assert torch.equal(simulated.states[:, 0, 0], windows.gap)
    assert torch.equal(simulated.states[:, 0, 1], windows.speed)


def closing_bank(pairs, closing):
    """20 windows, of which the first start a metre behind a much slower leader."""
    pairs.gap[: closing * STEPS] = 1.0
    pairs.speed[: closing * STEPS] = 30.0
    return LeaderBank(pairs, STEPS, stride=STEPS, synthetic_cap=0)


def test_collisions_are_replaced_by_the_plans_next_pairs(space, contexts, pair_maker):
    bank = closing_bank(pair_maker(20, STEPS), closing=10)
    order = iter(range(20))

    def take(n):
        window_id = torch.tensor([next(order) for _ in range(n)])
        theta = space.prior.icdf(torch.full((n, 6), 0.5))
        return Choice(theta, window_id, torch.zeros(n))

    plan = Plan(take, {}, {})
    simulated, redraws = simulate_plan(plan, 5, 2, contexts, bank, stream(0, "s"), 20)
    assert simulated.window_id.tolist() == [10, 11, 12, 13, 14]
    assert redraws == 10
    assert (simulated.states[..., 0] > 0).all()


def test_hopeless_simulations_end_in_an_error_not_a_hang(space, contexts, pair_maker):
    bank = closing_bank(pair_maker(20, STEPS), closing=20)

    def take(n):
        theta = space.prior.icdf(torch.full((n, 6), 0.5))
        return Choice(theta, torch.zeros(n, dtype=torch.int64), torch.zeros(n))

    with pytest.raises(InputError, match="round 3: 4 of 4 simulations still collide.*max_tries"):
        simulate_plan(Plan(take, {}, {}), 4, 3, contexts, bank, stream(0, "s"), 3)


def test_a_drifting_driver_is_to_be_inferred_as_it_is_later(
    space, posterior, kept, simulator, contexts
):
    def simulated(source):
        plan = random_plan(space, posterior, kept)
        return simulate_plan(plan, 50, 1, source, space.bank, stream(0, "s"), 20)[0]

    now, later = simulated(contexts), simulated(ContextSimulator(simulator, residual_drift=0.1))
    assert torch.equal(now.states, later.states)  # what was driven is the same
    change = torch.log(later.theta / now.theta)[:, 5:]
    assert 0.05 < float(change.std()) < 0.15
