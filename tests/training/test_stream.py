"""A stream: every chunk is new, seen once, and the chunks are one training."""

import pandas as pd
import pytest
import pytorch_lightning as pl
import torch

from asbc.errors import InputError
from asbc.run import Run
from asbc.training.loop import one_cycle
from asbc.training.stream import StreamCallback

CHUNKS, CHUNK, BATCH = 4, 48, 16


class Recorder(pl.Callback):
    """Notes the rate of every step, the optimiser's step count and each chunk's parameters."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.adam_steps: list[int] = []
        self.theta: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        optimizer = trainer.optimizers[0]
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.adam_steps.append(int(next(iter(optimizer.state.values()))["step"]))
        self.theta.append(batch["theta"])


def run(build, overrides, tmp_path, **options):
    estimator, data = build(*overrides)
    loop = StreamCallback(data.settings, data.space.seed, Run(tmp_path), **options)
    recorder = Recorder()
    build.fit(estimator, data, loop, recorder)
    return loop, recorder, data


@pytest.fixture
def streamed(build, tiny_stream, tmp_path):
    return run(build, tiny_stream, tmp_path)


def test_no_simulation_is_seen_twice(streamed):
    _, recorder, data = streamed
    theta = torch.cat(recorder.theta)
    assert len(theta) == len(theta.unique(dim=0)) == CHUNKS * CHUNK
    assert data.simulations >= CHUNKS * CHUNK  # thrown away ones are counted too


def test_the_optimiser_goes_on_over_the_chunks(streamed):
    _, recorder, _ = streamed
    assert recorder.adam_steps == list(range(1, CHUNKS * CHUNK // BATCH + 1))


def test_the_rate_is_torchs_one_cycle(streamed):
    _, recorder, _ = streamed
    steps = len(recorder.rates)
    # torch's peak comes one step before 30% of the steps: with many of them that is no difference.
    many = 20_001
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    peer = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, many, cycle_momentum=False, final_div_factor=4000
    )
    expected = []
    for step in range(many):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < many - 1:
            peer.step()
    ours = [one_cycle(step / (many - 1)) for step in range(many)]
    assert ours == pytest.approx(expected, abs=3e-4)
    rates = [1e-3 * one_cycle(step / steps) for step in range(steps)]
    assert recorder.rates == pytest.approx(rates)


def test_a_constant_rate_stays(build, tiny_stream, tmp_path):
    _, recorder, _ = run(build, tiny_stream, tmp_path, schedule="constant")
    assert set(recorder.rates) == {1e-3}


def test_minutes_shorten_the_budget_and_are_kept(build, tiny_stream, tmp_path, monkeypatch):
    monkeypatch.setattr("asbc.training.stream._seconds_per_chunk", lambda *_: 20.0)
    loop, recorder, _ = run(build, tiny_stream, tmp_path, minutes=1.0)
    assert loop.rounds == 2  # three chunks of 20 s
    assert len(recorder.rates) == 3 * CHUNK // BATCH
    assert pd.read_csv(tmp_path / "rounds.csv")["round"].tolist() == [0, 1, 2]
    resumed = StreamCallback(loop.settings, 0, Run(tmp_path), minutes=1.0)
    resumed.load_state_dict(loop.state_dict())
    assert resumed.rounds == 2


def test_the_speed_is_measured_without_touching_the_model(build, tiny_stream, tmp_path):
    from asbc.training.stream import _seconds_per_chunk

    estimator, data = build(*tiny_stream)
    data.setup()
    data.warm_up()
    before = [p.clone() for p in estimator.parameters()]
    assert 0 < _seconds_per_chunk(data, estimator) < 60
    assert all(torch.equal(a, b) for a, b in zip(before, estimator.parameters(), strict=True))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("acquisition.simulations=0", "acquisition.simulations=0"),
        ("acquisition.minutes=-1", "acquisition.minutes=-1"),
        ("acquisition.chunk=0", "acquisition.chunk=0"),
        ("acquisition.lambda_share=1.5", "acquisition.lambda_share=1.5; expected a share"),
        ("acquisition.alpha_share=-0.5", "acquisition.alpha_share=-0.5; expected a share"),
        ("training.rounds=3", "training.rounds=3; a stream"),
    ],
)
def test_budgets_that_cannot_work_are_refused(build, tiny_stream, override, message):
    with pytest.raises(InputError, match=message):
        build(*tiny_stream, override)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"schedule": "linear"}, "loop.schedule=linear; expected one_cycle or constant"),
        ({"minutes": 0}, "loop.minutes=0; expected a number above 0"),
    ],
)
def test_options_that_cannot_work_are_refused(build, tiny_stream, tmp_path, option, message):
    _, data = build(*tiny_stream)
    with pytest.raises(InputError, match=message):
        StreamCallback(data.settings, 0, Run(tmp_path), **option)


def test_parameters_may_come_from_the_posterior_of_observed_drivers(build, tiny_stream, tmp_path):
    run(build, [*tiny_stream, "acquisition.lambda_share=0.5"], tmp_path)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds["lambda"].tolist() == [1.0, 0.5, 0.5, 0.5]
