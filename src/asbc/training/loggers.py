"""Loggers that work without an account."""

import secrets
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger


def wandb_logger(
    save_dir: str | Path, offline: bool | None = None, **settings: Any
) -> WandbLogger:
    """A W&B logger that is offline unless someone is logged in.

    Args:
        save_dir: the run folder; a resumed run in the same folder continues the same W&B run.
        offline: True or False to decide; None to ask W&B whether there is a login.
        settings: passed on to `WandbLogger`, e.g. project, group, tags, notes, job_type.
    """
    import wandb

    if offline is None:
        offline = wandb.api.api_key is None
    save_dir = Path(save_dir)
    save_dir.mkdir(parents=True, exist_ok=True)
    identity = save_dir / "wandb_id.txt"
    if not identity.exists():
        identity.write_text(secrets.token_hex(4))
    return WandbLogger(
        save_dir=save_dir,
        offline=offline,
        id=identity.read_text().strip(),
        resume="allow",
        **settings,
    )
