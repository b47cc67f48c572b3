"""Networks that drive: their steps by closed forms, what they see, and what they learn."""

import numpy as np
import pytest
import torch
from torch import nn

from asbc.baselines.gru import KEPT, Gru, NetworkDrives, RecurrentDriver
from asbc.baselines.method import require_context
from asbc.baselines.residual_idm import LawfulDriver, ResidualIdm
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows
from asbc.errors import InputError
from asbc.evaluation.protocol import EvaluationSettings
from asbc.predictive.objective import Predictive
from asbc.predictive.recorded_windows import RecordedWindows

SMALL = Predictive(
    horizon=15, steps=120, check_every=20, windows=8, draws=8, validation_draws=16, stride=20
)
KINDS = {"gru": (Gru, RecurrentDriver), "residual_idm": (ResidualIdm, LawfulDriver)}
SILENT = -200.0  # softplus of it is nothing


def with_constant_outputs(model: RecurrentDriver, kept: float, level: float, spread: float):
    """The model, whose outputs no longer depend on what it sees."""
    nn.init.zeros_(model.out.weight)
    with torch.no_grad():
        model.out.bias.copy_(torch.tensor([kept - KEPT, level, spread + 2.0]))
    return model


def driving(simulator, typical, pairs_of, count=3, steps=70) -> Pairs:
    return pairs_of(simulator, typical.expand(count, -1), steps)


def drives(model, draws=2, context="first"):
    return NetworkDrives(model, context, 20, draws)


def windows_at(*starts: int, horizon: int = 15) -> EvaluationWindows:
    return EvaluationWindows(torch.zeros(len(starts), dtype=int), torch.tensor(starts), horizon)


def test_without_noise_and_memory_it_keeps_the_last_acceleration(simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = driving(simulator, typical["gaussian"], pairs_of)
    model = with_constant_outputs(RecurrentDriver(simulator, 4, 2, 5), 200.0, 0.0, SILENT)
    rollout = drives(model).predict(pairs, windows_at(30, horizon=5), 0)
    held = float(pairs.acceleration[29])
    time = torch.arange(6) * simulator.dt
    speed = float(pairs.speed[30]) + held * time
    assert bool((speed > 0).all())
    torch.testing.assert_close(rollout.speed[0, 0], speed.float())
    leader = pairs.leader_speed[30:36]
    moved = torch.cat([torch.zeros(1), (leader[:-1] * simulator.dt).cumsum(0)])
    own = float(pairs.speed[30]) * time + 0.5 * held * time**2
    torch.testing.assert_close(rollout.gap[0, 0], (pairs.gap[30] + moved - own).float())


def test_its_noise_is_autoregressive(simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = driving(simulator, typical["gaussian"], pairs_of, count=1)
    kept, noise = 0.8, 0.05
    logit = float(torch.logit(torch.tensor(kept)))
    inverse = float(torch.tensor(noise).expm1().log())  # of softplus
    model = with_constant_outputs(RecurrentDriver(simulator, 4, 0, 5), logit, 0.0, inverse)
    rollout = drives(model, draws=20_000).predict(pairs, windows_at(30), 0)
    steps = torch.arange(1, 17)
    expected = noise**2 * (1 - kept ** (2 * steps)) / (1 - kept**2)
    torch.testing.assert_close(rollout.acceleration[0].var(0), expected, rtol=0.06, atol=0)
    mean = float(pairs.acceleration[29]) * kept**steps
    torch.testing.assert_close(rollout.acceleration[0].mean(0), mean, rtol=0, atol=4e-3)


def test_a_silent_network_leaves_the_law(simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = driving(simulator, typical["gaussian"], pairs_of)
    model = with_constant_outputs(LawfulDriver(simulator, 4, 2, 5), -200.0, 0.0, SILENT)
    rollout = drives(model).predict(pairs, windows_at(30), 0)
    theta = torch.cat([model.transform(model.u), torch.zeros(1)])[None].detach()
    alone = simulator.rollout(
        theta,
        pairs.leader_speed[None, 30:46],
        pairs.gap[30:31],
        pairs.speed[30:31],
        np.random.default_rng(0),
        check=False,
    )
    for name in ("gap", "speed", "acceleration"):
        torch.testing.assert_close(getattr(rollout, name)[0, 0], getattr(alone, name)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_it_sees_the_past_only(kind, simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = driving(simulator, typical["gaussian"], pairs_of)
    torch.manual_seed(0)
    model = KINDS[kind][1](simulator, 8, 2, 5)
    window = windows_at(40)
    before = drives(model, context="latest").predict(pairs, window, 0)
    for sample, changes in ((41, False), (38, True), (25, True), (5, False)):
        other = Pairs(**{**vars(pairs), "speed": pairs.speed.clone()})
        other.speed[sample] += 0.5
        after = drives(model, context="latest").predict(other, window, 0)
        assert torch.equal(before.gap, after.gap) is not changes, sample


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_has_its_own_noise(kind, simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = driving(simulator, typical["gaussian"], pairs_of)
    torch.manual_seed(0)
    predict = drives(KINDS[kind][1](simulator, 8, 2, 5), draws=3).predict
    both, alone = predict(pairs, windows_at(0, 30), 1), predict(pairs, windows_at(30), 1)
    torch.testing.assert_close(both.gap[1:], alone.gap, rtol=1e-5, atol=1e-5)
    assert not torch.equal(both.gap[0, 0], both.gap[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_to_predict_drivers_it_has_not_seen(kind, task_of):
    task = task_of("gaussian", known=20, steps=100)
    method = KINDS[kind][0](SMALL, learning_rate=0.01, hidden=12)
    fitted = method.fit(task)
    assert fitted.details["weights"] == sum(p.numel() for p in fitted.theta.model.parameters())
    torch.manual_seed(1)
    examples = RecordedWindows(task.test, 40, 15, 5, "test").grid("first", 10, 20)

    def score(model):
        return SMALL.check(model.predict, task.simulator, [examples], 50)[0]

    ratio = score(fitted.theta.model) / score(method.network(task.simulator))
    assert float(ratio.mean()) < 0.9
    again = method.fit(task)
    for name, value in fitted.theta.model.state_dict().items():
        assert torch.equal(value, again.theta.model.state_dict()[name]), name


def test_gradients_stay_bounded_right_behind_the_leader(simulators):
    simulator = simulators["gaussian"]
    still = torch.full((4, 60), 0.5)
    pairs = Pairs.from_series(still + 0.5, still, still, simulator.dt)
    examples = RecordedWindows(pairs, 20, 30, 5, "training").grid("latest", 10, 5)
    torch.manual_seed(0)
    model = LawfulDriver(simulator, 8, 2, 5)
    objective = Predictive(horizon=30)
    rollout = model.predict(examples, 8, 0)
    objective.scores(rollout, examples).mean().backward()
    norms = [value.grad.norm() for value in model.parameters()]
    assert all(float(norm) < 1e3 for norm in norms)


@pytest.mark.parametrize("kind", KINDS)
def test_contexts(kind):
    method = KINDS[kind][0]()
    for context in ("first", "latest"):
        require_context(method, EvaluationSettings(context=context))
    with pytest.raises(InputError, match=r"evaluation\.context=all"):
        require_context(method, EvaluationSettings(context="all"))
    with pytest.raises(InputError, match=r"baseline\.hidden=0"):
        KINDS[kind][0](hidden=0)
