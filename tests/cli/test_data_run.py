"""`data run`, `run-batch`, `data quarantine`, `data trace`: with a real engine in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.main import run_command
from firsthand.cli.micro_model import write_micro_model
from tests.data.jobs import ask, lines, outputs

pytestmark = [pytest.mark.native, pytest.mark.process]

JOB = """
[source]
path = "in.jsonl"
[engine]
model = "micro"
options = { max_tokens = 4, temperature = 0 }
[sink]
path = "out.jsonl"
keep = ["request_id"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "micro").mkdir()
    write_micro_model(tmp_path / "micro")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run_command([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_job_its_quarantine_and_its_trace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_bytes(lines(*map(ask, range(12)), {"request_id": "x"}))
    job = str(folder / "job.toml")
    Path(job).write_text(JOB)
    code, found = run(capsys, "data", "run", job, "--dry-run")
    assert code == 0 and (found["accepted"], found["quarantined"]) == (12, 1)
    code, found = run(capsys, "data", "run", job, "--strict")
    assert code == 3 and found["ended"] and found["read"] == 13
    answers = outputs(folder)
    assert [one["request_id"] for one in answers] == [f"r{number}" for number in range(12)]
    assert all(one["completion_tokens"] <= 4 for one in answers)
    _, found = run(capsys, "data", "quarantine", "ls", job)
    assert [one["reason"] for one in found["quarantine"]] == ["missing_field"]
    record = json.dumps({"request_id": "x", "text": "text 3"})
    assert run(capsys, "data", "quarantine", "fix", job, "1", record)[0] == 0
    assert run(capsys, "data", "quarantine", "show", job, "1")[1]["fixed"] == record
    code, found = run(capsys, "data", "quarantine", "replay", job)
    assert found["replayed"]["accepted"] == 1 and found["books"]["quarantined"] == 0
    assert outputs(folder)[12]["answer"] == answers[3]["answer"]
    code, found = run(capsys, "data", "trace", job, "r3")
    assert found["found"][0]["input"]["record"] == 4
    code, found = run(capsys, "data", "lineage", job)
    assert [one["eventType"] for one in found["events"]] == ["START", "COMPLETE"]
    code, found = run(capsys, "data", "trace", job, "nobody")
    assert code == 2 and found["error"]["type"] == "InvalidRequest"


def test_a_batch_in_openais_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "micro", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}

    def line(name: str, url: str = "/v1/chat/completions", **more: Any) -> dict[str, Any]:
        return {"custom_id": name, "method": "POST", "url": url, "body": {**body, **more}}

    requests = lines(
        line("a"),
        line("b", max_tokens=-1),
        line("c", stream=True),
        line("d", url="/v1/files"),
        line("a"),
        line("e", model="other"),
        {
            "custom_id": "f",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "micro", "prompt": "x", "max_tokens": 2},
        },
    )
    (folder / "in.jsonl").write_bytes(requests)
    files = ("-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"))
    arguments = ("run-batch", *files, "--model", str(folder / "micro"), "--name", "micro")
    code, found = run(capsys, *arguments)
    assert code == 0
    assert (found["accepted"], found["quarantined"], found["duplicates"]) == (4, 2, 1)
    answers = {one["custom_id"]: one for one in outputs(folder)}
    assert list(answers) == ["a", "b", "e", "f"]
    assert {name: one["response"]["status_code"] for name, one in answers.items()} == {
        "a": 200,
        "b": 400,
        "e": 404,
        "f": 200,
    }
    assert answers["a"]["error"] is None and answers["a"]["id"].startswith("batch_req_")
    assert answers["a"]["response"]["body"]["usage"]["completion_tokens"] == 3
    assert answers["b"]["response"]["body"]["error"]["param"] == "max_tokens"
    code, found = run(capsys, *arguments)
    assert code == 3 and "the run is complete" in found["error"]["message"]
    ledger = str(folder / "out.jsonl.ledger")
    code, found = run(capsys, "data", "trace", ledger, "a")
    assert code == 0 and found["found"][0]["input"]["now"] == "same"
    assert found["found"][0]["request_id"] == answers["a"]["response"]["request_id"]
    code, found = run(capsys, "data", "lineage", ledger)
    assert [one["eventType"] for one in found["events"]] == ["START", "COMPLETE"]
    code, found = run(capsys, "run-batch", *files)
    assert code == 2
