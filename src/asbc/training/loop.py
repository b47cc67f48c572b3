"""The active loop as a callback: it closes rounds, asks for new simulations and stops the fit.

With it the rule that says when a loss has stopped improving, and the tables of epochs and rounds.
"""

import copy
import csv
import io
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.posterior import Posterior
from asbc.run import Run
from asbc.training.datamodule import SimulationDataModule
from asbc.training.settings import LoopSettings
from asbc.utils.files import save_tensors, write_text
from asbc.utils.random import key

log = logging.getLogger(__name__)

# A one-cycle rate starts at PEAK / 25 and rises over the first 30% of the steps, as torch's does.
START, RISE, END = 1 / 25, 0.3, 1e-5

HOME = "cpu"  # the device of simulations
SIMULATED = "simulated"  # the objective of the loop: the exact posterior of simulated drivers
PREDICTIVE_SCORE = "predictive_score"  # in rounds.csv: of a stage that follows the loop

Row = dict[str, float]
Weights = dict[str, Tensor]

# What a checkpoint keeps of the loop: values, its two rules, and of these what they counted.
STATE = (
    *("round", "epoch", "stopped", "finished", "round_start", "trained_loss"),
    *("round_weights", "best_weights", "design"),
    *("epoch_rows", "round_rows", "train_seconds"),
)
RULES = ("epochs_rule", "rounds_rule")
COUNTERS = ("best", "best_index", "updates")


@dataclass
class Patience:
    """Counts how long a loss has not improved.

    Example:
        >>> rule = Patience(patience=2)
        >>> [rule.update(loss) for loss in (3.0, 2.0, 2.0, 2.5)]
        [True, True, False, False]
        >>> rule.exhausted, rule.best, rule.best_index
        (True, 2.0, 1)
    """

    patience: int
    min_delta: float = 0.0
    best: float = math.inf
    best_index: int = -1
    updates: int = 0

    def update(self, loss: float) -> bool:
        """Note the next loss; True if it is lower than the best by more than `min_delta`."""
        improved = loss < self.best - self.min_delta  # never for NaN
        if improved:
            self.best, self.best_index = loss, self.updates
        self.updates += 1
        return improved

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` losses brought no improvement."""
        return self.updates - 1 - self.best_index >= self.patience

    def state_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def selected_by_rule(
    losses: Sequence[float], patience: int = 1, min_delta: float = 1e-3, min_rounds: int = 3
) -> int:
    """The round that the stopping rule selects, of the losses of all rounds.

    Example:
        >>> selected_by_rule([5.0, 4.0, 4.5, 4.5, 3.0])
        1
    """
    rule = Patience(patience, min_delta)
    for round, loss in enumerate(losses):
        rule.update(loss)
        if round >= min_rounds and rule.exhausted:
            break
    return rule.best_index


@runtime_checkable
class RoundObserver(Protocol):
    """A callback that measures the posterior whenever a round is closed."""

    def on_round_end(self, estimator: PosteriorEstimator, round: int) -> Row: ...


class RoundCallback(pl.Callback):
    """Runs the rounds of the active loop inside one `Trainer.fit`.

    A round ends when the hold-out loss has not improved for `patience` epochs, or after
    `max_epochs`; with `steps`, after as many gradient steps as it has. It then goes back to the
    weights of its best epoch; these propose and score the next round's candidates and are where
    its training starts, with a fresh optimiser: the moments that Adam gathered on the old buffer,
    past those weights, describe neither. The weights a round starts from are a candidate for its
    best, so a round whose simulations do not help declines.

    The loop ends after `rounds` active rounds, or once `patience_rounds` rounds brought no
    improvement and at least `min_rounds` are done; with `go_on`, the rounds after that are run for
    the record. The weights of the best round up to there are restored and saved.

    All state is in `state_dict` and all randomness is keyed, so a resumed run repeats exactly what
    an uninterrupted one does.

    Args:
        settings: budget and stopping rules.
        seed: the run's seed.
        run: where its tables and the best round's weights go.
        schedule: of the learning rate within a round: `constant`, or `one_cycle`, which has to
            know the round's length (`training.steps`).
    """

    def __init__(
        self, settings: LoopSettings, seed: int, run: Run, schedule: str = "constant"
    ) -> None:
        if schedule not in SCHEDULES:
            raise InputError(f"loop.schedule={schedule}; expected {' or '.join(SCHEDULES)}")
        self.schedule = SCHEDULES[schedule]
        self.settings = settings
        self.check()
        self.seed = seed
        self.run = run
        self.round = 0
        self.epoch = 0  # within the round
        self.round_start = 0  # the first gradient step of the round
        self.trained_loss = math.inf  # the best of this round's own epochs
        self.stopped = False  # whether the stopping rule has ended the choice of a round
        self.finished = False
        self.epochs_rule = Patience(settings.patience)
        self.rounds_rule = Patience(settings.patience_rounds, settings.min_delta_rounds)
        self.round_weights: Weights = {}  # of the round's best epoch so far
        self.best_weights: Weights = {}  # of the best round so far
        self.design: Row = {}  # how this round's simulations were chosen
        self.epoch_rows: list[Row] = []
        self.round_rows: list[Row] = []
        self.train_seconds = 0.0
        self.later_checks = 0  # of a stage that follows
        self.later_score: float | None = None  # of the weights that such a stage keeps
        self._epoch_start = 0.0

    @property
    def best_loss(self) -> float:
        """Hold-out loss of the best round; infinite before any round is closed."""
        return self.rounds_rule.best

    @property
    def best_round(self) -> int:
        """The round whose weights are kept; -1 before any round is closed."""
        return self.rounds_rule.best_index

    @property
    def result(self) -> float:
        """What the run is judged by: its hold-out loss, or the score of a stage that followed."""
        return self.best_loss if self.later_score is None else self.later_score

    def check(self) -> None:
        """Raise if the schedule cannot know how long a round is."""
        if self.schedule is one_cycle and self.settings.steps is None:
            raise InputError(
                "loop.schedule=one_cycle needs to know how long a round is; set training.steps"
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Simulate the warm-up unless a checkpoint brought simulations; stop a finished run."""
        data, estimator = parts(trainer)
        if self.finished:
            trainer.should_stop = True  # unless another stage follows
        elif self.epoch_rows and not len(data.buffer):
            raise InputError("the checkpoint has no simulation buffer; it cannot be resumed")
        elif not len(data.buffer):
            self.design = on_first(trainer, data.warm_up)
            content = data.buffer.content
            with on_cpu(estimator) as posterior:
                posterior.set_scaling(content.theta, content.observed)
                if not data.simulator.exact:
                    posterior.set_target_scaling(content.theta)
                scaled = posterior.state_dict()
            estimator.posterior.load_state_dict(scaled)
            self.round_weights = copy_weights(estimator)
        data.batches_left = self._steps_left()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set this step's learning rate."""
        if self.finished:
            return
        _, estimator = parts(trainer)
        rate = estimator.hparams["learning_rate"] * self.schedule(self._progress(trainer))
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def _progress(self, trainer: pl.Trainer) -> float:
        """How much of the schedule is done, 0 to 1."""
        steps = self._round_steps(self.round)
        return 0.0 if steps is None else (trainer.global_step - self.round_start) / steps

    def _round_steps(self, round: int) -> int | None:
        """Gradient steps of a round; None where its losses decide."""
        return self.settings.round_steps(round)

    def _steps_left(self) -> int | None:
        """Gradient steps until this round is over; None where its losses decide."""
        steps = self._round_steps(self.round)
        # Of the last epoch's end: when a fit begins, the trainer does not know yet.
        done = int(self.epoch_rows[-1]["step"]) if self.epoch_rows else 0
        return None if steps is None else self.round_start + steps - done

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Key this epoch's dropout and batch order."""
        data, _ = parts(trainer)
        # Rows of other processes need masks of their own.
        process = [trainer.global_rank] if trainer.global_rank else []
        torch.manual_seed(key(self.seed, "dropout", self.round, self.epoch, *process))
        data.order_key = key(self.seed, "batches", self.round, self.epoch)
        self._epoch_start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the epoch, and close the round if it is over."""
        if self.finished:
            return
        data, estimator = parts(trainer)
        self.train_seconds += time.perf_counter() - self._epoch_start
        loss = float(trainer.callback_metrics["val/loss"])
        self.epoch_rows.append(
            {
                "step": trainer.global_step,
                "round": self.round,
                "epoch": self.epoch,
                "train/loss": float(trainer.callback_metrics["train/loss"]),
                "val/loss": loss,
                "simulations": data.simulations,
            }
        )
        if self.epochs_rule.update(loss):
            self.round_weights = copy_weights(estimator)
        self.trained_loss = min(self.trained_loss, loss if math.isfinite(loss) else math.inf)
        self.epoch += 1
        diverged = not math.isfinite(loss)
        if diverged:
            log.warning("round %d: hold-out loss is %s; the round ends here", self.round, loss)
        if diverged or self._round_is_over():
            self._close_round(trainer)
        data.batches_left = self._steps_left()
        if trainer.is_global_zero:
            write_table(self.run.epochs, self.epoch_rows)

    def _round_is_over(self) -> bool:
        left = self._steps_left()
        if left is not None:
            return left <= 0
        return self.epochs_rule.exhausted or self.epoch >= self.settings.max_epochs

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the best round's weights in the model."""
        if self.best_weights:
            pl_module.load_state_dict(self.best_weights)

    def _close_round(self, trainer: pl.Trainer) -> None:
        data, estimator = parts(trainer)
        if not math.isfinite(self.epochs_rule.best) and not self.best_weights:
            raise InputError(
                "training diverged in the warm-up: no epoch had a finite hold-out loss; lower "
                "estimator.learning_rate or check the data"
            )
        last = copy_weights(estimator)
        estimator.load_state_dict(self.round_weights)
        self._note_round(trainer, estimator)
        if not self.stopped and self.rounds_rule.update(self.epochs_rule.best):
            self.best_weights = self.round_weights
            if trainer.is_global_zero:
                loss = {"objective": SIMULATED, "loss": self.best_loss}
                self.save_best(estimator, self.best_weights, self.best_round, loss)
        self.stopped = self.stopped or self._saturated()
        if self.round >= self.settings.rounds or (self.stopped and not self.settings.go_on):
            self.finished = trainer.should_stop = True
            return
        self.round, self.epoch, self.train_seconds = self.round + 1, 0, 0.0
        self.round_start, self.trained_loss = trainer.global_step, math.inf
        with on_cpu(estimator) as posterior:
            plan = data.plan(self.round, posterior)  # by all: they share its dearest part
            self.design = on_first(trainer, lambda: data.carry_out(plan, self.round))
        self._begin_round(trainer, last)

    def _begin_round(self, trainer: pl.Trainer, last: Weights) -> None:
        """Start its training.

        Args:
            trainer: whose module has the best weights so far.
            last: the weights after the last step.
        """
        # The loss to beat, or the round declines.
        self.epochs_rule = Patience(self.settings.patience, best=self.epochs_rule.best)
        for optimizer in trainer.optimizers:
            optimizer.state.clear()

    def _saturated(self) -> bool:
        return self.round >= self.settings.min_rounds and self.rounds_rule.exhausted

    def _note_round(self, trainer: pl.Trainer, estimator: PosteriorEstimator) -> None:
        """Add the round to the tables, which are the first process's."""
        if not trainer.is_global_zero:
            return
        row: Row = {
            "round": self.round,
            "loss": self.epochs_rule.best,
            "trained_loss": self.trained_loss,
            "declined": int(self.epochs_rule.best_index < 0),
            "epochs": self.epoch,
            "steps": trainer.global_step - self.round_start,
            "best_epoch": self.epochs_rule.best_index,
            **self.design,
            "seconds_train": self.train_seconds,
        }
        with on_cpu(estimator):
            for observer in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(observer, RoundObserver):
                    row |= observer.on_round_end(estimator, self.round)
        self.note(trainer, row)
        log.info(
            "round %d: hold-out loss %.4f after %d epochs, %d simulations, %.0f s training",
            *(self.round, row["loss"], self.epoch, row["simulations"], self.train_seconds),
        )

    def note(self, trainer: pl.Trainer, row: Row) -> None:
        """Add a row to rounds.csv and tell the loggers."""
        self.round_rows.append(row)
        write_table(self.run.rounds, self.round_rows)
        for logger in trainer.loggers:
            metrics = {f"round/{name}": value for name, value in row.items()}
            logger.log_metrics(metrics, step=trainer.global_step)

    def save_best(
        self, estimator: PosteriorEstimator, weights: Weights, round: int, content: dict[str, Any]
    ) -> None:
        """Write the weights that the run keeps so far, of `round`, with what is said of them."""
        saved = {
            "state_dict": weights,
            "hyper_parameters": dict(estimator.hparams),
            "pytorch-lightning_version": pl.__version__,
            "round": round,
        }
        save_tensors(saved | content, self.run.best)

    def adopt(self, estimator: PosteriorEstimator, loss: float) -> None:
        """Count the estimator's weights as the outcome of this loop, which then has no rounds.

        Args:
            estimator: with its weights.
            loss: of them on simulated drivers; NaN where nobody knows.
        """
        self.best_weights = copy_weights(estimator)
        rule = self.rounds_rule
        rule.best, rule.best_index, rule.updates = loss, 0, 1
        self.finished = True

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on."""
        return {name: getattr(self, name) for name in STATE} | {
            name: getattr(self, name).state_dict() for name in RULES
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved."""
        for name in STATE:
            setattr(self, name, state_dict[name])
        for name in RULES:
            # Counters come from the checkpoint, the limits from the present settings.
            rule = getattr(self, name)
            counters = {k: v for k, v in state_dict[name].items() if k in COUNTERS}
            setattr(self, name, Patience(rule.patience, rule.min_delta, **counters))


def one_cycle(progress: float) -> float:
    """Share of the peak rate after a share `progress` of the steps: cosines up, then down.

    Example:
        >>> [round(one_cycle(p), 3) for p in (0.0, 0.15, 0.3, 0.65, 1.0)]
        [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    if progress < RISE:
        return _cosine(START, 1.0, progress / RISE)
    return _cosine(1.0, END, min(1.0, (progress - RISE) / (1 - RISE)))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "one_cycle": one_cycle,
    "constant": lambda progress: 1.0,
}


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def write_table(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows under the union of their columns, in order of first appearance; atomically."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(Path(path), text.getvalue())


def copy_weights(module: torch.nn.Module) -> Weights:
    """A detached copy of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def on_first(trainer: pl.Trainer, simulate: Callable[[], Row]) -> Row:
    """What filling the buffer returns, done by the first process; the others get its buffer."""
    if trainer.world_size == 1:
        return simulate()
    data, _ = parts(trainer)
    done: Any = (simulate(), data.state_dict()) if trainer.is_global_zero else None
    row, state = trainer.strategy.broadcast(done)
    if not trainer.is_global_zero:
        data.load_state_dict(state)
    return row


@contextmanager
def on_cpu(estimator: PosteriorEstimator) -> Iterator[Posterior]:
    """The estimator's posterior on the CPU, where designs, simulations and scores are made.

    On another device it is a copy, in the estimator's own for as long as the block lasts.
    """
    own = estimator.posterior
    if own.u_mean.device.type == HOME:
        yield own
        return
    estimator.posterior = copy.deepcopy(own).cpu()
    try:
        yield estimator.posterior
    finally:
        estimator.posterior = own


def parts(trainer: pl.Trainer) -> tuple[SimulationDataModule, PosteriorEstimator]:
    """The trainer's own data module and estimator."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return cast(SimulationDataModule, data), cast(PosteriorEstimator, trainer.lightning_module)
