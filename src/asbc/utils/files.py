"""Files that are whole or absent, and locks: a kill at any moment leaves nothing half-done."""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
