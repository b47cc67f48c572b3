import numpy as np
import pytest
import torch

from asbc.design.weights import importance_weights
from asbc.errors import InputError


def test_the_warm_up_is_prior_simulations_on_recorded_windows(build):
    _, data = build()
    log = data.warm_up()
    content = data.buffer.content
    assert len(content) == 96 and content.round.unique().tolist() == [0]
    assert not data.space.bank.is_synthetic(content.window_id).any()
    windows = data.space.bank.real.take(content.window_id)
    assert torch.equal(content.states[:, 0, 0], windows.gap)
    assert torch.equal(content.states[:, :, 1] - content.states[:, :, 2], windows.leader_speed)
    median = data.space.prior.icdf(torch.full((6,), 0.5))
    below = (content.theta < median).float().mean(dim=0)
    assert (below - 0.5).abs().max() < 4 * np.sqrt(0.25 / 96)
    assert log["simulations"] == 96 + log["redraws"] and log["synthetic_share"] == 0
    assert log["effective_sample_size"] == pytest.approx(96)


def test_the_hold_out_has_a_key_of_its_own(build):
    holdouts = []
    for overrides in (["seed=0"], ["seed=1"], ["acquisition=random"], ["training.holdout_seed=5"]):
        _, data = build(*overrides)
        data.setup()
        holdouts.append(data.holdout["states"])
        data.warm_up()
        assert not any(
            torch.equal(row, other) for row in holdouts[-1] for other in data.buffer.content.states
        )
    assert torch.equal(holdouts[0], holdouts[1]) and torch.equal(holdouts[0], holdouts[2])
    assert not torch.equal(holdouts[0], holdouts[3])


def test_setting_up_twice_simulates_the_hold_out_once(build):
    _, data = build()
    data.setup("fit")
    first = data.holdout
    data.setup("validate")
    assert data.holdout is first and len(data.val_dataloader()) == 1


def test_a_round_replaces_the_oldest_simulations(build):
    estimator, data = build()
    data.warm_up()
    content = data.buffer.content
    estimator.posterior.set_scaling(content.theta, content.states)
    before = data.buffer.content.theta.clone()
    log = data.carry_out(data.plan(1, estimator.posterior), 1)
    content = data.buffer.content
    assert len(content) == 112 and content.round.tolist() == [0] * 80 + [1] * 32
    assert torch.equal(content.theta[:80], before[16:])
    assert data.simulations == 96 + 32 + log["redraws"] == log["simulations"]
    share = data.space.bank.is_synthetic(content.window_id[80:]).double().mean()
    assert log["synthetic_share"] == pytest.approx(share)
    assert {"seconds_propose", "seconds_score", "seconds_select", "seconds_simulate"} <= set(log)
    assert {"lambda", "alpha", "leak_rate", "score_q50", "redraws"} <= set(log)


STREAM = (
    *("acquisition=stream", "training.rounds=null", "acquisition.simulations=96"),
    *("acquisition.chunk=32", "acquisition.lambda_share=0.5"),
)


def test_weights_follow_the_correction(build):
    for name in ("none", "importance"):
        estimator, data = build(*STREAM, f"acquisition.correction={name}")
        data.warm_up()
        data.carry_out(data.plan(1, estimator.posterior), 1)
        batches = list(data.train_dataloader())
        weight = torch.cat([batch["weight"] for batch in batches])
        theta = torch.cat([batch["theta"] for batch in batches])
        content = data.buffer.content
        expected = importance_weights(content.log_ratio) if name == "importance" else None
        for row, value in zip(theta, weight, strict=True):
            index = (content.theta == row).all(dim=1).nonzero()[0, 0]
            assert value == (1.0 if expected is None else expected[index])


def test_acquisition_does_not_touch_the_weights_or_the_mode(build):
    estimator, data = build()
    data.warm_up()
    before = {name: value.clone() for name, value in estimator.state_dict().items()}
    estimator.train()
    random_state = torch.get_rng_state()
    data.carry_out(data.plan(1, estimator.posterior), 1)
    assert estimator.training and all(m.training for m in estimator.modules())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in estimator.state_dict().items())


def test_only_the_training_split_is_seen(build, tiny_pairs):
    from asbc.data.pairs_file import PairsFile

    _, data = build()
    splits = PairsFile(path=str(tiny_pairs), context_steps=20, min_duration=8.0).splits()
    held_out = torch.cat([splits.validation.contexts(20), splits.test.contexts(20)])
    training = splits.train.contexts(20)
    for context in data.space.contexts:
        assert (training == context).all(dim=2).all(dim=1).any()
        assert not (held_out == context).all(dim=2).all(dim=1).any()
    # Speeds are continuous, so a shared sample would show a shared pair.
    recorded = set(data.space.bank.real.leader_speed.flatten().tolist())
    assert recorded <= set(splits.train.leader_speed.tolist())
    assert not recorded & set(splits.validation.leader_speed.tolist())
    assert not recorded & set(splits.test.leader_speed.tolist())


def test_the_state_restores_the_buffer(build):
    _, data = build()
    data.warm_up()
    _, other = build("seed=9")
    other.load_state_dict(data.state_dict())
    assert torch.equal(other.buffer.content.states, data.buffer.content.states)
    assert other.simulations == data.simulations


def test_the_holdout_is_simulated_behind_leaders_of_the_validation_split(build):
    """Its leaders, speed minus approach rate, are none of those that training knows."""
    _, data = build()
    data.setup()
    states = data.holdout["states"]
    leaders = (states[..., 1] - states[..., 2])[:, None]
    apart = (leaders - data.space.bank.real.leader_speed).abs().amax(dim=2).amin(dim=1)
    assert float(apart.min()) > 0.01
    own = (leaders - data.space.holdout.real.leader_speed).abs().amax(dim=2).amin(dim=1)
    assert float(own.max()) < 1e-4


def test_the_symmetry_gives_other_simulations_in_every_epoch(build):
    _, data = build("training.symmetry=true")
    data.warm_up()
    content, seen = data.buffer.content, []
    for key in (1, 1, 2):
        data.order_key = key
        seen.append(data.training_data())
    first, again, other = seen
    assert torch.equal(first["states"], again["states"])
    assert not torch.equal(first["states"], other["states"])
    scale = first["theta"][:, 0] / content.theta[:, 0]
    assert 1 / 1.1 <= float(scale.min()) < 1 < float(scale.max()) <= 1.1 + 1e-6
    torch.testing.assert_close(first["states"], content.states * scale[:, None, None])
    assert float(first["weight"].mean()) == pytest.approx(1)


def test_the_symmetry_is_refused_or_left_where_it_is_not_exact(build):
    with pytest.raises(InputError, match="training.symmetry=true: errors of measurement"):
        build("training.symmetry=true", "robust=real")
    _, data = build("training.symmetry=auto", "robust=real")
    assert data.symmetry is None
    _, data = build("training.symmetry=auto")
    assert data.symmetry is not None


@pytest.mark.parametrize("history", ["none", "segments"])
def test_drivers_are_described_once(history, build, monkeypatch):
    """The Laplace transform's regressions are made when a driver is, not in every step."""
    estimator, data = build("transform=laplace", f"history={history}")
    transform, rows = estimator.posterior.transform, []
    describe = transform.describe
    counted = lambda states, lengths: rows.append(len(states)) or describe(states, lengths)  # noqa: E731
    monkeypatch.setattr(transform, "describe", counted)
    data.transform = transform
    data.setup()
    data.warm_up()
    for _ in range(3):
        for batch in data.train_dataloader():
            index = (data.buffer.content.theta == batch["theta"][0]).all(1).nonzero()[0, 0]
            assert torch.equal(batch["columns"][0], data.buffer.content.columns[index])
    assert sum(rows) == 30 + 96


def test_known_pairs_have_their_share_of_the_loss(build):
    estimator, data = build("acquisition=targeted", "acquisition.known_share=0.4")
    data.warm_up()
    with_design = data.carry_out(data.plan(1, estimator.posterior.eval()), 1)
    batch, simulated = data.training_data(), len(data.buffer)
    assert with_design["known"] == len(batch["theta"]) - simulated > 0
    share = float(batch["weight"][simulated:].sum() / batch["weight"].sum())
    wanted = 0.4 * with_design["known"] / (4 * len(data.space.contexts))  # 4 draws of each
    assert share == pytest.approx(wanted, abs=1e-5)
    assert float(batch["weight"].mean()) == pytest.approx(1, abs=1e-5)
    # They are stretches of training drivers, and what a checkpoint keeps is enough to go on.
    known = batch["states"][simulated:]
    assert all(bool((data.space.contexts == x).all(dim=2).all(dim=1).any()) for x in known)
    other = build("acquisition=targeted", "acquisition.known_share=0.4")[1]
    other.load_state_dict(data.state_dict())
    for name, value in other.training_data().items():
        torch.testing.assert_close(value, batch[name], rtol=0, atol=0)


@pytest.mark.parametrize("choice", ["robust=real", "acquisition.known_share=0.0"])
def test_there_are_none_where_no_likelihood_tells_or_none_are_wanted(choice, build):
    estimator, data = build("acquisition=targeted", choice)
    data.warm_up()
    assert data.carry_out(data.plan(1, estimator.posterior.eval()), 1)["known"] == 0
