"""A finished training run as others find it: its record, its settings, its data's arguments.

Imports nothing heavy, so that entry points can look at their arguments before Hydra starts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from asbc.training.folder import RunFolder, quoted
from asbc.utils.checks import InputError

# Overrides that do not make another method: where it ran, how it was logged, which seed.
INCIDENTAL = (
    *("seed", "threads", "tags", "ckpt_path", "logger", "callbacks", "debug", "hydra", "data"),
)


@dataclass(frozen=True)
class TrainedRun:
    """What a run folder says about its run."""

    folder: RunFolder
    seed: int
    overrides: tuple[str, ...]
    version: str
    config: dict[str, Any]  # resolved, plain values

    @property
    def variant(self) -> tuple[str, ...]:
        """Overrides beyond residual and acquisition that make this run another method."""
        named = [*INCIDENTAL, "residual", "acquisition"]
        if "paper" in self.config.get("tags", ()):  # the experiment chose only those two
            named.append("experiment")
        return tuple(
            text
            for text in self.overrides
            if _name(text).split(".")[0].split("/")[0] not in named
            or _name(text) == "data.context_steps"
            or _name(text).startswith(("residual.", "acquisition."))
        )


def open_run(path: str | Path) -> TrainedRun:
    """Read a run folder; a clear error if it is none, unfinished, or of another version."""
    folder = RunFolder(Path(path).absolute())
    if not folder.path.is_dir():
        raise InputError(f"run={path}: no such folder")
    if not folder.record.is_file() or not folder.config.is_file():
        raise InputError(
            f"run={path}: not a run folder; expected {folder.record.name} and "
            f"{folder.config.name}, as train.py writes them"
        )
    record = json.loads(folder.record.read_text())
    made_with = record.get("versions", {}).get("asbc", "unknown")
    if _series(made_with) != _series(version("asbc")):
        raise InputError(
            f"run={path}: trained with asbc {made_with}, but this is asbc {version('asbc')}; "
            f"install asbc {made_with} or train again"
        )
    if not folder.best.is_file():
        raise InputError(
            f"run={path}: no checkpoints/best.ckpt, so no round was finished; continue the run "
            f"with train.py ckpt_path={folder.shown}/checkpoints/last.ckpt"
        )
    return TrainedRun(
        folder,
        record["seed"],
        tuple(record["overrides"]),
        made_with,
        yaml.safe_load(folder.config.read_text()),
    )


def with_data_of_run(arguments: Sequence[str], groups: Path) -> list[str]:
    """Command-line arguments with the data of the run they name, where they give no other.

    An argument `data.x=y` changes one setting of the run's data. With `data=GROUP` only the time
    step and the context length are the run's, for these belong to the model.

    Args:
        arguments: the command line, with `run=RUN_DIR`.
        groups: folder of the data group's files, conf/data.

    Raises:
        SystemExit: if the run cannot be used; the message says why.
    """
    given = {_name(text): text.partition("=")[2].strip("'\"") for text in arguments}
    if "run" not in given or given["run"] in ("", "???"):
        return list(arguments)
    if {"-m", "--multirun"} & set(arguments):
        raise SystemExit("one run at a time: run the command once for each run folder")
    try:
        data = open_run(given["run"]).config["data"]
    except InputError as error:
        raise SystemExit(str(error)) from None
    if "data" in given:
        inherited = {name: data[name] for name in ("dt", "context_steps")}
        chosen = []
    else:
        inherited = {name: value for name, value in data.items() if not name.startswith("_")}
        chosen = [f"data={_group_of(data, groups)}"]
    values = [
        f"data.{name}={override_text(value)}"
        for name, value in inherited.items()
        if f"data.{name}" not in given
    ]
    # Folders of a sweep are named by overrides; their commas and equals signs need quotes.
    named = quoted(Path(given["run"]))
    rest = [f"run={named}" if _name(text) == "run" else text for text in arguments]
    return [*chosen, *values, *rest]


def override_text(value: Any) -> str:
    """A value in Hydra's override grammar.

    Example:
        >>> override_text({"a": [0.6, None, True], "b": "it's"})
        "{a:[0.6,null,true],b:'it\\\\'s'}"
    """
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{override_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(override_text, value)) + "]"
    return quoted(Path(value)) if isinstance(value, str) else json.dumps(value)


def _group_of(data: Mapping[str, Any], groups: Path) -> str:
    """The config group a data section came from; all its values are given besides."""
    for file in sorted(groups.glob("*.yaml")):
        content = yaml.safe_load(file.read_text())
        if content.get("_target_") == data["_target_"] and set(data) <= set(content):
            return file.stem
    raise SystemExit(
        f"no file in {groups} has _target_ {data['_target_']} with the run's settings; "
        "choose data with data=GROUP"
    )


def _series(text: str) -> list[str]:
    return text.split(".")[:2]


def _name(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
