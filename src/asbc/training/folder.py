"""The run folder: what is saved about a run, who may write to it, and how to resume it.

Imports nothing heavy, so that `train.py` can look at its arguments before Hydra starts.
"""

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

PACKAGES = ("asbc", "torch", "pytorch-lightning", "hydra-core", "nflows", "numpy", "pandas")

LAST = "last"  # ckpt_path of a job that may have been started before


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock file; whether it could be had. It is free again when the process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


class RunFolder:
    """Names of the files of one run.

    Args:
        path: the folder, e.g. Hydra's output folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.record = self.path / "run.json"
        self.last = self.path / "checkpoints" / "last.ckpt"
        self.best = self.path / "checkpoints" / "best.ckpt"

    @property
    def shown(self) -> str:
        """The path as a user would type it: relative where the folder is below the current one."""
        here = Path.cwd()
        return str(self.path.relative_to(here) if self.path.is_relative_to(here) else self.path)

    def checkpoint(self, given: str | None) -> str | None:
        """What `ckpt_path` means here: `last` is this folder's own, if it has one already."""
        if given == LAST:
            return str(self.last) if self.last.exists() else None
        return given

    @contextmanager
    def claim(self, resuming: bool) -> Iterator[None]:
        """Hold the folder for this process; refuse one in use, or that holds another run."""
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock") as mine:
            if not mine:
                _refuse(f"{self.shown}: another process is writing to this run")
            if self.last.exists() and not resuming:
                _refuse(
                    f"{self.shown} already holds a run; continue it with "
                    f"ckpt_path={self.shown}/checkpoints/last.ckpt or choose another folder"
                )
            for leftover in self.path.rglob(".*.partial"):  # of a killed process
                leftover.unlink()
            yield

    def write(self, config_yaml: str, seed: int, overrides: Sequence[str]) -> None:
        """Save the resolved config and a record of what the run was made with."""
        write_text(self.config, config_yaml)
        made_with = {
            "seed": seed,
            "versions": {name: v for name in PACKAGES if (v := _version(name))},
            "python": platform.python_version(),
            "git_commit": git_commit(),
        }
        # A resumed run keeps the record of its beginning.
        known = json.loads(self.record.read_text()) if self.last.exists() else {}
        own = [text for text in overrides if _name(text) not in ("ckpt_path", "seed")]
        content = {**made_with, **known, "overrides": own}
        write_text(self.record, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file that a kill at any moment cannot leave half-done."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments of a resumed run: the run's own overrides, then those given now.

    Without a file in `ckpt_path=` the arguments come back as they are.

    Raises:
        SystemExit: if the checkpoint does not exist or is not inside a run folder.
    """
    given = [text for text in arguments if _name(text) == "ckpt_path"]
    others = [text for text in arguments if _name(text) != "ckpt_path"]
    checkpoint = given[-1].partition("=")[2].strip("'\"") if given else ""
    if checkpoint in ("", "null", LAST):
        return list(arguments)
    path = Path(checkpoint).resolve()
    folder = RunFolder(path.parent.parent)
    if not path.is_file():
        raise SystemExit(f"ckpt_path={checkpoint}: no such file")
    if not folder.record.is_file():
        raise SystemExit(
            f"ckpt_path={checkpoint}: expected RUN/checkpoints/*.ckpt, but "
            f"{folder.path} has no {folder.record.name}"
        )
    if any(text in ("-m", "--multirun") for text in arguments):
        raise SystemExit("ckpt_path= resumes one run; it cannot be combined with --multirun")
    record = json.loads(folder.record.read_text())
    saved = [
        *record["overrides"],
        f"seed={record['seed']}",
        f"hydra.run.dir={quoted(folder.path)}",
    ]
    return merge_overrides(saved, [*others, f"ckpt_path={quoted(path)}"])


def merge_overrides(saved: Sequence[str], given: Sequence[str]) -> list[str]:
    """Both lists, where an override given now replaces a saved one of the same key.

    Example:
        >>> merge_overrides(["residual=matern", "seed=3"], ["seed=4", "logger=wandb"])
        ['residual=matern', 'seed=4', 'logger=wandb']
    """
    replaced = {_name(text) for text in given}
    return [text for text in saved if _name(text) not in replaced] + list(given)


def quoted(path: Path) -> str:
    """A path as Hydra's override grammar wants it."""
    escaped = str(path).replace("'", "\\'")
    return f"'{escaped}'"


def git_commit() -> str | None:
    """The commit of the source tree, with '+' where files differ from it; None outside git."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + (
            "+" if _git(here, "status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def _refuse(message: str) -> NoReturn:
    from asbc.utils.checks import InputError  # brings torch along

    raise InputError(message)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _name(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
