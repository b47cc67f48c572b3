"""Pairs as they are kept on disk, a row each, and hashes of what was observed of them."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from asbc.data.pairs import STATE_COLUMNS, Pairs

NAMES = ("pair_id", "follower", "recording", "follower_class")


def pack(pairs: Pairs) -> pa.Table:
    """A row per pair."""
    columns: dict[str, Any] = {name: list(getattr(pairs, name)) for name in NAMES}
    if pairs.begin is not None:
        columns["begin"] = pairs.begin.numpy()
    offsets = pa.array(pairs.offsets.numpy(), pa.int64())
    for name in STATE_COLUMNS:
        values = pa.array(getattr(pairs, name).numpy())
        columns[name] = pa.LargeListArray.from_arrays(offsets, values)
    return pa.table(columns)


def unpack(table: pa.Table, dt: float) -> Pairs:
    """What `pack` packed."""
    table = table.combine_chunks()
    content: dict[str, Any] = {name: tuple(table[name].to_pylist()) for name in NAMES}
    lists = {name: table[name].chunk(0) for name in STATE_COLUMNS}
    lengths = np.diff(lists["gap"].offsets.to_numpy())
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    for name, values in lists.items():
        content[name] = torch.from_numpy(values.flatten().to_numpy().copy())
    if "begin" in table.column_names:
        content["begin"] = torch.from_numpy(table["begin"].to_numpy().copy())
    return Pairs(**content, dt=dt, offsets=offsets)


def digests(pairs: Pairs, by_driver: bool = False) -> bytes:
    """A hash of 8 bytes per pair; `by_driver`: of whose it is and when it began, too."""
    columns = [getattr(pairs, name).numpy() for name in ("gap", "speed", "leader_speed")]
    ends = pairs.offsets.tolist()
    begin = [None] * len(pairs) if pairs.begin is None else pairs.begin.tolist()
    made = []
    for i, name in enumerate(pairs.pair_id):
        whose = f"{name}\n{pairs.follower[i]}\n{begin[i]}" if by_driver else name
        digest = hashlib.blake2b(whose.encode(), digest_size=8)
        for column in columns:
            digest.update(column[ends[i] : ends[i + 1]].tobytes())
        made.append(digest.digest())
    return b"".join(made)


def fingerprint(digests: Iterable[bytes], dt: float) -> str:
    """A hash of what was observed, of the digests of all pairs in their order."""
    digest = hashlib.blake2b(repr(dt).encode(), digest_size=8)
    for part in digests:
        digest.update(part)
    return digest.hexdigest()
