"""Names to paths, and what list, show and rm say of both caches.

Owns: proof of `weights/catalogue.py` and of the reading half of `weights/places.py`.
Read next: `test_names.py`, which has the hostile names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firsthand.config import Environment
from firsthand.errors import (
    CheckpointError,
    DownloadFailed,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from firsthand.weights.catalogue import (
    Source,
    describe,
    pull,
    remove_model,
    resolve,
)
from firsthand.weights.listing import list_models
from firsthand.weights.model_names import KNOWN_MODELS, KnownModel, WheelPart
from firsthand.weights.places import PullProgress
from tests.weights.test_model_names import CONTROL_NAMES, HOSTILE_NAMES

COMMIT = "a" * 40
OTHER_COMMIT = "b" * 40
DATA = b"GGUF and so on"
TINY = KnownModel(
    name="tiny",
    file="tiny.gguf",
    sha256=hashlib.sha256(DATA).hexdigest(),
    parts=(WheelPart("tiny==1.0", "tiny/tiny.gguf", len(DATA)),),
)
KNOWN = {"tiny": TINY}


def quiet(event: PullProgress) -> None:
    pass


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Empty caches; the current folder is empty too, so that no name is a path by chance."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return Environment(home=tmp_path / "home", hf_cache=tmp_path / "hf", hf_offline=True)


def put_known(env: Environment, data: bytes = DATA) -> Path:
    path = env.home / "models" / "tiny" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def put_snapshot(
    env: Environment, files: dict[str, bytes], commit: str = COMMIT, ref: str | None = "main"
) -> Path:
    """`org/name` in the shared cache, as the hub's own tools leave it."""
    repo = env.hf_cache / "models--org--name"
    snapshot = repo / "snapshots" / commit
    for name, data in files.items():
        blob = repo / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    if ref is not None:
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    return snapshot


SAFETENSORS = {"config.json": b"{}", "model.safetensors": b"weights"}


def index_of(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"t{i}": shard for i, shard in enumerate(shards)}}).encode()


def test_known_name(env: Environment) -> None:
    with pytest.raises(ModelNotFound, match="firsthand pull tiny"):
        resolve("tiny", env, KNOWN)
    path = put_known(env)
    found = resolve("tiny", env, KNOWN)
    assert (found.path, found.source, found.revision) == (path, Source.KNOWN, TINY.sha256)


def test_known_name_of_another_size_is_not_pulled(env: Environment) -> None:
    put_known(env, DATA[:-1])
    with pytest.raises(ModelNotFound):
        resolve("tiny", env, KNOWN)


def test_known_name_wins_over_a_folder_and_dot_slash_means_the_folder(env: Environment) -> None:
    Path("tiny").mkdir()
    Path("tiny/model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFound, match="pull"):
        resolve("tiny", env, KNOWN)
    assert resolve("./tiny", env, KNOWN).path == Path("tiny")


def test_paths(env: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "extra.gguf").write_bytes(b"")
    assert resolve(str(folder), env).path == folder
    assert resolve(str(folder), env).source is Source.FOLDER
    found = resolve(str(folder / "extra.gguf"), env)
    assert (found.path, found.source) == (folder / "extra.gguf", Source.FILE)
    assert pull(str(folder), env, quiet) == resolve(str(folder), env)


def test_folder_with_gguf_files(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    assert resolve(str(tmp_path), env).path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(InvalidRequest, match=r"several .*a\.gguf, b\.gguf"):
        resolve(str(tmp_path), env)


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("pytorch_model.bin", UnsupportedModel, "firsthand convert"),
        ("model.PT", UnsupportedModel, "firsthand convert"),
        ("model.safetensors", InvalidRequest, "weights alone; name its folder"),
        ("notes.txt", UnsupportedModel, r"ends in \.gguf"),
    ],
)
def test_files_of_other_kinds(
    env: Environment, tmp_path: Path, name: str, error: type[Exception], match: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(error, match=match):
        resolve(str(tmp_path / name), env)


def test_folders_without_a_model(env: Environment, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no model\.safetensors.*no \.gguf"):
        resolve(str(tmp_path / "here"), env)
    (tmp_path / "here" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="firsthand convert"):
        resolve(str(tmp_path / "here"), env)


def test_pipes_devices_and_dead_links(env: Environment, tmp_path: Path) -> None:
    """S-8: none of them is opened: a pipe would hang, a device would never end."""
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "dead.gguf").symlink_to("nowhere")
    for path in (tmp_path / "pipe.gguf", tmp_path / "dead.gguf", Path("/dev/null")):
        with pytest.raises(ModelNotFound, match="neither a folder nor a regular file"):
            resolve(str(path), env)


def test_hub_id(env: Environment) -> None:
    snapshot = put_snapshot(env, SAFETENSORS)
    put_snapshot(env, {"x.gguf": DATA}, commit=OTHER_COMMIT, ref="v2")
    found = resolve("org/name", env)
    assert (found.path, found.source, found.revision) == (snapshot, Source.HUB, COMMIT)
    assert resolve(f"org/name@{COMMIT}", env).path == snapshot
    assert resolve("org/name@v2", env).path == snapshot.with_name(OTHER_COMMIT) / "x.gguf"
    assert resolve("org/name@v2:x.gguf", env).path.read_bytes() == DATA
    with pytest.raises(ModelNotFound, match=r"no y\.gguf in .*it has x\.gguf"):
        resolve("org/name@v2:y.gguf", env)
    with pytest.raises(ModelNotFound, match="v3"):
        resolve("org/name@v3", env)


def test_nothing_of_the_shared_cache_is_written(env: Environment) -> None:
    snapshot = put_snapshot(env, SAFETENSORS)
    before = sorted(env.hf_cache.rglob("*"))
    resolve("org/name", env)
    describe("org/name", env, quiet)
    list_models(env)
    assert sorted(env.hf_cache.rglob("*")) == before
    assert snapshot.is_dir() and not env.home.exists()


def test_load_4_missing_shards_are_listed(env: Environment) -> None:
    files = {"model.safetensors.index.json": index_of("a.safetensors", "b.safetensors")}
    put_snapshot(env, files | {"b.safetensors": b""})
    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing: a\.safetensors$"):
        resolve("org/name", env)
    assert [row.complete for row in list_models(env)] == [False]


@pytest.mark.parametrize("gone", list(SAFETENSORS))
def test_load_4_a_link_without_its_blob(env: Environment, gone: str) -> None:
    snapshot = put_snapshot(env, SAFETENSORS)
    (snapshot / gone).resolve().unlink()
    if gone == "model.safetensors":
        with pytest.raises(CheckpointError, match=rf"missing {gone}"):
            resolve("org/name", env)
    assert [row.complete for row in list_models(env)] == [gone == "config.json"]


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": []}}',
        b"[" * 100_000,
        index_of("../x.safetensors"),
        index_of("/etc/x.safetensors"),
        index_of("a/x.safetensors"),
        index_of("a\\x.safetensors"),
        index_of("x\0.safetensors"),
    ],
)
def test_s_8_hostile_index(env: Environment, index: bytes) -> None:
    put_snapshot(env, {"model.safetensors.index.json": index})
    with pytest.raises(CheckpointError, match=r"index\.json"):
        resolve("org/name", env)


@pytest.mark.parametrize("ref", ["", "main", "../../x", COMMIT[:-1], "\u0661" * 40])
def test_hostile_ref(env: Environment, ref: str) -> None:
    snapshot = put_snapshot(env, SAFETENSORS)
    (snapshot.parent.parent / "refs" / "main").write_text(ref)
    with pytest.raises(CheckpointError, match="no commit id"):
        resolve("org/name", env)
    assert [row.name for row in list_models(env)] == [f"org/name@{COMMIT}"]


def test_not_found_says_where_was_looked_and_what_was_meant(env: Environment) -> None:
    with pytest.raises(ModelNotFound, match=r"smollm2-135m.*Did you mean smollm2-135m\?"):
        resolve("smolm2-135m", env)
    with pytest.raises(ModelNotFound, match=r"models--org--nam.*firsthand pull org/nam`"):
        resolve("org/nam", env)
    put_snapshot(env, SAFETENSORS)
    with pytest.raises(ModelNotFound, match=r"Did you mean org/name\?"):
        resolve("org/nam", env)


def ask_resolve(name: str, env: Environment) -> object:
    return resolve(name, env)


def ask_pull(name: str, env: Environment) -> object:
    return pull(name, env, quiet)


def ask_remove(name: str, env: Environment) -> object:
    return remove_model(name, env)


def ask_describe(name: str, env: Environment) -> object:
    return describe(name, env, quiet)


@pytest.mark.parametrize("ask", [ask_resolve, ask_pull, ask_remove, ask_describe])
def test_s_90_hostile_names_everywhere(
    env: Environment, tmp_path: Path, ask: Callable[[str, Environment], object]
) -> None:
    """Refused in words that a terminal can show, and nothing outside is read, made or removed."""
    snapshot = put_snapshot(env, SAFETENSORS)
    (tmp_path / "main").write_text(COMMIT)
    (snapshot.parent / "x.gguf").write_bytes(DATA)
    before = sorted(tmp_path.rglob("*"))
    for name in HOSTILE_NAMES + CONTROL_NAMES:
        with pytest.raises((InvalidRequest, ModelNotFound, UnsupportedModel)) as caught:
            ask(name, env)
        assert str(caught.value).isprintable(), name
    assert sorted(tmp_path.rglob("*")) == before


def test_pull_offline(env: Environment) -> None:
    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE"):
        pull("org/name", env, quiet)


def test_list(env: Environment) -> None:
    put_known(env)
    put_snapshot(env, SAFETENSORS)
    old = {"a.gguf": b"12345", "q4/b.gguf": b"123"}
    put_snapshot(env, old, commit=OTHER_COMMIT, ref=None)
    put_snapshot(env, {"README.md": b""}, commit="c" * 40, ref=None)
    (env.hf_cache / "models--a--b--c").mkdir()
    (env.hf_cache / "datasets--org--name").mkdir()
    rows = {row.name: row for row in list_models(env, KNOWN)}
    assert list(rows) == [
        "org/name",
        f"org/name@{OTHER_COMMIT}:a.gguf",
        f"org/name@{OTHER_COMMIT}:q4/b.gguf",
        "tiny",
    ]
    assert [row.size_bytes for row in rows.values()] == [9, 5, 3, len(DATA)]
    assert [row.form for row in rows.values()] == ["safetensors", "gguf", "gguf", "gguf"]
    assert all(row.complete for row in rows.values())
    for name, row in rows.items():
        found = resolve(name, env, KNOWN)
        assert (found.path, found.revision) == (row.path, row.revision)


def test_list_of_nothing(env: Environment) -> None:
    assert list_models(env) == []


def test_describe_measures_the_hashes(env: Environment) -> None:
    path = put_known(env)
    events: list[PullProgress] = []
    shown = describe("tiny", env, events.append, KNOWN)
    assert (shown.form, shown.size_bytes) == ("gguf", len(DATA))
    assert shown.files[0].sha256 == TINY.sha256 and shown.files[0].is_intact
    assert events[-1].done_bytes == events[-1].total_bytes == len(DATA)
    path.write_bytes(b"x" * len(DATA))
    assert not describe("tiny", env, quiet, KNOWN).files[0].is_intact


def test_describe_a_snapshot(env: Environment) -> None:
    snapshot = put_snapshot(env, SAFETENSORS | {"README.md": b"no"})
    files = describe("org/name", env, quiet).files
    assert [file.name for file in files] == sorted(SAFETENSORS)
    assert all(file.is_intact and file.expected_sha256 for file in files)
    (snapshot / "model.safetensors").resolve().write_bytes(b"changed")
    assert [file.is_intact for file in describe("org/name", env, quiet).files] == [True, False]


def test_remove_known(env: Environment) -> None:
    put_known(env)
    assert remove_model("tiny", env, KNOWN) == len(DATA)
    assert os.listdir(env.home / "models") == []
    with pytest.raises(ModelNotFound):
        remove_model("tiny", env, KNOWN)


def test_remove_hub_model_with_all_its_revisions(env: Environment) -> None:
    put_snapshot(env, SAFETENSORS)
    for name in ("org/name@main2", f"org/name@{COMMIT}", "org/name:x.gguf"):
        with pytest.raises(InvalidRequest, match="at once: org/name"):
            remove_model(name, env)
    assert resolve("org/name", env).path.is_dir()
    assert remove_model("org/name", env) > 0
    assert os.listdir(env.hf_cache) == []


def test_remove_refuses_paths(env: Environment, tmp_path: Path) -> None:
    path = put_known(env)
    for name in (str(path), str(path.parent), ".", str(tmp_path)):
        with pytest.raises(InvalidRequest, match="only cached models"):
            remove_model(name, env, KNOWN)
    assert path.is_file()


def test_remove_does_not_follow_links(env: Environment, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "tiny.gguf").write_bytes(DATA)
    (outside / "mine").write_bytes(b"mine")
    (env.home / "models").mkdir(parents=True)
    (env.home / "models" / "tiny").symlink_to(outside)
    with pytest.raises(InvalidRequest, match="symbolic link"):
        remove_model("tiny", env, KNOWN)
    snapshot = put_snapshot(env, SAFETENSORS)
    (snapshot / "out").symlink_to(outside)
    remove_model("org/name", env)
    assert sorted(os.listdir(outside)) == ["mine", "tiny.gguf"]


def test_remove_that_fails_says_so(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    put_known(env)

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(FirsthandError, match="cannot remove"):
        remove_model("tiny", env, KNOWN)
    assert resolve("tiny", env, KNOWN).path.is_file()


def test_default_list_is_the_pinned_one(env: Environment) -> None:
    for name in KNOWN_MODELS:
        with pytest.raises(ModelNotFound, match=f"firsthand pull {name}"):
            resolve(name, env)
