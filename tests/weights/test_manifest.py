"""Manifests: written, read, compared, refused where a bit differs (VERS-1, VERS-2, D-7, D-8)."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import BadHash, CheckpointError
from firsthand.weights.manifest import NAME, files_of, manifest_path, read_manifest
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.sums import TICK_NS, Sums
from firsthand.weights.verifying import verified, verify

SUMS = Sums(None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "micro"
    folder.mkdir()
    write_micro_model(folder)
    write_manifest(folder, make_manifest(folder, Told(version="7"), SUMS))
    return folder


def test_a_manifest_is_read_as_it_was_written(model: Path) -> None:
    manifest = read_manifest(model)
    assert manifest is not None
    assert (manifest.name, manifest.version) == ("micro", "7")
    assert [one.path for one in manifest.files] == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    found = json.loads((model / NAME).read_bytes())
    assert found["model"]["sha256_root"] == manifest.sha256_root
    assert found["manifest_sha256"] == manifest.sha256
    assert verify(model, SUMS) == manifest


def flips(model: Path) -> Iterator[tuple[Path, int, int]]:
    source = random.Random(7)
    for name, path in [*files_of(model), (NAME, model / NAME)]:
        size = path.stat().st_size
        for _ in range(12 if name == NAME else 4):
            yield path, source.randrange(size), 1 << source.randrange(8)


def test_vers_1_d_7_one_bit_anywhere_is_refused_by_name(model: Path) -> None:
    for path, at, bit in flips(model):
        content = path.read_bytes()
        changed = bytes([*content[:at], content[at] ^ bit, *content[at + 1 :]])
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=path.name) as refused:
            verify(model, SUMS)
        if path.name != NAME:
            assert isinstance(refused.value, BadHash)
            assert SUMS.of(path) in str(refused.value)
        path.write_bytes(content)
    verify(model, SUMS)


def test_d_8_a_missing_file_and_one_too_many_are_refused(model: Path) -> None:
    (model / "extra.bin").write_bytes(b"x")
    with pytest.raises(BadHash, match=r"names no extra\.bin"):
        verify(model, SUMS)
    (model / "extra.bin").unlink()
    (model / "tokenizer.json").unlink()
    with pytest.raises(BadHash, match=r"tokenizer\.json is not there; its hash should be"):
        verify(model, SUMS)


def test_vers_2_an_empty_file_is_named_as_such(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(BadHash, match="that of an empty file"):
        verify(model, SUMS)
    with pytest.raises(CheckpointError, match="is empty"):
        make_manifest(model, Told(), SUMS)
    weights.rename(model / "model.safetensors.part")
    with pytest.raises(CheckpointError, match="unfinished"):
        make_manifest(model, Told(), SUMS)


def test_one_file_has_its_manifest_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF and more")
    (tmp_path / "other").write_bytes(b"does not belong to it")
    write_manifest(file, make_manifest(file, Told(), SUMS))
    assert manifest_path(file).name == "a.gguf.manifest.json"
    assert verify(file, SUMS).name == "a"
    file.write_bytes(b"GGUF and mere")
    with pytest.raises(BadHash, match=r"a\.gguf"):
        verify(file, SUMS)


def test_a_foreign_file_of_that_name_is_left_alone(model: Path) -> None:
    (model / NAME).write_text('{"name": "an app"}')
    assert read_manifest(model) is None
    with verified(model, SUMS) as found:
        assert found is None


def test_a_changed_file_is_told_before_what_it_led_to(model: Path) -> None:
    (model / "config.json").write_bytes((model / "config.json").read_bytes().replace(b"64", b"65"))
    with pytest.raises(BadHash, match=r"config\.json"), verified(model, SUMS):
        raise CheckpointError("config.json", "the width is wrong")


def test_large_files_may_be_left_to_another_load(model: Path) -> None:
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with verified(model, SUMS, 100_000):
        pass
    with pytest.raises(BadHash), verified(model, SUMS):
        pass


def test_a_sum_is_remembered_until_its_file_changes(tmp_path: Path) -> None:
    file, sums = tmp_path / "file", Sums(tmp_path / "sums")
    file.write_bytes(b"one")
    first = sums.of(file)
    wait_past_tick(file)
    assert sums.of(file) == first
    (record,) = (tmp_path / "sums").iterdir()
    told = json.loads(record.read_bytes())
    record.write_text(json.dumps(told | {"sha256": "0" * 64}))
    assert sums.of(file) == "0" * 64  # it was not read again
    file.write_bytes(b"two")
    assert sums.of(file) == Sums(None).of(file)


def wait_past_tick(file: Path) -> None:
    while time.time_ns() - file.stat().st_ctime_ns < TICK_NS:
        time.sleep(0.01)


def test_links_out_and_names_that_are_no_text_are_refused(model: Path) -> None:
    """S-8: what a folder leads to elsewhere is no part of a model, and is not copied anywhere."""
    secret = model.parent / "secret"
    secret.write_text("key")
    for target, says in (
        (secret, r"out: is a link that leads out of its folder"),
        (model / "nowhere", r"out: is a link that leads nowhere"),
        (model.parent, r"out: is a link to a folder"),
    ):
        (model / "out").symlink_to(target)
        with pytest.raises(CheckpointError, match=says):
            make_manifest(model, Told(), SUMS)
        with pytest.raises(CheckpointError, match=says):
            verify(model, SUMS)
        (model / "out").unlink()
    strange = os.path.join(os.fsencode(model), b"\xff\xfe")
    open(strange, "wb").close()
    with pytest.raises(CheckpointError, match="has a name that is not UTF-8"):
        make_manifest(model, Told(), SUMS)


def test_links_into_the_blobs_of_a_hub_cache_are_the_models_own(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--micro"
    snapshot, blobs = repo / "snapshots" / "abc", repo / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    write_micro_model(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", path.name))
    assert len(make_manifest(snapshot, Told(), SUMS).files) == 4
