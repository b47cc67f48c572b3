"""Tables that are slow to rebuild, kept as Parquet under a key of everything they depend on."""

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from asbc.data.source import Loaded

log = logging.getLogger(__name__)

# Raise when a loader starts to give other results for the same files and settings.
FORMAT = 2


def cached_table(
    cache_dir: str, name: str, key: Mapping[str, object], build: Callable[[], Loaded]
) -> Loaded:
    """The table stored under `key`, or the one that `build` returns, which is then stored."""
    path = Path(cache_dir) / f"{name}-{digest(key)}.parquet"
    if path.exists():
        try:
            return _read(path)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            log.warning("cache: %s is unreadable (%s); building it again", path, error)
    loaded = build()
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(loaded.table, preserve_index=False)
    metadata = (table.schema.metadata or {}) | {b"drops": json.dumps(loaded.drops).encode()}
    temporary = _beside(path)
    try:
        pq.write_table(table.replace_schema_metadata(metadata), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return loaded


def cached_folder(
    cache_dir: str, name: str, key: Mapping[str, object], fill: Callable[[Path], None]
) -> Path:
    """The folder stored under `key`; `fill` writes its files when it does not exist yet."""
    path = Path(cache_dir) / f"{name}-{digest(key)}"
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        fill(temporary)
        try:
            os.rename(temporary, path)
        except OSError:
            # Another process may have finished the same folder first: that one is as good.
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def file_stamps(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Resolved path, size and modification time of each file, in sorted order."""
    return [
        (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(paths)
    ]


def digest(key: Mapping[str, object]) -> str:
    """A short name for a key of plain values."""
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _beside(path: Path) -> Path:
    """A name of our own in the same folder, to be renamed once complete."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")


def _read(path: Path) -> Loaded:
    table = pq.read_table(path)
    return Loaded(table.to_pandas(), json.loads(table.schema.metadata[b"drops"]))
