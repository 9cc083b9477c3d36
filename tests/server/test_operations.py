"""Health, metrics, models, tokens, `/predict`: the routes beside generation."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from firsthand.generation.service import Status
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.metrics import Metrics
from firsthand.server.guard.incoming import IncomingLimits
from firsthand.server.health import Check
from firsthand.server.house import House
from tests.server.conftest import Live, asking
from tests.server.fakes import FakeService, Script

Ask = Callable[..., httpx.Response]
PACK = {"content-type": "application/msgpack"}


@pytest.mark.native
def test_a_probe_may_ask_for_the_head_alone(live: Live) -> None:
    for path in ("/health", "/livez", "/readyz", "/v2/health/ready", "/version", "/metrics"):
        head, whole = (httpx.request(way, live.running.url + path) for way in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert httpx.head(f"{live.running.url}/v1/models").status_code == 405


@pytest.mark.native
def test_found_tokens_are_told_in_usage(live: Live) -> None:
    """The prefix that an earlier request computed: whole blocks of it, not the last token."""
    asked = {"model": "micro", "prompt": "seen before: " + "x" * 40, "max_tokens": 2, "seed": 1}
    first, again = (live.client.completions.create(**asked) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens == 48
    assert again.choices[0].text == first.choices[0].text
    chunks = live.client.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    assert list(chunks)[-1].usage.prompt_tokens_details.cached_tokens == 48


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        (Status.LOADING, 503),
        (Status.READY, 200),
        (Status.DEGRADED, 200),
        (Status.RESTARTING, 503),
        (Status.FAILED, 503),
        (Status.ASLEEP, 503),
    ],
)
def test_ops_3_alive_and_ready(ask: Ask, service: FakeService, status: Status, ready: int) -> None:
    service.status = status
    for path in ("/health", "/readyz", "/v2/health/ready", "/v2/models/micro/ready"):
        assert ask("GET", path).status_code == ready
    for path in ("/livez", "/v2/health/live"):
        assert ask("GET", path).status_code == 200
    assert ask("GET", "/v2/models/other/ready").status_code == 404


def gauges(url: str, *names: str) -> dict[str, float]:
    """Of each the sum over its labels."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=20).text)
    return {
        one.name: sum(sample.value for sample in one.samples)
        for one in families
        if one.name in names
    }


@pytest.mark.native
def test_obs_1_gauges_fall_when_all_streams_are_closed_at_once(live: Live) -> None:
    """Nobody asks meanwhile, and still nothing of the old load is shown."""
    url = live.running.url
    names = (
        *("firsthand_requests_running", "firsthand_requests_waiting"),
        "firsthand_kv_blocks_used_ratio",
    )

    async def pace(delay_s: float) -> None:
        live.service.set_pace(paused=False, delay_s=delay_s)

    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with ExitStack() as held, httpx.Client(timeout=30) as client:
        live.running.call(partial(pace, 0.02))  # so that none ends by itself
        held.callback(live.running.call, partial(pace, 0.0))
        for _ in range(10):
            opened = client.stream("POST", f"{url}/v1/completions", json=body)
            assert held.enter_context(opened).status_code == 200
        assert gauges(url, "firsthand_requests_running")["firsthand_requests_running"] > 0
    until_s = time.monotonic() + 30
    while any((found := gauges(url, *names)).values()):
        assert time.monotonic() < until_s, found
        time.sleep(0.02)


@pytest.mark.native
def test_obs_3_one_call_is_one_request_however_many_answers(live: Live) -> None:
    url, names = live.running.url, ("firsthand_requests", "firsthand_answers")
    path = "/v1/completions"
    before = {name: counted(url, name, path) for name in names}
    body = {"prompt": "a", "max_tokens": 2, "n": 2}
    httpx.post(url + path, json=body, timeout=30).raise_for_status()
    after = {name: counted(url, name, path) for name in names}
    assert [after[name] - before[name] for name in names] == [1, 2]


def counted(url: str, name: str, endpoint: str) -> float:
    """Of a counter, for one route where it tells of routes."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=20).text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"{name}_total" and sample.labels.get("endpoint") in (None, endpoint)
    )


def test_checks_have_names_and_ages(ask: Ask, house: House) -> None:
    house.checks.add("golden", lambda: Check(False, "never ran", 12.5))
    house.checks.add("loop", lambda: Check(True), live=True)
    reply = ask("GET", "/readyz?verbose")
    assert reply.status_code == 503
    assert reply.json()["checks"]["golden"] == {"ok": False, "detail": "never ran", "age_s": 12.5}
    assert set(ask("GET", "/livez?verbose").json()["checks"]) == {"loop"}
    short = ask("GET", "/readyz")
    assert short.json()["error"]["code"] == "degraded"
    assert "golden" in short.json()["error"]["message"]


def test_a_check_that_fails_to_answer_has_failed(ask: Ask, house: House) -> None:
    house.checks.add("broken", lambda: Check(1 / 0 > 0))
    assert ask("GET", "/health").status_code == 503


def test_version_and_models(ask: Ask) -> None:
    assert ask("GET", "/version").json() == {"version": "1.2.3"}
    assert ask("GET", "/v1/models").json()["data"][0]["id"] == "micro"
    assert ask("GET", "/v1/models/micro").json()["max_model_len"] == 512
    assert ask("GET", "/v1/models/or/g").json()["error"]["code"] == "model_not_found"


def test_metrics_count_what_was_asked(ask: Ask) -> None:
    ask("POST", "/v1/completions", json={"prompt": "a"})
    ask("POST", "/v1/completions", json={"prompt": 1})
    ask("GET", "/any/thing")
    text = ask("GET", "/metrics").text
    for line in (
        'firsthand_requests_total{endpoint="/v1/completions",finish_reason="end_token",'
        'status="200"} 1.0',
        'firsthand_requests_total{endpoint="/v1/completions",finish_reason="",status="400"} 1.0',
        'firsthand_requests_total{endpoint="other",finish_reason="",status="404"} 1.0',
        'firsthand_ttft_seconds_count{model="micro"} 1.0',
        'firsthand_engine_ready{model="micro"} 1.0',
    ):
        assert line in text
    kind = ask("GET", "/metrics", headers={"accept": "application/openmetrics-text"})
    assert kind.headers["content-type"].startswith("application/openmetrics-text")
    assert kind.text.endswith("# EOF\n")


def test_the_same_under_vllms_names(ask: Ask) -> None:
    asked = {"prompt": ["a", "bc"], "n": 2}
    ask("POST", "/v1/completions", json=asked)
    text = ask("GET", "/metrics").text
    for line in (
        'vllm:num_requests_waiting{engine="0",model_name="micro"} 0.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="micro"} 0.0',
        'vllm:prompt_tokens_total{engine="0",model_name="micro"} 3.0',
        'vllm:prefix_cache_queries_total{engine="0",model_name="micro"} 3.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="micro"} 4.0',
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="micro"} 4.0',
        'vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="micro"} 4.0',
    ):
        assert line in text, line


def test_tokens_there_and_back(ask: Ask) -> None:
    there = ask("POST", "/tokenize", json={"prompt": "abc", "return_token_strs": True}).json()
    assert there == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [97, 98, 99],
        "token_strs": ["a", "b", "c"],
    }
    back = ask("POST", "/detokenize", json={"tokens": there["tokens"]})
    assert back.json() == {"prompt": "abc"}
    messages = [{"role": "user", "content": "a"}]
    chat = ask("POST", "/tokenize", json={"messages": messages}).json()
    render = ask("POST", "/v1/chat/completions/render", json={"messages": messages}).json()
    assert render["token_ids"] == chat["tokens"]
    assert render["prompt"] == "user: a\nassistant: "
    for body in ({}, {"prompt": "a", "messages": messages}):
        assert ask("POST", "/tokenize", json=body).json()["error"]["param"] == "prompt"
    assert ask("POST", "/detokenize", json={"tokens": [-1]}).json()["error"]["param"] == "tokens[0]"


def test_predict_in_json_and_message_pack(ask: Ask, service: FakeService) -> None:
    body = {"request_id": "r1", "inputs": ["a", "b"], "options": {"max_length": 5, "seed": 1}}
    reply = ask("POST", "/predict", json=body).json()
    assert (reply["request_id"], reply["outputs"]) == ("r1", ["Hello", "Hello"])
    assert 0 < reply["latency_ms"] < 10_000
    assert service.options[0] == {"seed": 1, "max_tokens": 5}
    timing = ask("POST", "/predict", json=body).headers["server-timing"]
    assert timing == "queue;dur=0.2, prefill;dur=3.0, decode;dur=4.0"
    packed = ask("POST", "/predict", content=msgspec.msgpack.encode(body), headers=PACK)
    assert packed.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(packed.content)["outputs"] == ["Hello", "Hello"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"options": {"max_length": 2049}}, "options.max_length"),
        ({"options": {"top_n": 1}}, "options.top_n"),
        ({"options": {"seed": "1"}}, "options.seed"),
        ({"inputs": []}, "inputs"),
        ({"inputs": "a"}, "inputs"),
        ({"inputs": [1]}, "inputs[0]"),
        ({"request_id": 1}, "request_id"),
        ({"inputs": ["x" * 600]}, "inputs"),
        ({"other": 1}, "other"),
    ],
)
def test_predict_refuses_by_name(ask: Ask, more: dict[str, object], param: str) -> None:
    body = {"request_id": "r1", "inputs": ["a"], **more}
    assert ask("POST", "/predict", json=body).json()["error"]["param"] == param


@pytest.mark.parametrize("content", [b"\xc1", b"\x91" * 100_000, b"\x90", b"\x81\x01\x02", b""])
def test_message_pack_that_is_none(ask: Ask, content: bytes) -> None:
    reply = ask("POST", "/predict", content=content, headers=PACK)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")


@pytest.fixture
def strict(service: FakeService) -> Ask:
    limits = IncomingLimits(max_items=20)
    return asking(House({"micro": service}, Metrics(), body_limits=limits))


def test_message_pack_of_too_many_items(strict: Ask) -> None:
    """As many as JSON may have; counted before one is made."""
    for num_inputs, status in ((8, 200), (30, 400)):
        body = {"request_id": "r1", "inputs": ["a"] * num_inputs}
        for more in ({"json": body}, {"content": msgspec.msgpack.encode(body), "headers": PACK}):
            reply = strict("POST", "/predict", **more)
            assert reply.status_code == status, reply.text
    assert "over 20 items" in reply.json()["error"]["message"]
    claims = strict("POST", "/predict", content=b"\x81\xa1a\xdd\xff\xff\xff\xff", headers=PACK)
    assert "over 20 items" in claims.json()["error"]["message"]


def test_a_fault_of_predict_says_nothing_of_us(ask: Ask, service: FakeService) -> None:
    service.script = Script(fault=ValueError("secret"))
    reply = ask("POST", "/predict", json={"request_id": "r1", "inputs": ["a"]})
    assert reply.status_code == 500
    assert "secret" not in reply.text


@pytest.mark.native
def test_metrics_of_a_real_engine(live: Live) -> None:
    live.client.completions.create(model="micro", prompt="abc", max_tokens=4, temperature=0)
    text = httpx.get(f"{live.running.url}/metrics").text
    values = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in text.splitlines())
        if not name.startswith("#")
    }
    assert values['firsthand_tokens_total{model="micro",phase="generation"}'] >= 4
    assert values['firsthand_step_seconds_count{model="micro",phase="forward"}'] >= 4
    assert values['firsthand_kv_blocks{model="micro",state="free"}'] > 0
    assert values['firsthand_requests_running{model="micro"}'] == 0
    assert values['firsthand_engine_resident_bytes{model="micro"}'] > 1 << 20
    assert values['firsthand_engine_cpu_seconds_total{model="micro"}'] > 0
    for metric in text_string_to_metric_families(text):
        own = metric.name.removesuffix("_created")
        assert own in CATALOGUE or own.startswith("vllm:"), own
