"""The packed file: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError
from firsthand.quant.formats import ChannelFormat, FloatFormat, GroupedFormat
from firsthand.weights import packed_file
from firsthand.weights.packed_file import (
    ALIGNMENT,
    MAX_HEADER_BYTES,
    PackedEntry,
    PackedFile,
    huge_pages,
    read_header,
    write_packed,
)

GROUPED = GroupedFormat(4, 32, "float16", has_minimum=True)
ENTRIES = [
    PackedEntry("a", (16, 32), "F16", FloatFormat("float16"), 1088),
    PackedEntry("b", (5, 7), "F32", ChannelFormat(), 192),
    PackedEntry("c", (16, 32), "Q4_1", GROUPED, 5000),
]


def write(path: Path) -> Path:
    weights = [
        (entry, lambda i=i, entry=entry: [memoryview(bytes([i + 1]) * entry.num_bytes)])
        for i, entry in enumerate(ENTRIES)
    ]
    write_packed(path, "key", "content", "/somewhere/model", "auto", weights)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("packed") / "a.packed").read_bytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = PackedFile(write(tmp_path / "a.packed"))
    assert (file.header.key, file.header.content) == ("key", "content")
    assert (file.header.source, file.header.quantization) == ("/somewhere/model", "auto")
    assert list(file.header.entries) == ENTRIES
    assert [entry for entry, _ in file.weights()] == list(file.header.entries)
    for i, (entry, memory) in enumerate(file.weights()):
        assert memory.tobytes() == bytes([i + 1]) * entry.num_bytes
        assert memory.ctypes.data % 64 == 0
        assert not memory.flags.writeable
    file.verify()


@given(st.lists(st.integers(0, 5 << 20), max_size=6))
@settings(deadline=None, max_examples=20)
def test_bytes_are_written_in_whole_huge_pages(sizes: list[int]) -> None:
    chunks = [memoryview(bytes([number + 1]) * size) for number, size in enumerate(sizes)]
    pages = list(huge_pages(iter(chunks)))
    assert b"".join(pages) == b"".join(chunks)
    assert {len(page) for page in pages[:-1]} <= {2 << 20}
    assert len(pages[-1]) < 2 << 20


def test_a_weight_of_another_size_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not 1088"):
        write_packed(
            tmp_path / "a", "k", "c", "s", "auto", [(ENTRIES[0], lambda: [memoryview(b"short")])]
        )


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write(tmp_path / "a.packed")
    with pytest.raises(FileExistsError):
        write(tmp_path / "a.packed")


def test_every_length_but_the_whole_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.packed"
    head = ALIGNMENT + 200
    for length in [*range(0, head, 17), *range(head, len(whole), 1997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_header(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError):
        read_header(path)


def test_every_bit_of_the_header_counts(whole: bytes, tmp_path: Path) -> None:
    length = 44 + struct.unpack_from("<I", whole, 8)[0]
    path = tmp_path / "flipped.packed"
    for position in range(length):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read_header(path)


@pytest.mark.parametrize("section_bytes", [ALIGNMENT, 2 * ALIGNMENT, 3 * ALIGNMENT, 16 << 20])
def test_every_byte_of_every_weight_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section_bytes: int
) -> None:
    monkeypatch.setattr(packed_file, "_SECTION_BYTES", section_bytes)
    path = write(tmp_path / "a.packed")
    whole = path.read_bytes()
    for num_threads in (1, 2, 9):
        PackedFile(path).check(num_threads).wait()
    for position in (*range(ALIGNMENT, len(whole), 997), len(whole) - 1):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        for num_threads in (1, 3):
            with pytest.raises(CheckpointError, match="differ from their sums"):
                PackedFile(path).check(num_threads).wait()
        with pytest.raises(CheckpointError, match="differ from their sums"):
            PackedFile(path).verify()


def hostile(whole: bytes, change: dict[str, Any], weight: dict[str, Any]) -> bytes:
    """The file with other fields, and with the right hash over them."""
    length = struct.unpack_from("<I", whole, 8)[0]
    fields = json.loads(whole[44 : 44 + length])
    fields["weights"][0].update(weight)
    text = json.dumps(fields | change).encode()
    head = struct.pack("<8sI32s", b"FHPACKED", len(text), hashlib.sha256(text).digest()) + text
    return head + bytes(-len(head) % ALIGNMENT) + whole[ALIGNMENT:]


@pytest.mark.parametrize(
    ("change", "weight"),
    [
        ({"key": 1}, {}),
        ({"key": ""}, {}),
        ({"source": "x" * 10_000}, {}),
        ({"more": 1}, {}),
        ({"weights": {}}, {}),
        ({"weights": []}, {}),
        ({"weights": [7]}, {}),
        ({}, {"name": "b"}),
        ({}, {"shape": [16]}),
        ({}, {"shape": [16, -32]}),
        ({}, {"shape": [16, 2**70]}),
        ({}, {"shape": [True, 32]}),
        ({}, {"shape": 16}),
        ({}, {"num_bytes": 0}),
        ({}, {"num_bytes": 2**60}),
        ({}, {"num_bytes": 1088 + ALIGNMENT}),
        ({}, {"num_bytes": "1088"}),
        ({}, {"format": {"of": "float", "dtype": "float64"}}),
        ({}, {"format": {"of": "nothing"}}),
        ({}, {"format": None}),
        ({}, {"format": {"of": "grouped", "bits": 3}}),
        ({}, {"kind": []}),
        ({}, {"more": 1}),
        ({"crc32": 7}, {}),
        ({"crc32": ""}, {}),
        ({"crc32": "notasum!"}, {}),
        ({"crc32": "00000000" * 2}, {}),
    ],
)
def test_a_hostile_header_is_refused(
    whole: bytes, tmp_path: Path, change: dict[str, Any], weight: dict[str, Any]
) -> None:
    path = tmp_path / "hostile.packed"
    path.write_bytes(hostile(whole, {}, {}))
    assert read_header(path).key == "key"  # the way it is made is right
    path.write_bytes(hostile(whole, change, weight))
    with pytest.raises(CheckpointError):
        read_header(path)


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.packed"
    with open(path, "wb") as file:
        file.write(struct.pack("<8sI32s", b"FHPACKED", MAX_HEADER_BYTES + 1, bytes(32)))
        file.truncate(2 * MAX_HEADER_BYTES)
    with pytest.raises(CheckpointError, match="does not fit"):
        read_header(path)


@settings(deadline=None, max_examples=200)
@given(content=st.binary(max_size=300), after_magic=st.booleans())
def test_anything_else_is_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, after_magic: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.packed"
    path.write_bytes(b"FHPACKED" * after_magic + content)
    with pytest.raises(CheckpointError):
        read_header(path)
