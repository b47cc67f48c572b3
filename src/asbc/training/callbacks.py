"""What goes along with the loop: checkpoints that are whole or absent, and a progress bar."""

import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO
from tqdm import tqdm

from asbc.training.loop import PREDICTIVE_SCORE, RoundCallback
from asbc.utils.files import save_tensors

PREDICTIVE = -2  # in place of a round's number


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own writer goes through the system's temporary folder, often another disk."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write the checkpoint atomically."""
        save_tensors(checkpoint, path)


class ResumeCheckpoint(Checkpoint):
    """Saves the whole state of the run after every epoch, over the previous one.

    Lightning calls checkpoint callbacks after all others, so the state of a round that has just
    been closed, with its new simulations, is complete in the file.

    Args:
        path: file to write.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, except in a fast development run."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(self.path)


class RoundProgress(pl.Callback):
    """One bar per round on standard error, moved once an epoch; silent without a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._round = -1

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the epoch that has just been noted."""
        loop = next(c for c in trainer.callbacks if isinstance(c, RoundCallback))  # type: ignore[attr-defined]
        if loop.round_rows and PREDICTIVE_SCORE in loop.round_rows[-1]:
            self._show_check(loop, trainer.is_global_zero)
            return
        row = loop.epoch_rows[-1]
        if self._bar is None or row["round"] != self._round:
            name = f"round {int(row['round'])}/{loop.settings.rounds}"
            total = loop.settings.max_epochs
            self._open(name, "epoch", int(row["epoch"]), total, trainer.is_global_zero)
            self._round = int(row["round"])
        assert self._bar is not None
        self._bar.set_postfix_str(
            f"loss {row['train/loss']:.3f}, hold-out {row['val/loss']:.3f}, "
            f"{row['simulations']:.0f} simulations",
            refresh=False,
        )
        self._bar.update()

    def _show_check(self, loop: RoundCallback, shown: bool) -> None:
        """Show the check of a stage that follows the loop."""
        scores = [row[PREDICTIVE_SCORE] for row in loop.round_rows if PREDICTIVE_SCORE in row]
        if self._bar is None or self._round != PREDICTIVE:
            self._open("to predict", "check", len(scores) - 1, loop.later_checks, shown)
            self._round = PREDICTIVE
        assert self._bar is not None
        self._bar.set_postfix_str(f"score {scores[-1]:.4f}, best {min(scores):.4f}", refresh=False)
        self._bar.update(len(scores) - 1 - self._bar.n)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the terminal in order."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave the terminal in order."""
        self._close()

    def _open(self, name: str, unit: str, done: int, total: int, shown: bool) -> None:
        self._close()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=name,
            unit=unit,
            file=sys.stderr,
            dynamic_ncols=True,
            disable=not shown or not sys.stderr.isatty(),
        )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
