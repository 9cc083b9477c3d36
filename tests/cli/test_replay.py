"""A request of a server, run again from the command line: equal, or the first place where not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.main import run_command
from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import InvalidRequest
from firsthand.generation.kept_requests import differing, request_of_plain
from firsthand.generation.replaying import Drawn, first_difference
from tests.server.processes import Server, started

pytestmark = [pytest.mark.native, pytest.mark.process]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(model: Path, home: Path) -> Iterator[Server]:
    with started(home, model, "--record-content", FIRSTHAND_HOME=str(home)) as found:
        found.wait_ready()
        yield found


def answered(server: Server, request_id: str, **body: Any) -> dict[str, Any]:
    """The record of a request that has ended, once what made its answer is known."""
    sent = {"prompt": "abc", "max_tokens": 12, "temperature": 0.9} | body
    headers = {"X-Request-Id": request_id}
    answer = httpx.post(f"{server.url}/v1/completions", json=sent, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    until = time.monotonic() + 20
    while True:
        found = httpx.get(f"{server.url}/firsthand/requests/{request_id}", timeout=10).json()
        if found.get("status") and found["parts"][0]["content"]["made_by"]:
            return dict(found)
        assert time.monotonic() < until, found
        time.sleep(0.01)


def replayed(
    server: Server, request_id: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    arguments = ["replay", request_id, "--model", str(model), "--url", server.url, "--json"]
    code = run_command(arguments)
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 3, "logprobs": 2, "frequency_penalty": 0.5},
        {"stop": ["e"], "max_tokens": 40},
        {"structured_outputs": {"regex": "[ab]{3,8}"}},
        {"prompt": ["first", "second"]},
    ],
    ids=["drawn", "several", "stop", "grammar", "prompts"],
)
def test_f_76_a_request_runs_again_with_the_same_tokens(
    server: Server,
    model: Path,
    home: Path,
    body: dict[str, Any],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIRSTHAND_HOME", str(home))
    name = f"again-{request.node.callspec.id}"
    found = answered(server, name, **body)
    outputs = [ids for part in found["parts"] for ids in part["content"]["outputs"]]
    assert len(outputs) == body.get("n", 1) * (2 if "prompt" in body else 1) and all(outputs)
    code, told = replayed(server, name, model, capsys)
    assert (code, told["equal"]) == (0, True), told
    assert [row["tokens"] for row in told["choices"]] == [len(ids) for ids in outputs]
    if "logprobs" in body:
        assert all(row["logprobs"] == row["tokens"] for row in told["choices"])


def test_a_release_stands_for_its_model(
    server: Server, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert run_command(["release", "stage", str(store), str(model), "--no-golden", "--json"]) == 0
    assert run_command(["release", "promote", str(store), "1", "--json"]) == 0
    capsys.readouterr()
    answered(server, "released")
    code, told = replayed(server, "released", store / "current", capsys)
    assert code == 0 and told["equal"], told


def test_another_model_is_refused_by_name(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    other = write_micro_model(tmp_path / "other", seed=9)
    answered(server, "other")
    time.sleep(0.15)  # what was written just now may change unseen, and has no hash yet
    code, told = replayed(server, "other", other, capsys)
    assert code == 2 and "weights was" in told["error"]["message"], told


def test_a_server_that_keeps_no_tokens_says_so(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path, model, FIRSTHAND_HOME=str(tmp_path)) as bare:
        bare.wait_ready()
        headers = {"X-Request-Id": "bare"}
        body = {"prompt": "abc", "max_tokens": 2}
        httpx.post(f"{bare.url}/v1/completions", json=body, headers=headers, timeout=30)
        code, told = replayed(bare, "bare", model, capsys)
    assert code == 2 and "--record-content" in told["error"]["message"]


def test_the_first_difference_is_named() -> None:
    known = [Drawn((1, 2, 3), (-0.5, -0.25, -1.0)), Drawn((4,))]
    assert (
        first_difference(known, [Drawn((1, 2, 3, 9), (-0.5, -0.25, -1.0, -2.0)), Drawn((4,))])
        is None
    )
    token = first_difference(known, [Drawn((1, 7, 3)), Drawn((4,))])
    assert token is not None and (token.what, token.position, token.replayed) == ("token", 1, 7)
    short = first_difference(known, [known[0], Drawn(())])
    assert short is not None and (short.index, short.replayed) == (1, None)
    logprob = first_difference(known, [Drawn((1, 2, 3), (-0.5, -0.25, -1.5)), Drawn((4,))])
    assert logprob is not None and logprob.what == "logprob"


def test_what_changes_no_bit_is_a_note() -> None:
    made = {"weights": "a", "numerics": 2, "isa": "avx2", "version": "1"}
    hard, noted = differing(made, made | {"isa": "neon", "numerics": 3})
    assert hard == ["numerics was 2, here it is 3"] and noted == ["isa was avx2, here it is neon"]
    with pytest.raises(InvalidRequest, match="is none that was kept"):
        request_of_plain({"request_id": 1})
