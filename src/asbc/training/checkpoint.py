"""Checkpoints that are whole or absent: written beside the old one, then renamed over it."""

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO


def atomic_save(content: dict[str, Any], path: str | Path) -> None:
    """`torch.save` that a kill at any moment cannot leave half-done."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, hence on the same file system: only there is a rename atomic.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own writer goes through the system's temporary folder, often another disk."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write the checkpoint atomically."""
        atomic_save(checkpoint, path)


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
