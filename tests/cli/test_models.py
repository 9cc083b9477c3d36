"""pull, list, show, rm, convert, over caches in a temporary folder; nothing is fetched."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def cached(caches: Path) -> str:
    """A model in the shared cache, under an id of the hub."""
    commit = "0" * 40
    repo = caches / "hub" / "models--org--tiny"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    write_micro_model(snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit, encoding="ascii")
    return "org/tiny"


def called(*arguments: str, code: int = 0) -> dict[str, Any]:
    shown = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert shown.exit_code == code, shown.output
    (line,) = shown.stdout.splitlines()
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


def test_an_empty_cache_is_an_empty_list() -> None:
    assert called("list") == {"models": []}


def test_an_empty_list_says_how_to_begin() -> None:
    shown = CliRunner().invoke(build_app(), ["list"])
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "firsthand pull smollm2-135m" in shown.stderr


@pytest.mark.parametrize("name", ["smollm2-135m", "org/none"])
def test_what_is_not_here_cannot_be_removed(name: str) -> None:
    said = called("rm", name, code=4)["error"]
    assert said == {"type": "ModelNotFound", "message": f"{name} is not on this machine"}


def test_intact_is_only_said_after_a_comparison(tmp_path: Path) -> None:
    """A file of the user's own has no published hash."""
    folder = tmp_path / "mine"
    folder.mkdir()
    write_micro_model(folder)
    done = called("show", str(folder))
    assert [done["intact"], *{file["intact"] for file in done["files"]}] == [None, None]
    shown = CliRunner().invoke(build_app(), ["show", str(folder)])
    assert "no published hash to compare with" in shown.stdout
    assert " intact" not in shown.stdout


def test_a_wrong_hash_is_shown_and_is_4(cached: str, caches: Path) -> None:
    snapshot = next((caches / "hub").glob("models--*/snapshots/*"))
    blob = snapshot.parents[1] / "blobs" / ("0" * 64)
    blob.parent.mkdir()
    (snapshot / "model.safetensors").rename(blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert called("show", cached, code=4)["intact"] is False
    assert "should be 000" in CliRunner().invoke(build_app(), ["show", cached]).stdout


def test_a_cached_model_is_listed_shown_and_removed(cached: str) -> None:
    (row,) = called("list")["models"]
    assert (row["name"], row["form"], row["complete"]) == (cached, "safetensors", True)
    shown = called("show", cached)
    weights = Path(shown["path"]) / "model.safetensors"
    (file,) = [file for file in shown["files"] if file["name"] == "model.safetensors"]
    assert file["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert called("rm", cached)["freed_bytes"] >= shown["size_bytes"]
    assert called("list") == {"models": []}
    assert called("show", cached, code=4)["error"]["type"] == "ModelNotFound"


@pytest.mark.native
def test_the_packed_form_is_written_listed_shown_and_removed(cached: str, caches: Path) -> None:
    assert called("list")["models"][0]["packed_bytes"] == 0
    time.sleep(0.15)  # a model that has only just been written is not packed yet
    packed = called("pack", cached)
    path = Path(packed["path"])
    assert path.stat().st_size == packed["size_bytes"]
    assert called("pack", cached) == packed
    assert called("list")["models"][0]["packed_bytes"] == packed["size_bytes"]
    (form,) = called("show", cached)["packed"]
    assert (form["quantization"], form["intact"]) == ("auto", True)
    assert "packed (auto): " in CliRunner().invoke(build_app(), ["show", cached]).stdout
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + b"\1")
    assert called("show", cached, code=4)["packed"][0]["intact"] is False
    assert "damaged" in CliRunner().invoke(build_app(), ["show", cached]).stdout
    called("rm", cached)
    assert not list((caches / "home" / "packed").glob("*.packed"))


def test_packing_in_a_way_that_does_not_exist(cached: str) -> None:
    said = called("pack", cached, "--quantization", "int5", code=2)["error"]
    assert said["type"] == "InvalidRequest"


def test_tables_say_the_same(cached: str) -> None:
    for command in (["list"], ["show", cached]):
        shown = CliRunner().invoke(build_app(), command)
        assert shown.exit_code == 0
        assert cached in shown.stdout or "model.safetensors" in shown.stdout


def test_a_path_is_never_removed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write_micro_model(folder)
    assert called("rm", str(folder), code=2)["error"]["type"] == "InvalidRequest"
    assert (folder / "model.safetensors").is_file()


def test_pulling_a_path_only_looks(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write_micro_model(folder)
    assert called("pull", str(folder))["path"] == str(folder)


def test_an_unknown_name_is_4() -> None:
    assert called("pull", "smollm2-135", code=4)["error"]["type"] == "ModelNotFound"


def test_converting_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = called("convert", str(tmp_path / "empty"), str(tmp_path / "new"), code=1)
    assert said["error"]["type"] == "CheckpointError"
    assert not (tmp_path / "new").exists()


@pytest.mark.torch
def test_convert(tmp_path: Path) -> None:
    import torch

    source = tmp_path / "old"
    source.mkdir()
    torch.save({"a": torch.arange(6.0).reshape(2, 3)}, source / "pytorch_model.bin")
    done = called("convert", str(source), str(tmp_path / "new"))
    assert (done["num_tensors"], done["num_bytes"]) == (1, 24)
    assert (tmp_path / "new" / "model.safetensors").is_file()


@pytest.mark.native
def test_an_adapter_answers_and_can_be_merged(tmp_path: Path) -> None:
    """`run --lora` and the merged model give one text, and the plain model another."""
    pytest.importorskip("safetensors")
    from tests.weights.adapter_files import write_adapter

    folder = tmp_path / "mine"
    folder.mkdir()
    write_micro_model(folder)
    adapter = write_adapter(tmp_path / "adapter", lora_alpha=16)
    done = called("merge", str(folder), str(tmp_path / "merged"), "--lora", str(adapter))
    assert done["num_changed"] == 2
    asked = ("--max-tokens", "12", "--temperature", "0", "--quantization", "none", "--ignore-end")

    def answer(model: str, *more: str) -> str:
        return str(called("run", str(tmp_path / model), "Hello", *asked, *more)["text"])

    merged = answer("merged")
    assert answer("mine", "--lora", f"one={adapter}") == merged != answer("mine")
    said = called("run", str(folder), "Hello", "--lora", str(adapter), code=2)
    assert said["error"]["message"].startswith("lora: must be NAME=FOLDER")
    said = called("run", str(folder), "Hello", "--adapter", "two", code=2)
    assert said["error"]["message"] == "adapter: 'two' is of no --lora"
    said = called("plan", str(folder), "--lora", f"one={adapter}", code=2)
    assert said["error"]["message"].startswith("lora: goes with run and chat")


def test_a_model_goes_out_as_a_layout_and_comes_back(cached: str, caches: Path) -> None:
    out = called("oci", "export", cached, str(caches / "layout"), "--tag", "v1")
    assert out["digest"].startswith("sha256:") and "model.safetensors" in out["files"]
    back = called("oci", "import", str(caches / "layout"), str(caches / "back"))
    assert (back["files"], back["num_bytes"]) == (out["files"], out["num_bytes"])
    assert called("show", str(caches / "back"))["form"] == "safetensors"
    assert called("oci", "import", str(caches), str(caches / "other"), code=1)["error"]
