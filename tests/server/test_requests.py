"""The flight recorder on the real server: its stages against a client's watch, whose records one
sees, what outlives an engine and a server."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.main import run_command
from tests.server.conftest import Live
from tests.server.guarded import AUTH, CHAT, KEY, guarded
from tests.server.processes import Server, started, stream

pytestmark = [pytest.mark.native, pytest.mark.process]
BODY = {"prompt": "abc", "max_tokens": 40, "ignore_eos": True, "seed": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, long_folder: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("recorded")
    with started(folder, long_folder, FIRSTHAND_HOME=str(folder / "home")) as found:
        found.wait_ready()
        yield found


def ask(server: Server, request_id: str, **body: Any) -> tuple[httpx.Response, float]:
    """With the milliseconds that the client waited."""
    began_s = time.perf_counter()
    headers = {"X-Request-Id": request_id}
    answer = httpx.post(
        server.url + "/v1/completions", json=BODY | body, headers=headers, timeout=30
    )
    return answer, (time.perf_counter() - began_s) * 1e3


def record(server: Server, request_id: str) -> dict[str, Any]:
    """Once it has ended: the answer's last byte is with the client a moment before."""
    until = time.monotonic() + 10
    while True:
        found = httpx.get(f"{server.url}/firsthand/requests/{request_id}", timeout=10)
        if found.status_code == 200 and found.json()["status"] is not None:
            return dict(found.json())
        assert time.monotonic() < until, found.text
        time.sleep(0.01)


def test_s_65_stages_add_up_to_the_whole_within_a_hundredth(server: Server) -> None:
    answer, waited_ms = ask(server, "whole", n=2)
    found = record(server, "whole")
    total_ms = found["total_ms"]
    assert sum(one["ms"] for one in found["stages"]) == pytest.approx(total_ms, rel=0.01)
    spent = {one["name"]: one["ms"] for one in found["stages"]}
    in_steps_ms = spent["prefill"] + spent["decode"]
    assert sum(found["step_ms"].values()) == pytest.approx(in_steps_ms, rel=0.01)
    assert all(ms >= -0.01 for ms in (*spent.values(), *found["step_ms"].values())), found
    assert total_ms <= waited_ms
    (line,) = [one for one in server.events() if one.get("request_id") == "whole"]
    assert line["e2e_ms"] == pytest.approx(total_ms, rel=0.01)
    assert line["batch_max"] == found["batch_max"] == 2 and line["preemptions"] == 0
    assert line["itl_ms_p50"]
    assert found["sent_bytes"] == len(answer.content) and found["output_tokens"] == 80
    assert found["num_steps"] >= 40 and len(found["steps"]) == found["num_steps"]
    assert sum(step["tokens"] for step in found["steps"]) >= 3 + 78
    assert [one["choice"] for one in found["parts"][0]["choices"]] in ([0, 1], [1, 0])


def test_a_stream_is_recorded_to_its_last_byte(server: Server) -> None:
    with stream(server, 300) as answer:
        num_bytes = sum(map(len, answer.iter_raw()))
        request_id = answer.headers["x-request-id"]
    found = record(server, request_id)
    assert (found["state"], found["sent_bytes"]) == ("done", num_bytes)


def test_a_request_is_there_while_it_runs_and_says_who_left(server: Server) -> None:
    with stream(server, 16000) as answer:
        pieces = answer.iter_raw()  # whose end would be the answer's
        next(pieces)
        request_id = answer.headers["x-request-id"]
        live = httpx.get(f"{server.url}/firsthand/requests/{request_id}").json()
        assert live["state"] in ("prefill", "decode") and live["status"] is None, live["state"]
    assert record(server, request_id)["state"] == "client_closed"


def test_f_77_a_request_is_ended_by_its_id(server: Server) -> None:
    with stream(server, 16000) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        request_id = answer.headers["x-request-id"]
        url = f"{server.url}/firsthand/requests/{request_id}/cancel"
        assert httpx.post(url, timeout=10).json() == {"id": request_id, "cancelled": True}
        rest = b"".join(pieces)
    assert b'"code":"cancelled"' in rest and b"[DONE]" not in rest
    assert record(server, request_id)["state"] == "cancelled"
    again = httpx.post(url, timeout=10)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")


def test_s_66_one_id_in_header_body_log_and_recorder(server: Server) -> None:
    answer = httpx.post(server.url + "/v1/completions", json=BODY, timeout=30)
    request_id = answer.headers["x-request-id"]
    reply_id = answer.json()["id"]
    assert reply_id == "cmpl-" + request_id.removeprefix("req-")
    found = record(server, reply_id)
    assert found["id"] == request_id
    assert [one for one in server.events() if one["request_id"] == request_id]
    embedded = httpx.post(server.url + "/v1/embeddings", json={"input": "a"}, timeout=30)
    found = record(server, embedded.json()["id"])
    assert [one["name"] for one in found["stages"]][-2:] == ["prefill", "send"]
    assert ask(server, "mine")[0].json()["id"] == "cmpl-mine"


def test_what_was_refused_says_so_by_its_id(server: Server) -> None:
    assert ask(server, "wrong", temperature=-1)[0].status_code == 400
    found = record(server, "wrong")
    assert (found["state"], found["status"], found["parts"]) == ("invalid", 400, [])
    assert httpx.get(f"{server.url}/firsthand/requests/unknown").status_code == 404
    assert httpx.get(f"{server.url}/firsthand/requests?limit=0").status_code == 400


def test_the_commands_show_what_the_server_knows(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(server, "shown")
    record(server, "shown")
    url = ("--url", server.url)
    assert run_command(["requests", "ls", *url]) == 0
    assert "shown" in capsys.readouterr().out
    assert run_command(["requests", "show", "shown", *url]) == 0
    out = capsys.readouterr().out
    assert "prefill" in out and "first token" in out and "normal" in out
    trace = tmp_path / "trace.json"
    assert run_command(["requests", "show", "shown", "--trace", str(trace), "--json", *url]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "shown"
    names = {one["name"] for one in json.loads(trace.read_text())["traceEvents"]}
    assert {"queue", "prefill", "decode", "forward", "first token"} <= names
    assert run_command(["requests", "show", "a/b", *url]) == 2
    assert run_command(["requests", "show", "nobody", *url]) == 4


def test_a_failure_outlives_the_engine_and_the_server(
    tmp_path: Path,
    long_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = str(tmp_path / "home")
    with started(tmp_path, long_folder, FIRSTHAND_HOME=home) as server:
        server.wait_ready()
        with stream(server, 16000) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            (pid,) = server.engine_pids()
            os.kill(pid, signal.SIGKILL)
            request_id = answer.headers["x-request-id"]
            assert b"error" in b"".join(pieces)
        found = record(server, request_id)
        assert (found["state"], found["status"]) == ("engine_lost", 503)
        assert found["parts"][0]["first_token_ms"] is not None and "cause" not in found
        assert found["stages"][-1]["name"] == "decode"
        (line,) = [one for one in server.told("request") if one["request_id"] == request_id]
        assert line["level"] == "error" or line["status"] == 503
        assert set(line["stages"]) >= {"queue", "decode"}  # type: ignore[call-overload]
        until = time.monotonic() + 10
        while not list(Path(home).glob("failed_requests/*.json")):
            assert time.monotonic() < until
            time.sleep(0.01)
        server.process.kill()
        server.process.wait()
    monkeypatch.setenv("FIRSTHAND_HOME", home)
    shown = ("requests", "show", request_id, "--url", server.url, "--json")
    assert run_command(shown) == 0
    kept = json.loads(capsys.readouterr().out)
    assert kept["state"] == "engine_lost" and "EngineLost" in kept["cause"]
    assert kept["steps"]


def test_obs_2_a_metric_that_raises_fails_no_request(live: Live) -> None:
    """A counter that would go down, a hook of somebody's."""

    def broken(*_: object) -> None:
        raise ValueError("a counter cannot go down")

    before = live.house.metrics.finished
    live.house.metrics.finished = broken  # type: ignore[method-assign, assignment]
    end = live.service.listen(broken)
    try:
        url = f"{live.running.url}/v1/completions"
        assert httpx.post(url, json=BODY, timeout=30).json()["usage"]["completion_tokens"] == 40
        text = httpx.post(url, json=BODY | {"stream": True}, timeout=30).text
        assert text.endswith("data: [DONE]\n\n") and "error" not in text
    finally:
        end()
        live.house.metrics.finished = before  # type: ignore[method-assign]


def test_a_key_sees_its_own_requests_alone() -> None:
    other = "other-key-0123456789"
    with guarded(api_key=(KEY, other)) as server:
        server.post("/v1/chat/completions", CHAT, AUTH + "X-Request-Id: mine\r\n")
        path = "/firsthand/requests/mine"
        assert server.get(path)[0] == 200
        bearer = f"Authorization: Bearer {other}\r\n"
        assert server.get(path, bearer)[0] == 404
        assert server.post(f"{path}/cancel", b"{}", bearer)[0] == 404
        assert b'"mine"' not in server.get("/firsthand/requests", bearer)[1]
        assert server.get(path, "")[0] == 401
