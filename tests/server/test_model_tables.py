"""What `config show` and `config check` say of `[[model]]` tables, and a lone model of its memory.

Owns: proof of `Configured.rows`, `Member.memory_bytes`. Read next: `test_settings.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from firsthand.cli.main import build_app
from tests.server.guarded import guarded

PATH = "/v1/chat/completions"
TABLES = """
max-model-len = 512
[[model]]
path = "a"
name = "first"
max-model-len = 256
[[model]]
path = "b"
load = "lazy"
pinned = true
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), arguments)


def test_show_tells_each_table_and_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(TABLES)
    shown = call("config", "show", "--config", str(file), "--json")
    rows = json.loads(shown.stdout)["settings"]
    found = {row["name"]: row["value"] for row in rows if row["name"].startswith("model[")}
    assert found == {
        "model[0].path": "a",
        "model[0].name": "first",
        "model[0].max_model_len": "256",
        "model[1].path": "b",
        "model[1].load": "lazy",
        "model[1].pinned": "true",
    }
    assert all(str(file) in row["origin"] for row in rows if row["name"] in found)
    assert "model[" not in call("config", "show", "a", "b").stdout  # the paths stand there already


def test_check_reads_what_a_table_names(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(TABLES)
    done = json.loads(call("config", "check", "--config", str(file), "--json").stdout)
    assert done["models"] == ["first", "b"]
    file.write_text(TABLES + 'chat-template = "/nowhere/template"\n')
    failed = call("config", "check", "--config", str(file))
    assert failed.exit_code == 2 and "/nowhere/template" in failed.stderr


def test_a_lone_model_tells_the_memory_that_it_takes() -> None:
    with guarded() as server:
        _, answer = server.get("/v1/models")
        (card,) = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]
        assert card["firsthand_memory_bytes"] == 7 << 20
        _, metrics = server.get("/metrics")
        assert b'firsthand_model_memory_bytes{model="micro"} 7.340032e+06' in metrics


@pytest.mark.parametrize(("first", "second", "status"), [(5, 5, 200), (5, 6, 400)])
def test_two_names_of_a_limit_have_to_agree(first: int, second: int, status: int) -> None:
    asked = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": first,
        "max_completion_tokens": second,
    }
    with guarded() as server:
        got, answer = server.post(PATH, json.dumps(asked).encode())
    assert got == status
    assert status == 200 or b'"param":"max_completion_tokens"' in answer
