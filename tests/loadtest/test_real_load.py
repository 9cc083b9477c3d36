"""Loads over HTTP: a real server with a known time, and the commands in front of it."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firsthand.addresses import address_of
from firsthand.cli.main import build_app
from firsthand.errors import EngineUnavailable
from firsthand.loadtest.arrivals import Arrival
from firsthand.loadtest.exchange import Answer, Connection, Pool
from firsthand.loadtest.outcomes import Outcome, outcome_of
from firsthand.loadtest.playing import CHAT, COMPLETIONS, LATE, Target, play
from tests.loadtest.queueing import NUM_TOKENS, serving

SERVICE_S = 0.02
WHOLE = ("--qps", "1", "--tokens-per-second", "1", "--tokens", "1")
# As in the result of vLLM's `bench serve`.
VLLM_KEYS = {
    *("date", "endpoint_type", "model_id", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"),
    *(
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ),
}
RAMPED = ("serve", "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1")
TRACE = ("--dataset-name", "trace", "--dataset-path", "x")
DETAILS = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(1, SERVICE_S) as found:
        yield found


def invoked(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(arguments[0]), arguments)
    assert done.exit_code == code, done.output
    return done.stdout


def called(*arguments: str, code: int = 0) -> dict[str, Any]:
    (line,) = invoked(*arguments, "--json", code=code).splitlines()
    return dict(json.loads(line))


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("max_concurrency", [None, 1])
def test_s68_whoever_waits_for_others_is_counted_from_when_it_was_due(
    url: str, endpoint: str, max_concurrency: int | None
) -> None:
    """Ten at once for one place: a client that waits with each request for the answer before it
    would say 20 ms for all of them."""
    target = Target(address_of(url), "queue", endpoint)
    found = play(target, [Arrival(0.0, NUM_TOKENS, "a b")] * 10, max_concurrency)
    assert [one.fault for one in found] == [""] * 10
    ordered = sorted(one.e2el_s for one in found)
    for number, e2el_s in enumerate(ordered, 1):
        assert e2el_s >= number * SERVICE_S * 0.9
    assert all(one.output_tokens == NUM_TOKENS and one.input_tokens == 8 for one in found)
    assert all(0 < one.ttft_s < one.e2el_s for one in found)


def test_arrivals_wait_for_no_answer(url: str) -> None:
    arrivals = [Arrival(index * 0.005, NUM_TOKENS, "a b") for index in range(20)]
    found = play(Target(address_of(url), "queue"), arrivals)
    assert [one.intended_s for one in found] == [arrival.at_s for arrival in arrivals]
    assert max(one.sent_s for one in found) < found[-1].ended_s
    assert all(one.sent_s >= one.intended_s for one in found)


def test_what_is_not_answered_is_given_up(url: str) -> None:
    found = play(Target(address_of(url), "queue"), [Arrival(0, 4, "a")] * 40, patience_s=0.2)
    late = [one for one in found if one.fault]
    assert 0 < len(late) < 40
    assert {one.fault for one in late} == {LATE}


def spoken(*parts: bytes) -> Outcome:
    """What becomes of a request that is answered with these bytes, in turn, and a close."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            connection, _ = listening.accept()
            with closing(connection):
                connection.recv(1 << 16)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(0.02 if len(parts) > 1 else 0)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        target = Target(address_of(f"http://127.0.0.1:{port}"), "m")
        (found,) = play(target, [Arrival(0.0, 4, "a")], patience_s=10)
        return found


WORD = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"hello\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "lost"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "status 503: busy"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "empty"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"error": "full"}', "full"),
        (b"HTTP/1.1 101 No\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nx", "not speak HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + WORD, "cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\ndata: no json\n\n", "no json"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(WORD), WORD),
            "cut off",
        ),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\ndata: {"error": "x"}\n\n',
            "error",
        ),
    ],
)
def test_what_is_no_answer_is_a_fault(content: bytes, fault: str) -> None:
    assert fault in spoken(content).fault


def counted(tokens: str) -> bytes:
    usage = b'data: {"choices": [], "usage": {"completion_tokens": %b}}\n\n' % tokens.encode()
    return b"HTTP/1.0 200 OK\r\n\r\n" + WORD + END + usage


def test_an_answer_may_end_with_its_connection_and_begin_with_a_hint() -> None:
    assert spoken(counted("7")).output_tokens == 7
    found = spoken(b"HTTP/1.1 103 Early Hints\r\n\r\n", counted("3"))
    assert (found.fault, found.output_tokens) == ("", 3)
    assert spoken(b"HTTP/1.0 200 OK\r\n\r\n" + (WORD + END).replace(b"\n", b"\r")).fault == ""


@pytest.mark.parametrize("tokens", ["-1", "true", "2.5", "1000000000", "1" + "0" * 400])
def test_a_usage_that_cannot_be_is_a_fault(tokens: str) -> None:
    assert "its usage says that completion_tokens" in spoken(counted(tokens)).fault


def test_a_line_in_many_pieces_is_read_once() -> None:
    began_s = time.process_time()
    answer = Answer(200, [(0.0, b"x")] * 400_000)
    assert "no events" in outcome_of(answer, 0.0, 0.0, 0.0).fault
    assert time.process_time() - began_s < 5


def test_a_sender_without_connections_says_nothing_of_the_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: Pool) -> Connection:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Pool, "_connect", full)
    with pytest.raises(EngineUnavailable, match=r"for 2 of 2 .*Too many open files"):
        play(Target(address_of(url), "queue"), [Arrival(0.0, 4, "a")] * 2)


def test_an_answer_without_usage_counts_its_pieces() -> None:
    body = WORD + WORD + END
    found = spoken(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert (found.fault, found.output_tokens) == ("", 3)


def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    target = Target(address_of(f"http://127.0.0.1:{port}"), "m")
    (found,) = play(target, [Arrival(0.0, 4, "a")])
    assert "cannot be reached" in found.fault


def test_bench_serve_has_the_keys_of_vllm(url: str, tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    given = ("bench", "serve", "--url", url, "--num-prompts", "6", "--request-rate", "200")
    more = ("--goodput", "e2el:60000", "--save-detailed", "--result-filename", str(kept))
    found = called(*given, *more, "--random-output-len", "4")
    assert found.keys() >= VLLM_KEYS | DETAILS
    assert json.loads(kept.read_text(encoding="utf-8")) == found
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (6, 0, 24)
    assert found["request_goodput"] == found["request_throughput"]
    page = Path(__file__).resolve().parents[2] / "docs" / "loadtest.md"
    text = page.read_text(encoding="utf-8")
    assert [key for key in found if f"`{key}`" not in text and not key.endswith("_ms")] == []
    shown = invoked(*given)
    assert "6 answered, 0 failed" in shown
    assert "TTFT" in shown


def test_a_trace_and_prompts_of_a_file_are_played(url: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 5000 + 10 * index, "input_length": 5, "output_length": 1 + index}
        for index in range(3)
    ]
    trace.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    given = ("bench", "serve", "--url", url, "--save-detailed", "--dataset-path", str(trace))
    found = called(*given, "--dataset-name", "trace")
    assert found["output_lens"] == [1, 2, 3]
    assert found["start_times"] == pytest.approx([0, 0.01, 0.02])
    trace.write_text('{"prompt": "a word"}\n{"prompt": "two", "output_tokens": 2}\n', "utf-8")
    more = ("--num-prompts", "3", "--random-output-len", "1")
    assert called(*given, "--dataset-name", "custom", *more)["output_lens"] == [1, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("serve", "--url", "http://192.0.2.1:8000"), "--allow-host 192.0.2.1"),
        (("knee", "--url", "http://example.org", "--allow-host", "example.com"), "url"),
        (("knee", "--max-seconds", "1"), "max_seconds"),
        (("knee", "--max-rate", "0"), "max_rate"),
        (("knee", "--out", "no/such/folder/knee.json"), "out"),
        (("knee", "--plot-out", "x.gif"), "plot_out"),
        (("serve", "--request-rate", "0"), "request_rate"),
        (("serve", "--num-prompts", "0"), "num_prompts"),
        (("serve", "--request-rate", "1", "--burstiness", "-1"), "burstiness"),
        (("serve", "--max-concurrency", "0"), "max_concurrency"),
        (("serve", "--dataset-name", "trace"), "dataset_path"),
        (("serve", "--dataset-name", "sonnet"), "dataset_name"),
        (("serve", "--dataset-name", "trace", "--dataset-path", "none"), "dataset_path"),
        (("serve", "--ramp-up-strategy", "linear"), "ramp_up_start_rps"),
        (("serve", "--ramp-up-start-rps", "1"), "ramp_up_strategy"),
        (("serve", "--percentile-metrics", "speed"), "percentile_metrics"),
        (("serve", "--metric-percentiles", "101"), "metric_percentiles"),
        (("serve", "--goodput", "ttft"), "goodput"),
        (("serve", "--goodput", "ttft:1", "--goodput", "ttft:2"), "given twice"),
        (("serve", "--result-filename", "."), "result_filename"),
        (("serve", "--result-filename", "x" * 300), "result_filename"),
        (("knee", "--out", "."), "out"),
        (("knee", "--max-rate", "inf"), "max_rate"),
        ((*RAMPED, "--request-rate", "4"), "request_rate"),
        ((*RAMPED, "--burstiness", "2"), "burstiness"),
        ((*RAMPED, "--dataset-name", "trace", "--dataset-path", "x"), "ramp_up_strategy"),
        (("serve", *TRACE, "--request-rate", "4"), "request_rate: a trace has its own"),
        (("serve", "--url", "http://127.0.0.1:0"), "url"),
        (("serve", "--url", "http://127.0.0.1:8000/a b"), "url"),
        (("serve", "--url", "http://127.0.0.1:8000/日"), "url"),
        (("serve", "--url", f"http://{'a' * 70}.com"), "url"),
        (("serve", "--endpoint", "/v1/predict"), "endpoint"),
        (("serve", "--random-input-len", "0"), "random_input_len"),
    ],
)
def test_a_bad_value_is_named_and_is_2(arguments: tuple[str, ...], field: str) -> None:
    said = called("bench", *arguments, code=2)["error"]["message"].replace("-", "_")
    assert field.replace("-", "_") in said


def test_a_server_that_answers_nothing_is_1(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    given = ("--url", f"http://127.0.0.1:{port}", "--model", "m", "--num-prompts", "1")
    assert "not one request" in called("bench", "serve", *given, code=1)["error"]["message"]


@pytest.mark.slow
@pytest.mark.soak
def test_s68_s69_the_knee_of_a_real_server_and_what_is_planned_with_it(tmp_path: Path) -> None:
    """Four places of 0.4 s: 10 requests a second, in under three minutes. Whatever else the machine
    does moves it, so it is a soak."""
    out, plot = tmp_path / "knee.json", tmp_path / "knee.svg"
    more = ["--max-seconds", "120", "--out", str(out)]
    pytest.importorskip("matplotlib")
    more += ["--plot-out", str(plot)]
    with serving(4, 0.4) as address:
        begun_s = time.monotonic()
        found = called("bench", "knee", "--url", address, *more, "--random-output-len", "4")
    assert time.monotonic() - begun_s < 180
    assert found["knee"]["rate"] == pytest.approx(10, rel=0.1)
    # Its places take 0.4 s and what passing a request on takes: a little less than 10 a second.
    assert found["knee"]["low"] <= 10 and found["knee"]["high"] >= 9.7
    assert plot.stat().st_size > 1000
    planned = called("plan", "capacity", "--from", str(out), "--qps", "20", "--qps-is-peak")
    assert planned["replicas"] in (2, 3)
    assert planned["one_machine_is_enough"] is False
    config = tmp_path / "alerts.toml"
    config.write_text('knee = "knee.json"\n', encoding="utf-8")
    files = called("alerts", "export", str(tmp_path / "alerts"), "--config", str(config))
    assert files["files"]


def test_without_a_knee_the_steps_are_kept_and_nobody_plans_with_them(tmp_path: Path) -> None:
    out = tmp_path / "knee.json"
    with serving(64, 0.01) as address:
        given = ("--url", address, "--max-seconds", "10", "--max-rate", "2", "--out", str(out))
        told = called("bench", "knee", *given, "--random-output-len", "4", code=1)
    assert "no knee" in told["error"]["message"]
    kept = json.loads(out.read_text(encoding="utf-8"))
    assert kept["knee"] is None
    assert [one["rate"] for one in kept["steps"]] == [2]
    told = called("plan", "capacity", "--from", str(out), "--qps", "20", code=2)
    assert "none was a knee: 'latency does not turn" in told["error"]["message"]


def test_plan_capacity_says_what_it_assumes() -> None:
    example = ("plan", "capacity", "--tokens-per-second", "100", "--tokens", "200", "--qps", "10")
    found = called(*example, "--qps-is-peak")
    assert (found["replicas"], found["peak"], found["redundancy"]) == (20, 1, 1)
    shown = invoked(*example)
    for word in (
        "replicas  20",
        "machine seconds",
        "Assumed:",
        "peak factor 1",
        "already your peak?",
    ):
        assert word in shown
    page = Path(__file__).resolve().parents[2] / "docs" / "loadtest.md"
    text = page.read_text(encoding="utf-8")
    assert [key for key in found if f"`{key}`" not in text] == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--qps", "10", "--tokens-per-second", "100"), "tokens"),
        (("--qps", "10"), "from"),
        (("--qps", "10", "--from", "a", "--tokens-per-second", "1"), "from"),
        (("--qps", "10", "--from", "no-such-file"), "no-such-file"),
        (("--qps", "0", "--tokens-per-second", "1", "--tokens", "1"), "qps"),
        (("--qps", "1", "--tokens-per-second", "0", "--tokens", "1"), "tokens_per_second"),
        ((*WHOLE, "--slo-ttft", "5"), "slo_ttft"),
        ((*WHOLE, "--slo-ttft", "-5ms"), "slo_ttft:"),
        ((*WHOLE, "--slo-ttft", "nans"), "slo_ttft:"),
        (
            (*WHOLE, "--qps-is-peak", "--peak", "3"),
            "peak",
        ),
    ],
)
def test_s69_a_bad_plan_is_refused_by_name(arguments: tuple[str, ...], field: str) -> None:
    assert field in called("plan", "capacity", *arguments, code=2)["error"]["message"]
