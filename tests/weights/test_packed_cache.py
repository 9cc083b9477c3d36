"""Whose packed file is whose: identities, keys, room, and what goes when."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from firsthand.errors import CapacityExceeded, CheckpointError
from firsthand.quant.formats import ChannelFormat
from firsthand.weights import packed_cache
from firsthand.weights.checkpoint import FileIdentity
from firsthand.weights.packed_cache import PackedCache, list_packed, packed_of, remove_packed
from firsthand.weights.packed_file import PackedEntry, write_packed

LATER_NS = 10**9


def identity(path: Path) -> FileIdentity:
    return FileIdentity.of(str(path), path.stat())


def opened_ns(path: Path) -> int:
    return path.stat().st_ctime_ns + LATER_NS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"first")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", "fingerprint")


def put(
    cache: PackedCache,
    final: Path,
    source: str,
    quantization: str = "auto",
    content: str = "content",
) -> None:
    entry = PackedEntry("a", (5, 7), "F32", ChannelFormat(), 192)
    with cache.writing(final, 192) as partial:
        assert partial is not None
        weights = [(entry, lambda: [memoryview(bytes(192))])]
        write_packed(partial, final.stem, content, source, quantization, weights)


def test_a_recorded_model_is_found_until_it_changes(cache: PackedCache, model: Path) -> None:
    files = [identity(model)]
    assert cache.find("source", files, "auto") is None
    content = cache.record("source", files, opened_ns(model))
    found = cache.find("source", files, "auto")
    assert found == cache.path_of(content, "auto")
    assert cache.find("other", files, "auto") is None
    assert cache.find("source", files, "int8") not in (None, found)
    model.write_bytes(b"later")  # as long, and perhaps within the same second
    os.utime(model, ns=(files[0].mtime_ns, files[0].mtime_ns))
    assert cache.find("source", [identity(model)], "auto") is None


def test_the_same_content_elsewhere_has_the_same_key(
    cache: PackedCache, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    copy = Path(shutil.copy(model, tmp_path / "copy"))
    one = cache.record("one", [identity(model)], opened_ns(model))
    assert cache.record("two", [identity(copy)], opened_ns(copy)) == one
    other = PackedCache(cache.folder, "another packing")
    assert other.key_of(one, "auto") != cache.key_of(one, "auto") != cache.key_of(one, "none")


def test_a_file_that_changed_since_is_not_recorded(cache: PackedCache, model: Path) -> None:
    files = [identity(model)]
    model.write_bytes(b"later, longer")
    with pytest.raises(CheckpointError, match="changed since"):
        cache.record("source", files, opened_ns(model))
    with pytest.raises(CheckpointError, match="only just"):
        cache.record("source", [identity(model)], model.stat().st_ctime_ns + 1000)
    assert cache.find("source", [identity(model)], "auto") is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 1}', '{"files": [], "content": "x"}'])
def test_a_broken_record_is_no_record(cache: PackedCache, model: Path, text: str) -> None:
    cache.record("source", [identity(model)], opened_ns(model))
    (record,) = (cache.folder / "sources").iterdir()
    record.write_text(text, encoding="utf-8")
    assert cache.find("source", [identity(model)], "auto") is None


def test_nothing_partial_has_a_name_and_the_next_writer_clears_up(cache: PackedCache) -> None:
    final = cache.path_of("content", "auto")
    with pytest.raises(OSError, match="disk"), cache.writing(final, 1) as partial:
        assert partial is not None
        partial.write_bytes(b"half")
        raise OSError("disk")
    assert [path.name for path in cache.folder.iterdir()] == ["lock"]
    left = cache.folder / ".killed.0000.partial"
    left.write_bytes(b"half")
    put(cache, final, "source")
    assert not left.exists()
    with cache.writing(final, 1) as partial:
        assert partial is None  # it is there


def test_room_is_left_on_the_disk(cache: PackedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    few = packed_cache.SPARE_DISK_BYTES + 10
    usage = SimpleNamespace(free=few)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with (
        pytest.raises(CapacityExceeded, match="no room for 11 bytes"),
        cache.writing(cache.path_of("c", "auto"), 11),
    ):
        pass
    with cache.writing(cache.path_of("c", "auto"), 10) as partial:
        assert partial is not None
        partial.write_bytes(b"fits")


def test_what_a_path_was_packed_as_before_goes(cache: PackedCache) -> None:
    old, new = cache.path_of("old", "auto"), cache.path_of("new", "auto")
    int8, other = cache.path_of("old", "int8"), cache.path_of("other", "auto")
    put(cache, old, "source")
    put(cache, new, "source")
    put(cache, int8, "source", "int8")
    put(cache, other, "elsewhere")
    cache.drop_older(new, "source", "auto")
    assert {model.path for model in list_packed(cache.folder)} == {new, int8, other}


def test_listing_and_removing(cache: PackedCache, tmp_path: Path) -> None:
    inside = str(tmp_path / "models" / "a.gguf")
    put(cache, cache.path_of("one", "auto"), inside)
    put(cache, cache.path_of("two", "auto"), inside + ".other")
    (cache.folder / "foreign.packed").write_bytes(b"not ours")
    models = list_packed(cache.folder)
    assert len(models) == 3
    of_folder = [model for model in models if model.is_of(tmp_path / "models")]
    of_file = [model for model in models if model.is_of(Path(inside))]
    assert (len(of_folder), len(of_file)) == (2, 1)
    assert [model.is_intact() for model in of_folder] == [True, True]
    assert sorted(m.header is None for m in models) == [False, False, True]
    freed = remove_packed(of_file)
    assert freed == of_file[0].size_bytes
    assert len(list_packed(cache.folder)) == 2


def test_what_was_packed_from_another_path_belongs_to_the_same_content(
    cache: PackedCache, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    copy = Path(shutil.copy(model, tmp_path / "copy"))
    content = cache.record(os.path.realpath(model), [identity(model)], opened_ns(model))
    put(cache, cache.path_of(content, "auto"), str(model), content=content)
    assert len(packed_of(model, list_packed(cache.folder))) == 1
    assert packed_of(copy, list_packed(cache.folder)) == []  # nobody has read it yet
    cache.record(os.path.realpath(copy), [identity(copy)], opened_ns(copy))
    assert len(packed_of(copy, list_packed(cache.folder))) == 1
    copy.write_bytes(b"later")
    assert packed_of(copy, list_packed(cache.folder)) == []
    copy.unlink()
    assert packed_of(copy, list_packed(cache.folder)) == []
