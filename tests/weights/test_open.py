"""The choice of reader is by content; the name of a file says nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firsthand.errors import CheckpointError, ModelNotFound
from firsthand.weights.open import open_checkpoint
from tests.weights import attacks as a

SAFE = a.safetensors({"a": a.entry("U8", [4], 0, 4)}, b"abcd")
GGUF = a.gguf([], [a.gguf_tensor("t", [8], 0, 0)], bytes(32))


@pytest.mark.parametrize("name", ["x.gguf", "x.safetensors", "x.bin", "x"])
def test_by_content(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(GGUF)
    assert open_checkpoint(tmp_path / name).form == "gguf"
    (tmp_path / name).write_bytes(SAFE)
    with pytest.raises(CheckpointError, match="open its folder instead"):
        open_checkpoint(tmp_path / name)


def test_a_folder(tmp_path: Path) -> None:
    folder = a.model_folder(tmp_path, {"model.safetensors": SAFE}, {})
    assert open_checkpoint(folder).config == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04" + bytes(100), ["50 4b 03 04", "firsthand convert"]),
        (b"\x80\x02}q\x00.", ["80 02", "firsthand convert"]),
        (b"\x93NUMPY", ["NumPy", "firsthand convert"]),
        (b"<html>", ["HTML"]),
        (b"", ["empty"]),
        (b"hello", ["68 65 6c 6c 6f"]),
    ],
)
def test_s_5_anything_else_is_named(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert all(word in str(caught.value) for word in [str(path), *words])


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_checkpoint(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path / "fifo")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(Path("/dev/null"))
