"""Where a training run reports to: W&B or whichever loggers, and the config shown at its start."""

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.loggers import Logger, WandbLogger
from rich.console import Console
from rich.syntax import Syntax
from rich.tree import Tree

from asbc.run import Run
from asbc.utils.files import write_text

IDENTITY = "wandb.json"  # in the run folder: what it takes to go on with the W&B run


def wandb_logger(
    save_dir: str | Path,
    project: str,
    entity: str | None = None,
    offline: bool | None = None,
    **settings: Any,
) -> WandbLogger:
    """A W&B logger that is offline unless someone is logged in.

    Args:
        save_dir: the run folder; a resumed run in the same folder continues the same W&B run.
        project, entity: where the run belongs.
        offline: True or False to decide; None to ask WANDB_MODE, and W&B whether there is a login.
        settings: passed on to `WandbLogger`, e.g. group, tags, notes, job_type.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE")
    if offline is None:
        wanted = mode in (None, "online")
        offline = not (wanted and wandb.login(prompt=False, verify=False))
    save_dir = Path(save_dir)
    save_dir.mkdir(parents=True, exist_ok=True)
    known = wandb_identity(save_dir)
    identity = {"id": known["id"] if known else secrets.token_hex(4), "project": project}
    identity |= {"entity": entity, "offline": offline}
    write_text(save_dir / IDENTITY, json.dumps(identity) + "\n")
    settings["tags"] = list(settings.get("tags") or [])
    return WandbLogger(
        save_dir=save_dir,
        offline=offline,
        # Lightning says so in the environment only, which W&B has read by now.
        mode=mode or ("offline" if offline else "online"),
        id=identity["id"],
        resume="allow",
        project=project,
        entity=entity,
        **settings,
    )


def wandb_identity(folder: Path) -> dict[str, Any] | None:
    """Id, project, entity and mode of the W&B run of a run folder; None if it has none."""
    path = folder / IDENTITY
    return json.loads(path.read_text()) if path.is_file() else None


def announce(loggers: Sequence[Logger], config: Mapping[str, Any]) -> None:
    """Give every logger the whole config, and W&B an axis of rounds beside that of steps."""
    method = f"{config['residual']['name']}-{config['acquisition']['name']}"
    for logger in loggers:
        logger.log_hyperparams({**config, "method": method})  # what the dashboard groups by
        if isinstance(logger, WandbLogger):
            logger.experiment.define_metric("round/round")
            logger.experiment.define_metric("round/*", step_metric="round/round")


def close_wandb(loggers: Sequence[Logger], run: Run) -> None:
    """Attach the best round's weights and end the W&B run.

    An open one would swallow the next job of a multirun.
    """
    import wandb

    for logger in loggers:
        if isinstance(logger, WandbLogger) and wandb.run is not None:
            if run.best.is_file():
                artifact = wandb.Artifact(f"posterior-{wandb.run.id}", type="model")
                artifact.add_file(str(run.best))
                artifact.add_file(str(run.config_file))
                logger.experiment.log_artifact(artifact, aliases=["best"])
            wandb.finish()


def config_tree(config: Mapping[str, Any]) -> Tree:
    """A branch for each section, with its values below."""
    tree = Tree("config")
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            text = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True).rstrip()
            tree.add(name).add(Syntax(text, "yaml", background_color="default"))
        else:
            tree.add(f"{name}: {json.dumps(value)}")
    return tree


def show_config(config: Mapping[str, Any]) -> None:
    """Print the tree, unless nobody is watching: jobs and pipes have config.yaml."""
    if sys.stdout.isatty():
        Console().print(config_tree(config))
