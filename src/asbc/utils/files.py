"""Files that are whole or absent, and locks: a kill at any moment leaves nothing half-done."""

import errno
import fcntl
import os
import pickle
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asbc.errors import InputError

# Ending of what is being written; a leftover of a killed process may be deleted.
PARTIAL = ".partial"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path that takes the given one's place when the block ends without an error.

    It lies in the same folder, hence on the same file system: only there is a rename atomic.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Names of our own: two processes may write the same file, and the last one wins whole.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a whole file or nothing."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Delete what killed processes left half-written below `folder`."""
    for leftover in folder.rglob(f".*{PARTIAL}"):
        leftover.unlink(missing_ok=True)


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


@contextmanager
def room_below(folder: str | Path) -> Iterator[None]:
    """Say in one line that the disk of `folder` is full, when it is."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5 raises the latter
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if not full and not re.search(r"No space left|quota exceeded|errno = 28", str(error)):
            raise
        raise InputError(
            f"{folder}: the disk is full; make room or give another output=, then the same "
            "command goes on where it was"
        ) from error


def save_tensors(content: Mapping[str, Any], path: str | Path) -> None:
    """`torch.save` of tensors and plain values that a kill cannot leave half-done."""
    import torch

    with replacing(path) as partial, partial.open("wb") as file:
        torch.save(dict(content), file)
        file.flush()
        os.fsync(file.fileno())


def load_tensors(path: Path) -> dict[str, Any]:
    """What `save_tensors` wrote; a file that is anything else is refused, and never executed."""
    import torch

    if not path.is_file():
        raise InputError(f"{path}: no such file; the run was not finished, train again")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{path}: not a file of weights ({str(error).splitlines()[0]}); copy it again or "
            "train again"
        ) from error
