"""Files of tensors: the same bytes again, exact values, and nothing that is not one is read."""

import hashlib
import json
import pickle
import zlib

import numpy as np
import pytest

from asbc.errors import InputError
from asbc.utils.tensor_file import MAGIC, digest_of, read_header, read_tensors, write_tensor_file

TENSORS = {
    "half": np.arange(6, dtype="<f2").reshape(2, 3) / 7,
    "single": np.array([1e-30, 3.5], dtype="<f4"),
    "count": np.array(7, dtype="<i8"),
    "none": np.zeros((0, 4), dtype="<f8"),
}


@pytest.fixture
def path(tmp_path):
    write_tensor_file(tmp_path / "a.asbc", {"name": "é", "z": 1, "a": [None, 0.1]}, TENSORS)
    return tmp_path / "a.asbc"


def test_what_was_written_is_read(path):
    header, found = read_header(path), read_tensors(path)
    assert (header["name"], header["z"], header["a"]) == ("é", 1, [None, 0.1])
    assert list(header)[:3] == ["name", "z", "a"]  # order carries meaning: that of parameters
    assert list(found) == list(TENSORS)
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert found[name].tobytes() == value.tobytes()


def test_the_same_content_gives_the_same_bytes(path, tmp_path):
    header = {"name": "é", "z": 1, "a": [None, 0.1]}
    digest = write_tensor_file(tmp_path / "b.asbc", header, TENSORS)
    assert (tmp_path / "b.asbc").read_bytes() == path.read_bytes()
    assert digest == digest_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_changed_byte_of_the_tensors_is_noticed(path):
    good = path.read_bytes()
    start = len(MAGIC) + 8 + int.from_bytes(good[len(MAGIC) : len(MAGIC) + 8], "little")
    for place in range(start, len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            found = read_tensors(path)
        except InputError:
            continue
        # A bit of zlib's own header that does not change what is unpacked.
        assert all(found[k].tobytes() == v.tobytes() for k, v in TENSORS.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a model file"),
        (pickle.dumps({"a": 1}), "not a model file"),
        (MAGIC + (2**40).to_bytes(8, "little"), "its header is cut off"),
        (MAGIC + (2).to_bytes(8, "little") + b"[]", "header is not readable"),
        (MAGIC + (2).to_bytes(8, "little") + b"{]", "header is not readable"),
        (MAGIC + (2).to_bytes(8, "little") + b"{}", "list of tensors"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_tensors(tmp_path / "bad")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "|O", "shape": [1]}, "kind that is not known"),
        ({"dtype": "<f4", "shape": [-1]}, "kind that is not known"),
        ({"dtype": "<f4", "shape": [10**9]}, "claims 4000000000 bytes"),
        ({"dtype": "<f4", "shape": [5]}, "expected 20 bytes"),
    ],
)
def test_a_header_cannot_ask_for_objects_or_memory(entry, message, tmp_path):
    text = json.dumps({"tensors": [{"name": "x", **entry}], "payload": ""}).encode()
    bomb = zlib.compress(bytes(10_000_000))
    (tmp_path / "bad").write_bytes(MAGIC + len(text).to_bytes(8, "little") + text + bomb)
    with pytest.raises(InputError, match=message):
        read_tensors(tmp_path / "bad")
