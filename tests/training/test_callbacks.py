import pytest
import torch

from asbc.training.callbacks import AtomicCheckpointIO
from asbc.utils.files import save_tensors


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)

    def half(content, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_tensors({"step": 2}, path)
    monkeypatch.undo()
    assert torch.load(path, weights_only=True) == {"step": 1}
    save_tensors({"step": 3}, path)
    assert torch.load(path, weights_only=True) == {"step": 3}


def test_the_partial_file_is_beside_the_checkpoint(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "save", lambda content, file: seen.append(file.name))
    save_tensors({}, tmp_path / "last.ckpt")
    assert seen[0].startswith(str(tmp_path)) and seen[0].endswith(".partial")
