"""manifest and release on the command line: what they print, and their exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from firsthand.cli import options
from firsthand.cli.micro_model import write_micro_model
from firsthand.cli.preflight import _of_release
from tests.cli.test_commands import call, called


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "micro"
    folder.mkdir()
    return write_micro_model(folder)


def test_vers_1_a_manifest_is_written_and_a_changed_file_is_exit_code_4(model: Path) -> None:
    data = model.parent / "data.jsonl"
    data.write_text('{"request_id": "1", "text": "a"}\n{"request_id": "2", "text": "b"}\n')
    written = called("manifest", "write", str(model), "--data", str(data), "--name", "small")
    found = json.loads((model / "manifest.json").read_bytes())
    assert found["manifest_sha256"] == written["manifest_sha256"]
    assert found["data"]["hash"] == called("manifest", "data", str(data))["sha256"]
    assert len(found["data"]["contract_hash"]) == 64
    verified = called("manifest", "verify", str(model))
    assert verified["sha256_root"] == written["sha256_root"]
    (model / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes() + b" ")
    assert called("manifest", "verify", str(model), code=4)["error"]["type"] == "BadHash"
    said = called("run", str(model), "Hello", "--max-tokens", "1", code=4)["error"]["message"]
    assert "tokenizer.json: its hash is" in said
    assert f"the manifest says {found['model']['files'][2]['sha256']}" in said


def test_releases_are_staged_listed_and_cleaned_up(model: Path) -> None:
    store, config = str(model.parent / "store"), model.parent / "chat.toml"
    config.write_text("max-model-len = 256\n")
    first = called(*("release", "stage", store, str(model), "--no-golden"), "--config", str(config))
    assert (first["release"], first["new"]) == (1, True)
    second = called("release", "stage", store, str(model), "--no-golden", "--name", "micr")
    assert second["release"] == 2
    assert (
        "micr and micro are one character apart"
        in call("release", "stage", store, str(model), "--no-golden", "--name", "micr").output
    )
    assert called("release", "promote", store, "1")["release"] == 1
    refused = called("release", "promote", store, code=3)["error"]
    assert refused["type"] == "ReleaseRefused"
    assert called("release", "promote", store, "9", code=4)["error"]["type"] == "ModelNotFound"
    (model.parent / "store" / "releases" / "10.bak").mkdir()
    shown = called("release", "history", store)
    assert (shown["current"], shown["previous"], shown["releases"]) == (1, None, [1, 2])
    assert "10.bak" in call("release", "history", store).output
    assert called("release", "gc", store, "--keep", "1")["removed"] == []
    assert called("release", "drill", store, code=3)["passed"] is False


def test_a_configuration_is_read_as_a_server_reads_it(model: Path) -> None:
    config = model.parent / "chat.toml"
    for text, why in (
        ("max-modle-len = 256", "did you mean max-model-len"),
        ('chat-template = "x.jinja"', "files outside the model"),
    ):
        config.write_text(text)
        arguments = ("release", "stage", str(model.parent / "store"), str(model))
        said = called(*arguments, "--config", str(config), code=2)["error"]["message"]
        assert why in said
    assert not (model.parent / "store").exists()


def test_a_contract_that_was_not_named_is_told_as_the_built_in_one(model: Path) -> None:
    data = model.parent / "tickets.csv"
    data.write_text("ticket_id,text\n1,a\n")
    said = called("manifest", "write", str(model), "--data", str(data), code=3)["error"]["message"]
    assert "has no column 'request_id'" in said
    assert "the built-in contract; --contract MODULE:CLASS names yours" in said


def test_a_release_is_no_model_and_says_where_its_model_is(model: Path) -> None:
    store = model.parent / "store"
    called("release", "stage", str(store), str(model), "--no-golden")
    called("release", "promote", str(store), "1")
    found = called("inspect", f"{store}/current", code=4)["error"]["message"]
    assert found.endswith(f"; there is one in {store}/current/model")
    whole = called("manifest", "verify", f"{store}/current")
    assert whole == called("manifest", "verify", f"{store}/current/model")


def test_preflight_holds_a_release_as_it_says_itself(model: Path) -> None:
    config = model.parent / "chat.toml"
    config.write_text("max-model-len = 96\n")
    store = model.parent / "store"
    called(*("release", "stage", str(store), str(model), "--no-golden"), "--config", str(config))
    found = _of_release(str(store / "releases" / "1"), None, options.LOADING)
    assert found.max_context == 96
    asked = replace(options.LOADING, threads=3)
    assert _of_release(str(store / "releases" / "1"), None, asked) == replace(found, threads=3)


def test_a_manifest_that_takes_another_ones_place_says_what_changed(model: Path) -> None:
    call("manifest", "write", str(model))
    assert "warning" not in call("manifest", "write", str(model)).stderr
    with (model / "config.json").open("ab") as file:
        file.write(b" ")
    (model / "tokenizer.json").unlink()
    (model / "notes.md").write_text("a")
    (model / "manifest.json.dsse").write_text("{}")
    said = call("manifest", "write", str(model)).stderr
    assert "changed: config.json; gone: tokenizer.json; new: notes.md" in said
    assert "has no tokenizer.json" in said
    assert "manifest.json.dsse is of the one that is replaced: sign it anew" in said
    (model / "manifest.json").write_text('{"schema_version": 1}')
    assert "what is replaced was damaged" in call("manifest", "write", str(model)).stderr
