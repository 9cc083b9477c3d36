"""Owns: the reading of small untrusted files. May not know: what they mean.
Read next: `files.py`."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.files import (
    MAX_DOTTED,
    check_writable,
    open_regular,
    parse_json_object,
    path_inside,
    read_start,
    read_whole,
    strict_toml,
)


def test_a_whole_file_and_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_whole(path, 5) == b"12345" and read_start(path, 2) == b"12"
    with pytest.raises(CheckpointError, match="has 5 bytes; the limit is 4"):
        read_whole(path, 4)


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    tracemalloc.start()
    try:
        read_whole(tmp_path / "a", 1 << 28)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", ".", "missing", "a\0b"):
        with pytest.raises(CheckpointError):
            open_regular(tmp_path / name)


def test_where_nothing_can_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    check_writable("out", tmp_path / "new")
    (tmp_path / "old").write_text("x")
    check_writable("out", tmp_path / "old")
    check_writable("out", Path(os.devnull))
    for name in (".", "no/folder", "x" * 300):
        with pytest.raises(InvalidRequest, match=r"^out: "):
            check_writable("out", tmp_path / name)
    assert not (tmp_path / "new").exists()


def test_a_file_that_grows_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")

    def stale(path: Path) -> tuple[int, int]:
        return os.open(path, os.O_RDONLY), 4

    monkeypatch.setattr("firsthand.files.open_regular", stale)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        read_whole(path, 100)


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/a", "a/b", "a\\b", "a\0", "x" * 256])
def test_names_that_are_no_plain_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="plain name"):
        path_inside(tmp_path, name)


def test_links(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "in").symlink_to(home / "a")
    (home / "out").symlink_to(tmp_path / "a")
    (home / "loop").symlink_to(home / "loop")
    assert path_inside(home, "in") == home.resolve() / "a"
    with pytest.raises(CheckpointError, match="leads out"):
        path_inside(home, "out")
    with pytest.raises(CheckpointError):
        read_whole(path_inside(home, "loop"), 1)


STRICT = {
    "twice": b'{"a": 1, "a": 1}',
    "twice inside": b'{"a": [{"b": 1, "b": 2}]}',
    "not a number": b'{"a": NaN}',
    "infinite": b'{"a": -Infinity}',
    "too large": b'{"a": 1e999}',
    "many digits": b'{"a": ' + b"1" * 5000 + b"}",
    "not UTF-8": b'{"a": "\xff"}',
    "half a character": b'{"a": "\\ud800"}',
    "deep": b'{"a":' + b"[" * 90 + b"{" * 9 + b"}",
    "very deep": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a list": b"[]",
    "cut": b'{"a": 1',
    "more": b"{} {}",
    "empty": b"",
    "many items": b'{"a": [' + b"1," * 10_000 + b"1]}",
}


@pytest.mark.parametrize("name", STRICT)
def test_json_is_strict(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"a\.json") as caught:
        parse_json_object(STRICT[name], "a.json", 10_000)
    assert len(str(caught.value)) < 300


def test_json_that_passes() -> None:
    content = '{"a": [1, 2.5, "é\\u0041", null, true], "b": {}}'.encode()
    assert parse_json_object(content, "a.json", 8) == {"a": [1, 2.5, "éA", None, True], "b": {}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "9" * 5000, "4300 digits"),
        ("a = " + "[" * 3000, "nested too deep"),
        ("a = " + "{x=" * 3000, "nested too deep"),
        ("a." * MAX_DOTTED + "b = 1", "a key has over"),
        ('"a b" . ' * MAX_DOTTED + "b = 1", "a key has over"),
        ("x = {" + "a." * MAX_DOTTED + "b = 1}", "a key has over"),
        ("[" + "a." * MAX_DOTTED + "b]", "a key has over"),
        ("a = 1\na = 2", "Cannot overwrite"),
    ],
)
def test_toml_that_would_take_the_stack_or_the_memory_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        strict_toml(text)


def test_toml_of_long_words_and_many_sentences_is_read() -> None:
    prose = "It was so. Then it was not ... " * 100
    assert strict_toml(f"a.b = '{prose}'\nc = '{'x' * 500_000}'")["a"] == {"b": prose}
