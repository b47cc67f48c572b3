"""The loop in this process: what happens at the end of epochs and rounds."""

import io
import math
import sys

import pandas as pd
import pytest
import pytorch_lightning as pl
import torch

from asbc.errors import InputError
from asbc.run import Run
from asbc.training.callbacks import RoundProgress
from asbc.training.loop import RoundCallback, RoundObserver, one_cycle
from asbc.training.stream import ContinuousCallback
from asbc.utils.files import load_tensors


class ScriptedLosses(RoundCallback):
    """A loop that reads its hold-out losses from a script instead of the model."""

    def __init__(self, losses, *args):
        super().__init__(*args)
        self.script = iter(losses)
        self.weights = []  # after each epoch, before the round is closed

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append(first_weight(pl_module))
        trainer.callback_metrics["val/loss"] = torch.tensor(next(self.script))
        super().on_train_epoch_end(trainer, pl_module)


def first_weight(module: torch.nn.Module) -> torch.Tensor:
    return next(module.parameters()).detach().clone()


def run(build, tmp_path, losses, *overrides, callbacks=()):
    estimator, data = build(*overrides)
    loop = ScriptedLosses(losses, data.settings, data.space.seed, Run(tmp_path))
    build.fit(estimator, data, loop, *callbacks)
    return loop, estimator, data


PATIENT = ("training.patience=2", "training.max_epochs=4", "training.rounds=4")


def epochs_by_round(loop):
    table = pd.DataFrame(loop.epoch_rows)
    return table.groupby("round").size().tolist()


def test_a_round_ends_by_patience_or_at_its_last_epoch(build, tmp_path):
    losses = [5.0, 6.0, 6.0] + [4.0, 3.0, 2.0, 1.0]
    loop, _, _ = run(build, tmp_path, losses, *PATIENT, "training.rounds=1")
    assert epochs_by_round(loop) == [3, 4]
    assert [row["best_epoch"] for row in loop.round_rows] == [0, 3]
    assert [row["loss"] for row in loop.round_rows] == [5.0, 1.0]


def test_the_loop_stops_once_rounds_stop_improving(build, tmp_path):
    # One epoch a round; improvements of 0.0005 are below min_delta.
    losses = [5.0, 4.0, 4.5, 3.9995, 3.0]
    overrides = ("training.max_epochs=1", "training.rounds=4", "training.min_rounds=3")
    loop, _, _ = run(build, tmp_path, losses, *overrides)
    # Round 2 did not improve, but fewer than 3 rounds were done; round 3 gained too little.
    assert [row["round"] for row in loop.round_rows] == [0, 1, 2, 3]
    assert (loop.best_round, loop.best_loss) == (1, 4.0)


def test_a_loop_that_keeps_improving_uses_all_its_rounds(build, tmp_path):
    losses = [5.0, 4.0, 3.0, 2.0, 1.0]
    loop, _, data = run(build, tmp_path, losses, "training.max_epochs=1", "training.rounds=4")
    assert loop.best_round == 4 and data.simulations == 96 + 4 * 32
    assert data.buffer.content.round.unique().tolist() == [1, 2, 3, 4]


def test_the_best_epoch_of_the_best_round_is_what_remains(build, tmp_path):
    losses = [5.0, 6.0, 6.0] + [4.5, 3.0, 3.5, 3.5] + [4.0, 4.0, 4.0]
    loop, estimator, _ = run(build, tmp_path, losses, *PATIENT, "training.rounds=2")
    best = loop.weights[4]  # second epoch of round 1
    assert torch.equal(first_weight(estimator), best)
    fresh, _ = build("seed=5")
    found = load_tensors(Run(tmp_path).best)
    fresh.on_load_checkpoint(found)
    fresh.load_state_dict(found["state_dict"])
    assert torch.equal(first_weight(fresh), best)
    assert (found["round"], found["loss"]) == (1, 3.0)


def test_a_round_starts_from_the_last_ones_best_epoch_with_a_fresh_optimiser(build, tmp_path):
    class Watch(pl.Callback):
        def __init__(self):
            self.starts, self.moments = [], []

        def on_train_epoch_start(self, trainer, pl_module):
            self.starts.append(first_weight(pl_module))
            self.moments.append(len(trainer.optimizers[0].state))

    watch = Watch()
    losses = [5.0, 6.0, 6.0] + [4.0] * 3
    loop, _, _ = run(build, tmp_path, losses, *PATIENT, "training.rounds=1", callbacks=[watch])
    assert torch.equal(watch.starts[3], loop.weights[0])
    assert watch.moments[0] == watch.moments[3] == 0
    assert watch.moments[1] > 0 and watch.moments[4] > 0


class Starts(pl.Callback):
    """The weights that each epoch starts from, and its learning rates."""

    def __init__(self):
        self.starts, self.rates = [], []

    def on_train_epoch_start(self, trainer, pl_module):
        self.starts.append(first_weight(pl_module))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_a_round_that_finds_nothing_better_declines(build, tmp_path):
    """Its weights are those it started from, and so does the next round start from them."""
    losses = [5.0, 6.0, 6.0] + [7.0, 8.0] + [4.0, 6.0, 6.0]
    watch = Starts()
    loop, _, _ = run(build, tmp_path, losses, *PATIENT, "training.rounds=2", callbacks=[watch])
    assert [row["declined"] for row in loop.round_rows] == [0, 1, 0]
    assert [row["loss"] for row in loop.round_rows] == [5.0, 5.0, 4.0]
    assert [row["trained_loss"] for row in loop.round_rows] == [5.0, 7.0, 4.0]
    assert torch.equal(watch.starts[5], loop.weights[0])
    assert loop.best_round == 2


def test_rounds_after_the_rule_has_stopped_are_for_the_record(build, tmp_path):
    losses = [5.0, 4.0, 4.5, 4.5, 3.0]
    overrides = ("training.max_epochs=1", "training.rounds=4", "training.min_rounds=2")
    loop, estimator, _ = run(build, tmp_path, losses, *overrides, "training.go_on=true")
    assert [row["round"] for row in loop.round_rows] == [0, 1, 2, 3, 4]
    assert loop.round_rows[4]["loss"] == 3.0
    assert (loop.best_round, loop.best_loss) == (1, 4.0)
    assert torch.equal(first_weight(estimator), loop.weights[1])


@pytest.mark.parametrize("steps", ["10", "[4,3,3]"])
def test_gradient_steps_are_what_the_config_says_in_all(build, tmp_path, steps):
    """96 to 112 simulations in batches of 32 are 3 or 4 steps an epoch."""
    estimator, data = build("training.rounds=2", f"training.steps={steps}")
    loop = RoundCallback(data.settings, data.space.seed, Run(tmp_path), schedule="one_cycle")
    watch = Starts()
    build.fit(estimator, data, loop, watch)
    assert [row["steps"] for row in loop.round_rows] == [4, 3, 3]
    assert loop.epoch_rows[-1]["step"] == len(watch.rates) == 10
    # One cycle in each round: it starts low, and at a rate that its own length decides.
    assert watch.rates[0] == watch.rates[4] == watch.rates[7] == pytest.approx(1e-3 / 25)
    assert max(watch.rates) <= 1e-3


def test_one_training_over_all_rounds_goes_on_from_its_last_step(build, tmp_path):
    estimator, data = build("training.rounds=2", "training.max_epochs=2")
    loop = ContinuousCallback(data.settings, data.space.seed, Run(tmp_path), "one_cycle")
    watch, ends = Starts(), []

    class Ends(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            ends.append(len(trainer.optimizers[0].state))

    build.fit(estimator, data, Ends(), loop, watch)
    steps = [row["steps"] for row in loop.round_rows]
    assert steps == [2 * 3, 2 * 4, 2 * 4]
    expected = [1e-3 * one_cycle(step / sum(steps)) for step in range(sum(steps))]
    assert watch.rates == pytest.approx(expected)
    assert all(ends) and not any(row["declined"] for row in loop.round_rows)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.steps=2"], "training.steps=2; expected a whole number of at least 3"),
        (["training.steps=[1,2]"], r"training.steps=\[1, 2\]; expected a number, or 3 of them"),
        (
            ["training.symmetry=maybe"],
            "training.symmetry=maybe; expected one of true, false",
        ),
        (["training.go_on=2"], "training.go_on=2; expected one of true, false"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(build, overrides, message):
    with pytest.raises(InputError, match=message):
        build(*overrides)


def test_one_cycle_needs_to_know_the_steps(build, tmp_path):
    _, data = build()
    with pytest.raises(InputError, match="loop.schedule=one_cycle needs to know"):
        RoundCallback(data.settings, 0, Run(tmp_path), schedule="one_cycle")


def test_what_a_round_observer_measures_is_in_the_table(build, tmp_path):
    class Observer(pl.Callback):
        def on_round_end(self, estimator, round):
            return {"rmse_s": 2.0 - round, "weight": float(first_weight(estimator).sum())}

    assert isinstance(Observer(), RoundObserver)
    losses = [5.0, 6.0, 6.0, 4.0, 5.0, 5.0]
    loop, _, _ = run(
        build, tmp_path, losses, *PATIENT, "training.rounds=1", callbacks=[Observer()]
    )
    table = pd.read_csv(tmp_path / "rounds.csv")
    assert table["rmse_s"].tolist() == [2.0, 1.0]
    # The observer sees the round's best weights, not its last.
    expected = [float(loop.weights[0].sum()), float(loop.weights[3].sum())]
    assert table["weight"].tolist() == pytest.approx(expected)


def test_the_tables_hold_what_the_user_is_promised(build, tmp_path):
    losses = [5.0, 6.0, 6.0, 4.0, 5.0, 5.0]
    run(build, tmp_path, losses, *PATIENT, "training.rounds=1")
    epochs = pd.read_csv(tmp_path / "metrics.csv")
    assert epochs["val/loss"].tolist() == losses
    assert epochs["simulations"].tolist() == [96] * 3 + [128] * 3
    assert {"step", "round", "epoch", "train/loss"} <= set(epochs)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    promised = ["loss", "lambda", "alpha", "synthetic_share", "leak_rate", "redraws"]
    promised += ["simulations", "seconds_train", "seconds_simulate", "score_q05", "score_q95"]
    assert set(promised) <= set(rounds)
    assert rounds["lambda"].tolist() == [1.0, 0.9] and rounds["alpha"].tolist() == [0.0, 0.1]


def test_the_progress_bar_shows_round_epoch_loss_and_simulations(build, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    losses = [5.0, 6.0, 6.0, 4.0, 5.0, 5.0]
    for terminal in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", terminal)
        run(build, tmp_path, losses, *PATIENT, "training.rounds=1", callbacks=[RoundProgress()])
        shown = terminal.getvalue()
        if terminal.isatty():
            assert "round 0/1" in shown and "round 1/1" in shown and "3/4" in shown
            assert "hold-out 5.000, 128 simulations" in shown
        else:
            assert "round" not in shown


def test_a_diverged_round_is_left_and_the_loop_goes_on(build, tmp_path, caplog):
    losses = [5.0, 4.0, 4.0, 4.0, math.nan] + [3.0] * 3
    loop, estimator, _ = run(
        build, tmp_path, losses, *PATIENT, "training.rounds=2", "training.max_epochs=3"
    )
    assert "hold-out loss is nan" in caplog.text
    assert (loop.best_round, loop.best_loss) == (2, 3.0)
    assert epochs_by_round(loop) == [3, 2, 3]


def test_a_warm_up_that_diverges_is_an_error(build, tmp_path):
    with pytest.raises(InputError, match="diverged in the warm-up.*estimator.learning_rate"):
        run(build, tmp_path, [math.nan], *PATIENT)
