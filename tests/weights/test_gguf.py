"""The GGUF reader: sound files as they are, every other one a typed error."""

from __future__ import annotations

import importlib
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError, FirsthandError, ModelNotFound, UnsupportedModel
from firsthand.quant import ggml
from firsthand.weights.gguf import KINDS, UNSUPPORTED_KINDS, open_gguf
from tests.weights import attacks as a

TYPED = (CheckpointError, UnsupportedModel)
HUGE = 2**63


def opened(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return open_gguf(path)


def refused(path: Path, content: bytes) -> FirsthandError:
    path.write_bytes(content)
    with pytest.raises(TYPED) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    return caught.value


def small() -> bytes:
    """Six keys and three tensors of three kinds, in 32-byte steps."""
    keys = [
        a.gguf_key("general.architecture", a.STR, "llama"),
        a.gguf_key("llama.block_count", a.U32, 2),
        a.gguf_key("tokens", a.ARR, (a.STR, ["a", "βγ", ""])),
        a.gguf_key("scores", a.ARR, (a.F32, [0.5, -1.0, 2.0])),
        a.gguf_key("nested", a.ARR, (a.ARR, [(a.U8, [1, 2]), (a.STR, ["x"])])),
        a.gguf_key("flag", a.BOOL, True),
    ]
    tensors = [
        a.gguf_tensor("w", [32, 2], 2, 0),
        a.gguf_tensor("n", [5], 0, 64),
        a.gguf_tensor("h", [2, 3, 4], 1, 96),
    ]
    data = bytes(36).ljust(64, b"\0") + bytes(range(20)).ljust(32, b"\0") + bytes(range(48))
    return a.gguf(keys, tensors, data)


def test_a_sound_file(tmp_path: Path) -> None:
    """Shapes come outermost first; bytes are the file's own."""
    found = opened(tmp_path / "a.gguf", small())
    assert (found.form, found.config) == ("gguf", {})
    assert {n: (t.shape, t.kind, t.num_bytes) for n, t in found.tensors.items()} == {
        "w": ((2, 32), "Q4_0", 36),
        "n": ((5,), "F32", 20),
        "h": ((4, 3, 2), "F16", 48),
    }
    assert found.raw("n").tolist() == list(range(20))
    assert found.raw("h").tolist() == list(range(48))
    found.release("h")
    assert found.metadata["tokens"] == ["a", "βγ", ""]
    assert found.metadata["nested"][1] == ["x"]
    view = found.raw("n")
    found.close()
    assert view[3] == 3
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize("version", [2, 3])
def test_versions_that_are_read(tmp_path: Path, version: int) -> None:
    assert not opened(tmp_path / "a.gguf", a.gguf([], [], version=version)).tensors


@pytest.mark.parametrize(
    ("version", "word"),
    [(0, "version 0"), (1, "version 1"), (4, "version 4"), (0xFFFFFFFF, "version 4294967295"),
     (0x03000000, "big-endian"), (0x02000000, "big-endian")],
)  # fmt: skip
def test_s_2_versions_that_are_not(tmp_path: Path, version: int, word: str) -> None:
    error = refused(tmp_path / "a.gguf", a.gguf([], [], version=version))
    assert isinstance(error, UnsupportedModel)
    assert word in str(error)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"<!doctype html><html>404</html>", "3c 21 64 6f 63 74 79 70, as an HTML"),
        (b"GGML\x01\0\0\0", "47 47 4d 4c"),
        (b"FUGG\x03\0\0\0", "46 55 47 47"),
        (b"", "empty"),
        (b"GGU", "47 47 55"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_gguf_1_magic(tmp_path: Path, content: bytes, word: str) -> None:
    assert word in str(refused(tmp_path / "a.gguf", content))


VALUES: list[tuple[int, list[Any]]] = [
    (a.U8, [0, 255]),
    (a.I8, [-128, 127]),
    (a.U16, [0, 65535]),
    (a.I16, [-32768, 32767]),
    (a.U32, [0, 2**32 - 1]),
    (a.I32, [-(2**31), 2**31 - 1]),
    (a.F32, [0.5, -2.0]),
    (a.BOOL, [True, False]),
    (a.STR, ["", "héllo"]),
    (a.U64, [0, 2**64 - 1]),
    (a.I64, [-(2**63), 2**63 - 1]),
    (a.F64, [0.1, -1e300]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_gguf_4_every_type_alone_and_in_arrays(
    tmp_path: Path, kind: int, values: list[Any]
) -> None:
    """Each stands before a key that is needed, which must still be found at its place."""
    keys = [a.gguf_key(f"one.{n}", kind, value) for n, value in enumerate(values)]
    keys += [
        a.gguf_key("many", a.ARR, (kind, values * 3)),
        a.gguf_key("none", a.ARR, (kind, [])),
        a.gguf_key("nested", a.ARR, (a.ARR, [(kind, values), (kind, []), (kind, values)])),
        a.gguf_key("needed", a.U32, 77),
    ]
    found = opened(tmp_path / "a.gguf", a.gguf(keys, [])).metadata
    assert [found["one.0"], found["one.1"]] == values
    assert type(found["one.0"]) is type(values[0])
    assert list(found["many"]) == values * 3
    assert len(found["none"]) == 0
    assert [list(inner) for inner in found["nested"]] == [values, [], values]
    assert found["needed"] == 77
    assert isinstance(found["many"], list if kind == a.STR else np.ndarray)


KEY = a.gguf_key("k", a.U32, 1)
ONE = a.gguf_tensor("t", [8], 0, 0)


def with_alignment(kind: int, value: Any) -> bytes:
    return a.gguf([a.gguf_key("general.alignment", kind, value)], [ONE], bytes(32))


BAD: list[tuple[str, bytes, str]] = [
    ("empty key", a.gguf([a.gguf_key("", a.U32, 1)], []), "0 bytes long"),
    ("key of bad utf-8", a.gguf([a.gguf_key(b"\xff", a.U32, 1)], []), "name of key 0"),
    ("long key", a.gguf([a.gguf_key("k" * 65_536, a.U32, 1)], []), "65536 bytes long"),
    ("duplicate key", a.gguf([KEY, KEY], []), "'k' stands in the file twice"),
    ("bad type", a.gguf([a.gguf_string("k") + struct.pack("<II", 13, 1)], []), "value type 13"),
    ("bad type in array", a.gguf([a.gguf_string("k") + struct.pack("<IIQ", 9, 99, 0)], []),
     "value type 99"),
    ("boolean of 2", a.gguf([a.gguf_string("k") + struct.pack("<IB", 7, 2)], []), "boolean"),
    ("boolean of 2 in array", a.gguf([a.gguf_string("k") + struct.pack("<IIQBB", 9, 7, 2, 1, 2)],
     []), "boolean"),
    ("string of bad utf-8", a.gguf([a.gguf_key("k", a.STR, b"\x80")], []), "'k'"),
    ("token of bad utf-8", a.gguf([a.gguf_key("k", a.ARR, (a.STR, [b"a", b"\x80"]))], []),
     "string 1 is not valid UTF-8"),
    ("nested too deep", a.gguf([a.gguf_key("k", a.ARR, (a.ARR, [(a.ARR, [(a.ARR, [(a.ARR, [])])])
     ]))], []), "nested more than 4"),
    ("alignment 0", with_alignment(a.U32, 0), "not a power of two"),
    ("alignment 13", with_alignment(a.U32, 13), "not a power of two"),
    ("alignment of wrong type", with_alignment(a.U64, 32), "not uint32"),
    ("alignment of text", with_alignment(a.STR, "32"), "not uint32"),
    ("alignment beyond the file", with_alignment(a.U32, 2**31), "past the end"),
    ("duplicate tensor", a.gguf([], [ONE, a.gguf_tensor("t", [8], 0, 32)], bytes(64)), "twice"),
    ("tensor without name", a.gguf([], [a.gguf_tensor("", [8], 0, 0)], bytes(32)), "0 bytes long"),
    ("name too long", a.gguf([], [a.gguf_tensor("t" * 65, [8], 0, 0)], bytes(32)), "not 1…64"),
    ("name of bad utf-8", a.gguf([], [a.gguf_tensor(b"\xff", [8], 0, 0)], bytes(32)), "UTF-8"),
    ("n_dims 0", a.gguf([], [a.gguf_tensor("t", [], 0, 0)], bytes(32)), "has 0 dimensions"),
    ("n_dims 5", a.gguf([], [a.gguf_tensor("t", [1] * 5, 0, 0)], bytes(32)), "has 5 dimensions"),
    ("size 0", a.gguf([], [a.gguf_tensor("t", [8, 0], 0, 0)], bytes(32)), "size 0"),
    ("unknown kind", a.gguf([], [a.gguf_tensor("t", [8], 99, 0)], bytes(32)), "unknown kind 99"),
    ("row of half a block", a.gguf([], [a.gguf_tensor("t", [48, 2], 2, 0)], bytes(64)),
     "48 values per row are not a multiple of the 32 of Q4_0"),
    ("offset not aligned", a.gguf([], [a.gguf_tensor("t", [8], 0, 16)], bytes(64)), "not aligned"),
    ("offset outside", a.gguf([], [a.gguf_tensor("t", [8], 0, 32)], bytes(32)), "past the end"),
    ("offset huge", a.gguf([], [a.gguf_tensor("t", [8], 0, 2**64 - 32)], bytes(32)), "past"),
    ("overlap", a.gguf([], [a.gguf_tensor("t", [16], 0, 0), a.gguf_tensor("u", [8], 0, 32)],
     bytes(64)), "overlaps"),
    ("same place", a.gguf([], [ONE, a.gguf_tensor("u", [8], 0, 0)], bytes(32)), "overlaps"),
    ("data cut", a.gguf([], [ONE], bytes(31)), "past the end"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), [r[1:] for r in BAD], ids=[r[0] for r in BAD])
def test_s_2_lies(tmp_path: Path, content: bytes, message: str) -> None:
    error = refused(tmp_path / "a.gguf", content)
    assert isinstance(error, CheckpointError)
    assert message in str(error)


WRAPS = [
    [2**32, 2**32],
    [4194305, 4194305, 211106198978564],
    [2**63],
    [2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1],
    [0x7FFFFFFFFFFFFFC0],
]


@pytest.mark.parametrize("sizes", WRAPS)
def test_gguf_3_product_wraps(tmp_path: Path, sizes: list[int]) -> None:
    """S-1: the count of elements is exact, whatever 64 bits would make of it."""
    content = a.gguf([], [a.gguf_tensor("t", sizes, 0, 0)], bytes(64))
    error = refused(tmp_path / "a.gguf", content)
    assert isinstance(error, CheckpointError)
    assert error.tensor == "t"


def test_s_1_two_giants_whose_sum_wraps(tmp_path: Path) -> None:
    giant = 0x7FFFFFFFFFFFFFC0 // 4
    tensors = [a.gguf_tensor("t", [giant], 0, 0), a.gguf_tensor("u", [giant], 0, 4 * giant)]
    refused(tmp_path / "a.gguf", a.gguf([], tensors, bytes(64)))


def test_gguf_3_a_million_dimensions(tmp_path: Path) -> None:
    content = a.gguf([], [a.gguf_string("t") + struct.pack("<I", 1_000_000)], bytes(64))
    assert "1000000 dimensions" in str(refused(tmp_path / "a.gguf", content))


K = a.gguf_string("k")
COUNTS = {
    "keys": a.gguf([], [], num_keys=HUGE),
    "tensors": a.gguf([], [], num_tensors=HUGE),
    "keys that 64 bits wrap": a.gguf([], [], num_keys=2**64 - 1),
    "length of key": a.gguf([struct.pack("<Q", HUGE)], []),
    "length of string": a.gguf([K + struct.pack("<IQ", a.STR, HUGE)], []),
    "numbers": a.gguf([K + struct.pack("<IIQ", a.ARR, a.U64, HUGE)], []),
    "numbers whose bytes wrap to 0": a.gguf([K + struct.pack("<IIQ", a.ARR, a.U64, 2**61)], []),
    "strings": a.gguf([K + struct.pack("<IIQ", a.ARR, a.STR, HUGE)], []),
    "length of string in array": a.gguf([K + struct.pack("<IIQQ", a.ARR, a.STR, 1, HUGE)], []),
    "arrays": a.gguf([K + struct.pack("<IIQ", a.ARR, a.ARR, HUGE)], []),
    "numbers in nested": a.gguf([K + struct.pack("<IIQIQ", a.ARR, a.ARR, 1, a.U8, HUGE)], []),
    "length of tensor name": a.gguf([], [struct.pack("<Q", HUGE)]),
}


@pytest.mark.parametrize("content", COUNTS.values(), ids=COUNTS.keys())
def test_gguf_2_huge_counts(tmp_path: Path, content: bytes) -> None:
    assert len(content) < 100
    began = time.monotonic()
    refused(tmp_path / "a.gguf", content)
    assert time.monotonic() - began < 1


MEASURED = """
import sys
from pathlib import Path
from firsthand.errors import FirsthandError
from firsthand.processes import peak_resident_bytes
from firsthand.weights.gguf import open_gguf

before = peak_resident_bytes()
for name in sys.argv[1:]:
    try:
        open_gguf(Path(name))
    except FirsthandError:
        continue
    raise SystemExit(name)
print(peak_resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a child is its own on Linux only")
def test_gguf_2_memory_does_not_grow(tmp_path: Path) -> None:
    """The case allows 50 MB; nothing is allocated for a count that cannot be true."""
    many = struct.pack("<IIQ", a.ARR, a.STR, 3_000_000) + bytes(8 * 3_000_000)
    nested = struct.pack("<IIQ", a.ARR, a.ARR, 2_000_000) + bytes(12 * 2_000_000)
    files = [*COUNTS.values(), a.gguf([K + many], []), a.gguf([K + nested], [])]
    for number, content in enumerate(files):
        (tmp_path / str(number)).write_bytes(content)
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, *(str(tmp_path / str(n)) for n in range(len(files)))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert int(run.stdout) < 50 << 20


def test_gguf_2_a_large_vocabulary_still_loads(tmp_path: Path) -> None:
    """262,144 tokens with scores, 500,000 merges, in less than a second for the vocabulary."""
    tokens = [f"▁token{n}" for n in range(262_144)]
    packed = b"".join(a.gguf_string(token) for token in tokens)
    vocabulary = struct.pack("<IIQ", a.ARR, a.STR, len(tokens)) + packed
    scores = struct.pack("<IIQ", a.ARR, a.F32, len(tokens)) + bytes(4 * len(tokens))
    keys = [K + vocabulary, a.gguf_string("s") + scores]
    path = tmp_path / "a.gguf"
    path.write_bytes(a.gguf(keys, []))
    began = time.process_time()
    found = open_gguf(path).metadata
    assert time.process_time() - began < 1
    assert found["k"] == tokens
    assert found["s"].dtype == np.float32 and len(found["s"]) == 262_144


def test_too_many_keys_and_tensors(tmp_path: Path) -> None:
    keys = [a.gguf_key(f"{n:05d}", a.U8, 1) for n in range(65_537)]
    assert "65537 keys" in str(refused(tmp_path / "a.gguf", a.gguf(keys, [])))
    tensors = [a.gguf_tensor("t", [8], 0, 0)] * 65_537
    assert "65537 tensors" in str(refused(tmp_path / "a.gguf", a.gguf([], tensors)))


@pytest.mark.parametrize(("number", "name"), UNSUPPORTED_KINDS.items())
def test_kinds_that_are_known_but_not_supported(tmp_path: Path, number: int, name: str) -> None:
    content = a.gguf([], [a.gguf_tensor("some.weight", [256], number, 0)], bytes(2048))
    error = refused(tmp_path / "a.gguf", content)
    assert isinstance(error, UnsupportedModel)
    assert name in str(error) and "some.weight" in str(error)


def test_a_split_of_one_part_is_a_file(tmp_path: Path) -> None:
    content = a.gguf([a.gguf_key("split.count", a.U16, 1)], [ONE], bytes(32))
    assert opened(tmp_path / "b.gguf", content).tensors


def test_another_alignment_and_another_order(tmp_path: Path) -> None:
    """Data begin at a multiple of 256; tensors may lie in another order than they are listed."""
    key = a.gguf_key("general.alignment", a.U32, 256)
    tensors = [a.gguf_tensor("t", [4], 0, 256), a.gguf_tensor("u", [4], 0, 0)]
    data = b"u" * 16 + bytes(240) + b"t" * 16
    found = opened(tmp_path / "a.gguf", a.gguf([key], tensors, data, alignment=256))
    assert found.raw("t").tobytes() == b"t" * 16
    assert found.raw("u").tobytes() == b"u" * 16


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_gguf(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "fifo.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_gguf(tmp_path / "fifo.gguf")


def test_s_10_cut_anywhere(tmp_path: Path) -> None:
    """Every byte of the header, and 300 random places of a file with more data."""
    content = small()
    for end in range(len(content)):
        refused(tmp_path / "a.gguf", content[:end])
    large = a.gguf([KEY], [a.gguf_tensor("t", [4096], 0, 0)], bytes(4 * 4096))
    for end in random.Random(3).sample(range(len(large)), 300):
        refused(tmp_path / "a.gguf", large[:end])


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(small()) - 1), st.integers(0, 255)), max_size=4))
def test_flipped_bytes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(small())
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(content)
    try:
        found = open_gguf(path)
    except TYPED:
        return
    for name, tensor in found.tensors.items():
        assert found.raw(name).nbytes == tensor.num_bytes
    found.close()


@pytest.mark.oracle
def test_the_table_of_kinds_is_that_of_the_library() -> None:
    constants: Any = importlib.import_module("gguf.constants")
    sizes = {kind.value: (kind.name, *size) for kind, size in constants.GGML_QUANT_SIZES.items()}
    for number, kind in KINDS.items():
        name, block_elements, block_bytes = sizes[number]
        assert kind == name
        assert ggml.bytes_per_row(kind, block_elements) == block_bytes
    others = {number: row[0] for number, row in sizes.items() if number not in KINDS}
    assert others.items() <= UNSUPPORTED_KINDS.items()
    assert not KINDS.keys() & UNSUPPORTED_KINDS.keys()


@pytest.mark.oracle
def test_gguf_1_we_read_what_the_library_writes(tmp_path: Path) -> None:
    """Every metadata type, alone and in an array; every kind of tensor that we support."""
    library: Any = importlib.import_module("gguf")
    kinds: Any = library.GGMLQuantizationType
    path = tmp_path / "library.gguf"
    writer = library.GGUFWriter(path, "llama")
    alone = {"uint8": 200, "int8": -3, "uint16": 60_000, "int16": -3, "uint32": 2**31, "int32": -1,
             "uint64": 2**63, "int64": -(2**60), "float32": 0.25, "float64": 0.1, "bool": True,
             "string": "zwölf"}  # fmt: skip
    for name, value in alone.items():
        getattr(writer, f"add_{name}")(f"one.{name}", value)
    writer.add_array("many.int", [1, -2, 3])
    writer.add_array("many.float", [0.5, 1.5])
    writer.add_array("many.bool", [True, False])
    writer.add_array("many.string", ["a", "", "漢字"])
    rng = np.random.default_rng(5)
    raw: dict[str, bytes] = {}
    for kind in KINDS.values():
        row_bytes = ggml.bytes_per_row(kind, 512)
        content = rng.integers(0, 256, size=(3, row_bytes), dtype=np.uint8)
        raw[kind] = content.tobytes()
        if kind in ("F32", "F16"):
            content = content.view(np.float32 if kind == "F32" else np.float16)
            writer.add_tensor(kind, content)
        else:
            writer.add_tensor(kind, content, raw_dtype=kinds[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    found = open_gguf(path)
    assert {name: found.metadata[f"one.{name}"] for name in alone} == alone
    assert list(found.metadata["many.int"]) == [1, -2, 3]
    assert list(found.metadata["many.float"]) == [0.5, 1.5]
    assert list(found.metadata["many.bool"]) == [True, False]
    assert found.metadata["many.string"] == ["a", "", "漢字"]
    assert {name: found.raw(name).tobytes() for name in found.tensors} == raw
    assert {n: (t.kind, t.shape) for n, t in found.tensors.items()} == {
        kind: (kind, (3, 512)) for kind in KINDS.values()
    }


@pytest.mark.oracle
@pytest.mark.model
def test_a_real_file_reads_as_the_library_reads_it(smollm2_path: Path) -> None:
    library: Any = importlib.import_module("gguf")
    theirs = library.GGUFReader(smollm2_path)
    found = open_gguf(smollm2_path)
    assert set(found.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        ours = found.tensors[tensor.name]
        assert ours.kind == tensor.tensor_type.name
        assert ours.shape == tuple(reversed([int(size) for size in tensor.shape]))
        assert ours.offset == tensor.data_offset
        assert np.array_equal(
            found.raw(tensor.name)[:4096], tensor.data.reshape(-1).view(np.uint8)[:4096]
        )
    for key, value in found.metadata.items():
        expected = theirs.fields[key].contents()
        assert (list(value) if isinstance(value, np.ndarray) else value) == expected
