"""One file of plain values and tensors that is read without running anything it says.

Layout: the magic line, the length of the header (8 bytes, little-endian), the header (JSON, UTF-8)
and the tensors one after the other, compressed by zlib. The header's `tensors` lists name, dtype
and shape of each; `payload` is the SHA-256 of the uncompressed bytes.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asbc.errors import InputError
from asbc.utils.files import replacing

MAGIC = b"ASBC model 1\n"
# What a tensor may be made of, little-endian.
KINDS = ("<f2", "<f4", "<f8", "<i8")
# A header or tensors larger than these are no model of ours.
MOST_HEADER, MOST_PAYLOAD = 1_000_000, 100_000_000


def write_tensor_file(
    path: str | Path, header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> str:
    """Write values and tensors; returns the SHA-256 of the file.

    The same content gives the same bytes.
    """
    payload = b"".join(np.ascontiguousarray(value).tobytes() for value in tensors.values())
    listed = [
        {"name": name, "dtype": value.dtype.newbyteorder("<").str, "shape": list(value.shape)}
        for name, value in tensors.items()
    ]
    unknown = [entry["name"] for entry in listed if entry["dtype"] not in KINDS]
    if unknown:
        raise ValueError(f"{unknown[0]}: expected a dtype among {', '.join(KINDS)}")
    full = {**header, "tensors": listed, "payload": hashlib.sha256(payload).hexdigest()}
    text = json.dumps(full, ensure_ascii=False).encode()
    content = MAGIC + len(text).to_bytes(8, "little") + text + zlib.compress(payload, 9)
    with replacing(path) as partial:
        partial.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_header(path: Path) -> dict[str, Any]:
    """The plain values of a file."""
    return _parts(path)[0]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, whose bytes are those that were written.

    Raises:
        InputError: if the file is damaged, or no such file.
    """
    header, compressed = _parts(path)
    try:
        shapes = [(e["name"], np.dtype(e["dtype"]), tuple(e["shape"])) for e in header["tensors"]]
        sizes = [kind.itemsize * math.prod(shape) for _, kind, shape in shapes]
    except (KeyError, TypeError) as error:
        raise _damaged(path, f"its list of tensors is not readable ({error})") from error
    if any(kind.str not in KINDS for _, kind, _ in shapes) or min(sizes, default=0) < 0:
        raise _damaged(path, "its tensors are of a kind that is not known here")
    if sum(sizes) > MOST_PAYLOAD:
        raise _damaged(path, f"it claims {sum(sizes)} bytes of tensors")
    payload = _inflate(path, compressed, sum(sizes))
    if hashlib.sha256(payload).hexdigest() != header.get("payload"):
        raise _damaged(path, "its tensors are not those that were written")
    found, start = {}, 0
    for (name, kind, shape), size in zip(shapes, sizes, strict=True):
        found[str(name)] = np.frombuffer(payload[start : start + size], kind).reshape(shape)
        start += size
    return found


def _inflate(path: Path, compressed: bytes, size: int) -> bytes:
    """As many bytes as the header promises: a small file cannot fill the memory."""
    inflater = zlib.decompressobj()
    try:
        payload = inflater.decompress(compressed, size + 1)
    except zlib.error as error:
        raise _damaged(path, str(error)) from error
    if len(payload) != size:
        raise _damaged(path, f"expected {size} bytes of tensors")
    return payload


def _parts(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: not readable ({error.strerror})") from error
    start = len(MAGIC) + 8
    if not content.startswith(MAGIC):
        raise InputError(f"{path}: not a model file; expected one that `make models` wrote")
    length = int.from_bytes(content[len(MAGIC) : start], "little")
    if length > min(MOST_HEADER, len(content)):
        raise _damaged(path, "its header is cut off")
    try:
        header = json.loads(content[start : start + length])
    except ValueError as error:
        raise _damaged(path, f"its header is not readable ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not readable")
    return header, content[start + length :]


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path}: damaged, {why}; install asbc again")
