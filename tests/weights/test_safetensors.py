"""The safetensors reader: sound files as they are, every other one a typed error."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError, ModelNotFound
from firsthand.weights.safetensors import open_safetensors
from firsthand.weights.writing import TensorToWrite, write_safetensors
from tests.weights.attacks import entry, model_folder, safetensors

LONG = 2**63


def small() -> bytes:
    """Two tensors, the later one first in the header."""
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("BF16", [2, 2], 24, 32),
        "a": entry("F32", [2, 3], 0, 24),
    }
    return safetensors(header, bytes(range(32)))


def refused(path: Path, content: bytes) -> CheckpointError:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_safetensors(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_load_2_the_order_of_the_keys_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(small())
    found = open_safetensors(path)
    assert (found.form, found.path, found.config) == ("safetensors", str(path), {})
    assert found.metadata == {"format": "pt"}
    a, b = found.tensors["a"], found.tensors["b"]
    assert (a.shape, a.kind, a.num_bytes, a.num_elements) == ((2, 3), "F32", 24, 6)
    assert (b.shape, b.kind, b.num_bytes) == ((2, 2), "BF16", 8)
    assert path.read_bytes()[a.offset : a.offset + 24] == bytes(range(24))
    assert found.raw("b").tolist() == list(range(24, 32))
    found.close()


# Each row: case, header or whole file, data, part of the message, tensor named.
T = entry("F32", [2], 0, 8)
LAYOUTS: list[tuple[str, dict[str, Any] | bytes, bytes, str, str | None]] = [
    ("load-2 overlap", {"a": entry("U8", [16], 0, 16), "b": entry("U8", [16], 8, 24)}, bytes(24),
     "overlaps another", "b"),
    ("load-2 hole", {"a": T, "b": entry("F32", [2], 12, 20)}, bytes(20), "hole", "b"),
    ("s-3 hole at the beginning", {"a": entry("F32", [2], 4, 12)}, bytes(12), "hole", "a"),
    ("s-3 bytes after the last", {"a": T}, bytes(9), "1 bytes lie after", None),
    ("s-3 bytes and no tensor", {}, bytes(1), "1 bytes lie after", None),
    ("s-3 same range twice", {"a": T, "b": T}, bytes(8), "overlaps", "b"),
    ("load-3 cut by a byte", {"a": T}, bytes(7), "leave the data part", "a"),
    ("load-3 begin above end", {"a": entry("F32", [2], 8, 0)}, bytes(8), "leave the data", "a"),
    ("load-3 shape and span", {"a": entry("F32", [2, 3], 0, 20)}, bytes(20), "needs 24", "a"),
    ("load-3 product wraps", {"a": entry("F32", [2**33, 2**33], 0, 0)}, b"", "needs", "a"),
    ("s-1 product is 4", {"a": entry("U8", [4194305, 4194305, 211106198978564], 0, 4)},
     bytes(4), "needs", "a"),
    ("s-1 giants", {"a": entry("U8", [LONG - 64], 0, LONG - 64),
                    "b": entry("U8", [LONG - 64], LONG - 64, 2 * LONG - 128)}, b"", "", None),
    ("s-4 span short", {"a": entry("F16", [4], 0, 7)}, bytes(7), "needs 8", "a"),
    ("s-4 span long", {"a": entry("F16", [4], 0, 9)}, bytes(9), "needs 8", "a"),
    ("negative", {"a": entry("F32", [-2], 0, 8)}, bytes(8), "shape", "a"),
    ("negative pair", {"a": entry("F32", [-2, -1], 0, 8)}, bytes(8), "shape", "a"),
    ("true is no size", {"a": {**T, "shape": [True, 2]}}, bytes(8), "shape", "a"),
    ("a float is no size", {"a": {**T, "shape": [2.0]}}, bytes(8), "shape", "a"),
    ("rank", {"a": entry("F32", [1] * 7 + [2, 1], 0, 8)}, bytes(8), "at most 8", "a"),
    ("offsets of three", {"a": {**T, "data_offsets": [0, 8, 8]}}, bytes(8), "pair", "a"),
    ("offsets of text", {"a": {**T, "data_offsets": "08"}}, bytes(8), "pair", "a"),
    ("unknown dtype", {"a": entry("F33", [2], 0, 8)}, bytes(8), "'F33' is not known", "a"),
    ("dtype is a list", {"a": {**T, "dtype": ["F32"]}}, bytes(8), "is not known", "a"),
    ("extra field", {"a": {**T, "stride": [1]}}, bytes(8), "alone", "a"),
    ("missing field", {"a": {"dtype": "F32", "shape": [2]}}, bytes(8), "alone", "a"),
    ("tensor is a list", {"a": []}, b"", "alone", "a"),
    ("empty name", {"": T}, bytes(8), "empty", ""),
    ("long name", {"n" * 513: T}, bytes(8), "512", "n" * 80),
    ("metadata of numbers", {"__metadata__": {"a": 1}}, b"", "__metadata__", None),
    ("metadata is a list", {"__metadata__": []}, b"", "__metadata__", None),
    ("s-3 duplicate key", b'{"a":%s,"a":%s}' % ((json.dumps(T).encode(),) * 2), bytes(8),
     "'a' stands there twice", None),
    ("duplicate field", b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}',
     bytes(8), "'dtype' stands there twice", None),
    ("not closed", b'{"a":', b"", "JSON", None),
    ("two objects", b"{}{}", b"", "JSON", None),
    ("bad utf-8", b'{"\xff":1}', b"", "UTF-8", None),
    ("half a character", b'{"\\ud800":1}', b"", "half a character", None),
    ("nan", b'{"a":NaN}', b"", "NaN", None),
    ("infinite", b'{"a":1e999}', b"", "out of range", None),
    ("deep", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "nested", None),
    ("long number", b'{"a":' + b"1" * 5000 + b"}", b"", "JSON", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "data", "message", "tensor"),
    [row[1:] for row in LAYOUTS],
    ids=[r[0] for r in LAYOUTS],
)
def test_s_1_s_3_s_4_load_2_load_3_lies_in_the_header(
    tmp_path: Path, header: dict[str, Any] | bytes, data: bytes, message: str, tensor: str | None
) -> None:
    error = refused(tmp_path / "a.safetensors", safetensors(header, data))
    assert message in str(error)
    if message:
        assert error.tensor == tensor


@pytest.mark.parametrize("size", range(8))
def test_load_1_a_few_bytes(tmp_path: Path, size: int) -> None:
    refused(tmp_path / "a.safetensors", b"\x10\0\0\0\0\0\0\0{"[:size])


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 1024, 200_000_000, 100_000_001, 1017])
def test_load_1_header_length_lies(tmp_path: Path, length: int) -> None:
    content = safetensors(b"{}", length=length).ljust(1024)
    began = time.monotonic()
    error = refused(tmp_path / "a.safetensors", content)
    assert str(length) in str(error)
    assert time.monotonic() - began < 1


def test_s_3_a_hundred_thousand_tensors(tmp_path: Path) -> None:
    header = {f"tensor.{n}": entry("F32", [0], 0, 0) for n in range(100_000)}
    content = safetensors(header)
    began = time.monotonic()
    error = refused(tmp_path / "a.safetensors", content)
    assert "the limit is 65536" in str(error)
    assert time.monotonic() - began < 2


def test_s_3_a_header_of_brackets_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """50 MB of empty lists would be gigabytes of objects."""
    began = time.monotonic()
    error = refused(tmp_path / "a.safetensors", safetensors(b'{"a":[' + b"[]," * 16_000_000))
    assert "items" in str(error)
    assert time.monotonic() - began < 2


def test_s_3_tensors_of_no_elements_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {"z": entry("F32", [0, 4], 8, 8), "y": entry("F16", [0], 8, 8), "a": T}
    path.write_bytes(safetensors(header, bytes(8)))
    found = open_safetensors(path)
    assert found.raw("z").shape == (0,)
    assert found.raw("a").shape == (8,)
    found.release("z")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"PK\x03\x04\x00\x00\x08\x08" + bytes(60), "zip archive"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "pickle"),
        (b"\x80\x04\x95\x1d\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94", "pickle"),
        (b"cos\nsystem\n(S'touch canary'\ntR.", "legacy"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '|O'", "NumPy"),
    ],
)
def test_s_5_renamed_files_are_told_by_content(tmp_path: Path, content: bytes, word: str) -> None:
    error = refused(tmp_path / "model.safetensors", content)
    assert word in str(error)
    assert "firsthand convert" in str(error)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"GGUF\x03\0\0\0\0\0\0\0\0", "GGUF"),
    ],
)
def test_other_mistakes_are_named(tmp_path: Path, content: bytes, word: str) -> None:
    assert word in str(refused(tmp_path / "model.safetensors", content))


def test_s_10_cut_anywhere(tmp_path: Path) -> None:
    """Every byte of the header and 300 places in the data (here: all of them)."""
    data = bytes(1200)
    header = {"a": entry("F32", [100], 0, 400), "b": entry("F16", [400], 400, 1200)}
    content = safetensors(header, data)
    ends = [*range(len(content) - 1200), *random.Random(7).sample(range(len(content)), 300)]
    for end in ends:
        refused(tmp_path / "a.safetensors", content[:end])


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(small()) - 1), st.integers(0, 255)), max_size=4))
def test_flipped_bytes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(small())
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(content)
    try:
        found = open_safetensors(path)
    except CheckpointError:
        return
    for name, tensor in found.tensors.items():
        assert found.raw(name).nbytes == tensor.num_bytes
    found.close()


# Folders


def shard(names: str) -> bytes:
    header = {name: entry("U8", [4], 4 * n, 4 * n + 4) for n, name in enumerate(names)}
    return safetensors(header, b"".join(name.encode() * 4 for name in names))


def three_shards(folder: Path) -> Path:
    shards = {
        "1.safetensors": shard("ab"),
        "2.safetensors": shard("c"),
        "3.safetensors": shard("d"),
    }
    owners = {"a": "1", "b": "1", "c": "2", "d": "3"}
    return model_folder(folder, shards, {k: f"{v}.safetensors" for k, v in owners.items()})


def refused_folder(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_safetensors(folder)
    return str(caught.value)


def test_a_folder_of_shards(tmp_path: Path) -> None:
    found = open_safetensors(three_shards(tmp_path))
    assert found.config == {"model_type": "llama"}
    assert set(found.tensors) == set("abcd")
    assert {name: found.raw(name).tobytes() for name in "abcd"} == {
        n: n.encode() * 4 for n in "abcd"
    }
    assert found.tensors["c"].file == str(tmp_path / "2.safetensors")


def test_load_4_missing_shards_are_listed(tmp_path: Path) -> None:
    folder = three_shards(tmp_path)
    (folder / "3.safetensors").unlink()
    (folder / "1.safetensors").unlink()
    assert "2 of 3 shards are missing: 1.safetensors, 3.safetensors" in refused_folder(folder)


def test_load_4_a_tensor_is_missing_from_its_shard(tmp_path: Path) -> None:
    folder = three_shards(tmp_path)
    (folder / "1.safetensors").write_bytes(shard("a"))
    message = refused_folder(folder)
    assert "1.safetensors" in message and "lacks what its index names: b" in message


def test_load_4_an_interrupted_copy(tmp_path: Path) -> None:
    folder = three_shards(tmp_path)
    (folder / "2.safetensors").write_bytes(shard("c")[:-1])
    assert "'c'" in refused_folder(folder)


def test_load_5_a_stray_file_is_not_read(tmp_path: Path) -> None:
    folder = three_shards(tmp_path)
    (folder / "model.safetensors").write_bytes(b"old and damaged")
    (folder / "9.safetensors").write_bytes(shard("a"))
    assert set(open_safetensors(folder).tensors) == set("abcd")


def test_load_5_an_index_of_thirty_with_fifteen(tmp_path: Path) -> None:
    names = [f"{n:02d}.safetensors" for n in range(30)]
    letters = [chr(ord("A") + n) for n in range(30)]
    shards = {name: shard(letter) for name, letter in zip(names[:15], letters, strict=False)}
    model_folder(tmp_path, shards, dict(zip(letters, names, strict=True)))
    assert "15 of 30 shards are missing" in refused_folder(tmp_path)


def test_load_5_a_tensor_in_two_files(tmp_path: Path) -> None:
    folder = three_shards(tmp_path)
    (folder / "2.safetensors").write_bytes(shard("ca"))
    message = refused_folder(folder)
    assert "'a'" in message and "the index puts it in 1.safetensors" in message


def test_load_5_a_tensor_that_the_index_does_not_know(tmp_path: Path) -> None:
    folder = three_shards(tmp_path)
    (folder / "2.safetensors").write_bytes(shard("cx"))
    message = refused_folder(folder)
    assert "'x'" in message and "is not in the index" in message


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors",
     "x\0.safetensors", "n" * 300 + ".safetensors", "config.json", ".safetensors/..", 7],
)  # fmt: skip
def test_s_8_names_that_leave_the_folder(tmp_path: Path, name: Any) -> None:
    (tmp_path / "x.safetensors").write_bytes(shard("a"))
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "sub" / "x.safetensors").write_bytes(shard("a"))
    refused_folder(model_folder(tmp_path / "model", {}, {"a": name}))


def test_s_8_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(shard("a"))
    folder = model_folder(tmp_path / "model", {}, {"a": "a.safetensors"})
    (folder / "a.safetensors").symlink_to("../x.safetensors")
    assert "leads out of its folder" in refused_folder(folder)
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").symlink_to("a.safetensors")
    assert "a.safetensors" in refused_folder(folder)


@pytest.mark.parametrize("link", ["config.json", "model.safetensors"])
def test_s_8_config_and_weights_may_not_be_links_out_either(tmp_path: Path, link: str) -> None:
    folder = model_folder(tmp_path / "model", {"model.safetensors": shard("a")}, {})
    (folder / link).rename(tmp_path / "outside")
    (folder / link).symlink_to(tmp_path / "outside")
    assert "leads out of its folder" in refused_folder(folder)


def test_the_links_of_a_hub_cache_are_its_normal_form(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--org--name"
    (model / "blobs").mkdir(parents=True)
    folder = model_folder(model / "snapshots" / "abc", {"model.safetensors": shard("a")}, {})
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(model / "blobs" / f"hash-of-{name}")
        (folder / name).symlink_to(Path("..", "..", "blobs", f"hash-of-{name}"))
    found = open_safetensors(folder)
    assert found.raw("a").tobytes() == b"aaaa"
    assert found.tensors["a"].file == str(folder / "model.safetensors")
    other = tmp_path / "hub" / "models--org--other"
    other.mkdir()
    (folder / "model.safetensors").resolve().rename(other / "blob")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(other / "blob")
    assert "leads out of its folder" in refused_folder(folder)


def test_s_8_a_fifo_and_a_device_do_not_wait(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", {}, {"a": "a.safetensors"})
    os.mkfifo(folder / "a.safetensors")
    assert "not a regular file" in refused_folder(folder)
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_safetensors(Path("/dev/zero"))


@pytest.mark.parametrize(
    "config",
    [b"", b"[]", b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1}x', b"\xff{}",
     b'{"a":"' + b"x" * (4 * 1024 * 1024) + b'"}'],
)  # fmt: skip
def test_config_is_strict(tmp_path: Path, config: bytes) -> None:
    folder = model_folder(tmp_path, {"model.safetensors": shard("a")}, {})
    (folder / "config.json").write_bytes(config)
    assert "config.json" in refused_folder(folder)


@pytest.mark.parametrize("index", [b"{}", b'{"weight_map":{}}', b'{"weight_map":[]}', b"nonsense"])
def test_a_wrong_index(tmp_path: Path, index: bytes) -> None:
    folder = model_folder(tmp_path, {"model.safetensors": shard("a")}, {})
    (folder / "model.safetensors.index.json").write_bytes(index)
    assert "index.json" in refused_folder(folder)


def test_folders_without_weights_say_what_to_do(tmp_path: Path) -> None:
    assert "holds neither" in refused_folder(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "x.gguf" in refused_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert "firsthand convert" in refused_folder(tmp_path)
    with pytest.raises(ModelNotFound):
        open_safetensors(tmp_path / "none")


def test_a_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard("a"))
    assert "config.json is missing" in refused_folder(tmp_path)


# Views and memory


def test_views_are_read_only_and_outlive_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(small())
    found = open_safetensors(path)
    view = found.raw("a")
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    found.close()
    found.close()
    assert view.tolist() == list(range(24))
    with pytest.raises(ValueError, match="closed"):
        found.raw("a")


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(small())
    with pytest.raises(CheckpointError, match="'nope'"):
        open_safetensors(path).raw("nope")


RESIDENT = """
import sys
from pathlib import Path
from firsthand.weights.safetensors import open_safetensors

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

found = open_safetensors(Path(sys.argv[1]))
before = resident()
first = int(found.raw("a").sum())
full = resident()
found.release("a")
after = resident()
assert int(found.raw("a").sum()) == first
print(full - before, after - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_release_gives_the_pages_back(tmp_path: Path) -> None:
    """64 MiB: opening touches none of it, reading all of it, releasing leaves the two edges."""
    path = tmp_path / "a.safetensors"
    num_bytes = 64 * 1024 * 1024
    path.write_bytes(safetensors({"a": entry("U8", [num_bytes], 0, num_bytes)}, bytes(num_bytes)))
    run = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    read, left = (int(word) * mmap.PAGESIZE for word in run.stdout.split())
    assert read > 0.9 * num_bytes
    assert left < 0.1 * num_bytes


# The writer and the library that owns the format


def written(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    def chunks(content: bytes) -> Iterator[bytes]:
        yield from (content[n : n + 3] for n in range(0, len(content), 3))

    write_safetensors(path, [TensorToWrite(n, k, s, chunks(c)) for n, (k, s, c) in tensors.items()])
    return path


SAMPLES = {
    "half": ("F16", (3,), b"abcdef"),
    "ω": ("BF16", (1, 1), b"xy"),
    "full": ("F32", (2, 2), bytes(range(16))),
    "none": ("F32", (0,), b""),
    "scalar": ("F32", (), b"abcd"),
}


def test_what_we_write_we_read(tmp_path: Path) -> None:
    found = open_safetensors(written(tmp_path / "a.safetensors", SAMPLES))
    for name, (kind, shape, content) in SAMPLES.items():
        tensor = found.tensors[name]
        assert (tensor.kind, tensor.shape) == (kind, shape)
        assert found.raw(name).tobytes() == content
        assert tensor.offset % {"F32": 4}.get(kind, 2) == 0


def test_the_writer_refuses_chunks_that_do_not_add_up(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gave 3 bytes, not 4"):
        written(tmp_path / "a.safetensors", {"a": ("F32", (1,), b"abc")})
    with pytest.raises(FileExistsError):
        written(tmp_path / "a.safetensors", SAMPLES)


@pytest.mark.oracle
def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    library: Any = importlib.import_module("safetensors")

    path = written(tmp_path / "a.safetensors", SAMPLES)
    found = dict(library.deserialize(path.read_bytes()))
    assert {
        n: (v["dtype"], tuple(v["shape"]), bytes(v["data"])) for n, v in found.items()
    } == SAMPLES


@pytest.mark.oracle
@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(["float64", "float32", "float16", "int64", "int8", "bool", "uint16"]),
            st.lists(st.integers(0, 3), max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_we_read_what_the_library_writes(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, tuple[str, list[int]]],
    metadata: dict[str, str],
) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(1)
    arrays = {
        name: rng.integers(0, 2, size=shape).astype(dtype)
        for name, (dtype, shape) in tensors.items()
    }
    path = tmp_path_factory.getbasetemp() / "library.safetensors"
    save_file(arrays, path, metadata=metadata)
    found = open_safetensors(path)
    assert found.metadata == metadata
    assert {name: t.shape for name, t in found.tensors.items()} == {
        name: array.shape for name, array in arrays.items()
    }
    for name, array in arrays.items():
        assert found.raw(name).tobytes() == array.tobytes()
    found.close()
