"""Conversion: the same tensors, whole or not at all."""

from __future__ import annotations

import errno
import importlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import CapacityExceeded, CheckpointError, InvalidRequest, ModelNotFound
from firsthand.weights.convert import convert
from firsthand.weights.folder import is_companion
from firsthand.weights.safetensors import open_safetensors
from tests.weights import attacks as a

SIX = struct.pack("<6f", *range(6))


def shard(path: Path, **tensors: bytes) -> Path:
    return a.torch_archive(path, a.program(a.pk_dict(**tensors)), {"0": SIX, "1": SIX[::-1]})


def legacy_folder(folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "merges.txt", "tokenizer.json"):
        (folder / name).write_text('{"a": 1}')
    (folder / "training_args.bin").write_bytes(b"never read")
    embedding = a.pk_tensor([2, 3], [3, 1])
    shard(
        folder / "pytorch_model.bin",
        **{"embed.weight": embedding, "lm_head.weight": embedding,
           "turned": a.pk_tensor([3, 2], [1, 3], 0, a.pk_storage("1"))},
    )  # fmt: skip
    return folder


def test_a_folder(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = convert(
        legacy_folder(tmp_path / "old"),
        tmp_path / "new",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert report.aliases == (("lm_head.weight", "embed.weight"),)
    assert (report.num_tensors, report.num_bytes) == (2, 48)
    assert report.files == ("model.safetensors",)
    assert report.copied == ("config.json", "merges.txt", "tokenizer.json")
    assert seen == [(24, 48), (48, 48)]
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]
    assert sorted(os.listdir(tmp_path / "new")) == sorted([*report.files, *report.copied])
    found = open_safetensors(tmp_path / "new")
    assert found.config == {"a": 1}
    assert found.metadata == {"format": "pt"}
    assert found.raw("embed.weight").tobytes() == SIX
    assert found.tensors["turned"].shape == (3, 2)
    words = struct.unpack("<6I", SIX[::-1])
    turned = struct.pack("<6I", *(words[i] for i in (0, 3, 1, 4, 2, 5)))
    assert found.raw("turned").tobytes() == turned


def test_one_file(tmp_path: Path) -> None:
    file = legacy_folder(tmp_path / "old") / "pytorch_model.bin"
    convert(file, tmp_path / "new")
    assert set(open_safetensors(tmp_path / "new").tensors) == {"embed.weight", "turned"}


def sharded(folder: Path, weight_map: dict[str, str]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    shard(folder / "1.bin", a=a.pk_tensor([6], [1]), b=a.pk_tensor([6], [1], 0, a.pk_storage("1")))
    shard(folder / "2.bin", c=a.pk_tensor([2], [1]))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


OWNERS = {"a": "1.bin", "b": "1.bin", "c": "2.bin"}


def test_shards_in_and_shards_out(tmp_path: Path) -> None:
    report = convert(sharded(tmp_path / "old", OWNERS), tmp_path / "new", max_file_bytes=32)
    assert report.files == (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    )
    found = open_safetensors(tmp_path / "new")
    assert {name: found.raw(name).tobytes() for name in "abc"} == {
        "a": SIX,
        "b": SIX[::-1],
        "c": SIX[:8],
    }
    assert found.tensors["a"].file != found.tensors["b"].file == found.tensors["c"].file


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({**OWNERS, "d": "3.bin"}, "1 of 3 shards are missing: 3.bin"),
        ({**OWNERS, "d": "2.bin"}, "lacks what its index names: d"),
        ({"a": "1.bin", "c": "2.bin"}, "'b': is not in the index"),
        ({**OWNERS, "b": "2.bin"}, "'b': is also there"),
        ({**OWNERS, "d": "../3.bin"}, "plain name"),
    ],
)
def test_load_4_and_5_wrong_indices(
    tmp_path: Path, weight_map: dict[str, str], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(sharded(tmp_path / "old", weight_map), tmp_path / "new")
    assert os.listdir(tmp_path) == ["old"]


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    old = legacy_folder(tmp_path / "old")
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("new", "link", "old"):
        with pytest.raises(InvalidRequest, match="exists already") as caught:
            convert(old, tmp_path / name)
        assert caught.value.field == "dst"
    with pytest.raises(InvalidRequest, match="cannot be written"):
        convert(old, tmp_path / "no" / "folder")
    assert not os.listdir(tmp_path / "new")


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        convert(tmp_path / "none", tmp_path / "new")
    (tmp_path / "old").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no pytorch_model\.bin"):
        convert(tmp_path / "old", tmp_path / "new")


def test_a_companion_may_not_be_a_link_out(tmp_path: Path) -> None:
    old = legacy_folder(tmp_path / "old")
    (tmp_path / "secret").write_text("secret")
    (old / "vocab.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads out"):
        convert(old, tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["old", "secret"]
    assert is_companion("vocab.json")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, CapacityExceeded),
        (errno.EDQUOT, CapacityExceeded),
        (errno.EIO, InvalidRequest),
    ],
)
def test_d_2_every_sync_and_rename_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    """Fail call k for all k until a run passes: a typed error, and nothing is left behind."""
    old = legacy_folder(tmp_path / "old")
    real_sync, real_rename = os.fsync, Path.rename
    for k in range(20):
        calls = 0

        def failing(fail_at: int = k) -> None:
            nonlocal calls
            calls += 1
            if calls - 1 == fail_at:
                raise OSError(number, os.strerror(number))

        def sync(descriptor: int, fail: Any = failing) -> None:
            fail()
            real_sync(descriptor)

        def rename(source: Path, target: Path, fail: Any = failing) -> Path:
            fail()
            return real_rename(source, target)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "rename", rename)
        try:
            convert(old, tmp_path / "new")
        except expected:
            assert os.listdir(tmp_path) == ["old"]
            continue
        break
    assert calls == 7  # of four files and two folders, and one rename
    assert set(open_safetensors(tmp_path / "new").tensors) == {"embed.weight", "turned"}


@pytest.mark.torch
@pytest.mark.oracle
def test_torch_files_convert_to_what_the_library_reads(tmp_path: Path) -> None:
    import torch

    library: Any = importlib.import_module("safetensors.torch")
    embedding = torch.randn(10, 4).bfloat16()
    state = {
        "embed.weight": embedding,
        "lm_head.weight": embedding,
        "odd": torch.randn(3).half(),
        "norm": torch.randn(4),
        "turned": torch.randn(5, 4).t(),
    }
    torch.save(state, tmp_path / "model.pt")
    report = convert(tmp_path / "model.pt", tmp_path / "new")
    found = library.load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == state.keys() - {"lm_head.weight"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.items())
    assert dict(report.aliases) == {"lm_head.weight": "embed.weight"}
