"""What ModelScope's tools have fetched, in each layout that they have had, is found by its name.

Owns: proof of `weights/modelscope.py`. May not know: the other caches' order.
Read next: `test_catalogue.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from firsthand.config import Environment
from firsthand.errors import CheckpointError, InvalidRequest, ModelNotFound
from firsthand.weights.catalogue import Source, pull, remove_model, resolve
from firsthand.weights.listing import list_models
from firsthand.weights.places import PullProgress

FILES = {"config.json": b"{}", "model.safetensors": b"weights", ".mv": b"Revision:master"}
NAME = "Qwen/Qwen2.5-0.5B"
OLD = "Qwen/Qwen2___5-0___5B"
NEW = "models/Qwen--Qwen2.5-0.5B/snapshots"


def quiet(event: PullProgress) -> None:
    pass


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.chdir(tmp_path)
    return Environment(
        home=tmp_path / "home",
        hf_cache=tmp_path / "hf",
        hf_offline=True,
        modelscope_cache=tmp_path / "ms",
    )


def put(env: Environment, place: str, files: dict[str, bytes] = FILES) -> Path:
    assert env.modelscope_cache is not None
    folder = env.modelscope_cache / place
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    "place",
    [f"models/{OLD}", f"hub/models/{OLD}", OLD, f"hub/{OLD}", f"{NEW}/master", f"{NEW}/v1.0"],
)
def test_every_layout_is_read(env: Environment, place: str) -> None:
    with pytest.raises(ModelNotFound, match="ModelScope"):
        resolve(NAME, env)
    folder = put(env, place)
    if "___" in place:  # as their tools do
        (folder.parent / NAME.split("/")[1]).symlink_to(folder)
    found = resolve(NAME, env)
    assert (found.path, found.source) == (folder, Source.MODELSCOPE)
    assert pull(NAME, env, quiet).path == folder  # it is here: the hub is not asked
    (row,) = list_models(env)
    assert (row.name, row.path, row.complete) == (NAME, folder, True)
    with pytest.raises(InvalidRequest, match="its own tools remove it"):
        remove_model(NAME, env)


def test_a_revision_is_its_own_folder(env: Environment) -> None:
    put(env, f"{NEW}/v1")
    put(env, f"{NEW}/v2")
    with pytest.raises(ModelNotFound):  # which of the two?
        resolve(NAME, env)
    for version in ("v1", "v2"):
        assert resolve(f"{NAME}@{version}", env).path.name == version
    assert [row.name for row in list_models(env)] == [f"{NAME}@v1", f"{NAME}@v2"]
    master = put(env, f"{NEW}/master")
    assert resolve(NAME, env).path == master


def test_a_gguf_file_and_an_incomplete_model(env: Environment) -> None:
    folder = put(env, "models/org/one", {"a.gguf": b"GGUF", "b.gguf": b"GGUF"})
    put(env, "models/org/two", {"model.safetensors.index.json": b'{"weight_map": {"x": "y.safe'})
    assert resolve("org/one:b.gguf", env).path == folder / "b.gguf"
    with pytest.raises(InvalidRequest, match="several"):
        resolve("org/one", env)
    with pytest.raises(CheckpointError):
        resolve("org/two", env)
    rows = [(row.name, row.complete) for row in list_models(env)]
    assert rows == [("org/one:a.gguf", True), ("org/one:b.gguf", True), ("org/two", False)]


def test_the_shared_cache_is_looked_at_first(env: Environment) -> None:
    put(env, f"models/{OLD}")
    commit = "a" * 40
    snapshot = env.hf_cache / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(commit)
    for name, content in FILES.items():
        (snapshot / name).write_bytes(content)
    assert resolve(NAME, env).source is Source.HUB
    assert [row.path for row in list_models(env)] == [snapshot]


def test_foreign_names_are_passed_over(env: Environment) -> None:
    put(env, "models/-bad/na..me")
    put(env, "models/a--b--c/snapshots/master")
    put(env, "models/datasets/empty", {"README.md": b""})
    assert list_models(env) == []
    assert list_models(replace(env, modelscope_cache=None)) == []
    assert not os.path.exists(env.home)
