"""A cascade over HTTP: one model's answer from the first byte to the last, bit for bit, and what is
told of it.

Owns: proof with two real engines, in process for the routes, as a server for logs and records.
Read next: `tests/generation/test_cascade.py`, the same without HTTP.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from firsthand.cascade.calibration import (
    Calibration,
    Side,
    read_calibration,
)
from firsthand.cascade.confidence import score_of
from firsthand.cascade.decision import REASONS
from firsthand.cli.main import run_command
from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import Service, ServiceOptions
from firsthand.observe.metrics import Metrics
from firsthand.server.app import build_app
from firsthand.server.cascade import Cascade, Found, read_again
from firsthand.server.house import House
from tests.server.processes import launched
from tests.server.running import Running, serving
from tests.server.test_several import need_of

pytestmark = pytest.mark.native

WINDOW = 6
PROMPTS = [f"{word} {number}" for number, word in enumerate(("abc", "hello", "q", "1 2 3") * 2)]
SIDES = (
    Side("s", "s", "auto", "int16", "native", 2, 1),
    Side("l", "l", "auto", "int16", "native", 2, 9),
)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def rule(least: float, window: int = WINDOW) -> Calibration:
    """By which a score of `least` is worth enough."""
    steps = ((-1000.0, 0.25), (least, 0.75))
    return Calibration(*SIDES, "chat", "mean", window, 0.5, steps, 9, 12, 0.1)


@dataclass(frozen=True)
class Two:
    running: Running
    house: House
    client: httpx.Client

    def set(self, calibration: Calibration) -> None:
        services = self.house.services
        found = Found("quick", calibration, "small", "large")
        pair = (services["small"], services["large"])
        assert isinstance(self.house.cascades, dict)
        self.house.cascades["quick"] = Cascade(found, pair)

    def ask(self, path: str, model: str, text: str, **more: Any) -> httpx.Response:
        given: dict[str, Any] = {"prompt": text}
        if path == CHAT:
            given = {"messages": [{"role": "user", "content": text}]}
        body = {"model": model, "max_tokens": 10, "temperature": 0, **given, **more}
        return self.client.post(path, json=body)

    def score(self, prompt: str, path: str = CHAT, **more: Any) -> float:
        choice = self.ask(path, "small", prompt, logprobs=True if path == CHAT else 0, **more)
        told = choice.json()["choices"][0]["logprobs"]
        found = (
            [one["logprob"] for one in told["content"]] if path == CHAT else told["token_logprobs"]
        )
        return score_of("mean", WINDOW, found)

    def idle(self) -> None:
        until = time.monotonic() + 30
        while any(service.load.num_open for service in self.house.models):
            assert time.monotonic() < until, "something was left"
            time.sleep(0.01)

    def counted(self, name: str) -> dict[str, float]:
        found = {}
        for family in self.house.metrics.registry.collect():
            if family.name == name:
                found = {
                    sample.labels.get("reason") or sample.labels["size"]: sample.value
                    for sample in family.samples
                    if sample.name.endswith("_total")
                }
        return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    houses: list[House] = []

    async def make() -> ASGIApp:
        services = {}
        for seed, name, context in ((0, "small", 512), (9, "large", 2048)):
            folder = write_micro_model(tmp_path_factory.mktemp(name), seed, context)
            options = ServiceOptions(folder, LoadOptions(threads=1, max_sequences=8), name=name)
            services[name] = await Service.start(options)
        for service in services.values():
            await service.wait_ready()
        houses.append(House(services, Metrics(), cascades={}))
        return build_app(houses[0])

    async def close() -> None:
        for service in houses[0].models:
            await service.close()

    with serving(make, close) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        found = Two(running, houses[0], client)
        scores = sorted(found.score(prompt) for prompt in PROMPTS)
        found.set(rule(scores[len(scores) // 2]))
        houses[0].metrics.begin_cascade("quick")
        yield found


@pytest.fixture(autouse=True)
def _as_it_was(two: Two) -> Iterator[None]:
    before = two.house.cascades["quick"]
    yield
    assert isinstance(two.house.cascades, dict)
    two.house.cascades["quick"] = before


def least_of(two: Two) -> float:
    return two.house.cascades["quick"].calibration.steps[1][0]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("more", [{}, {"seed": 7, "temperature": 0.8, "n": 2}, {"stop": "e"}])
def test_the_reply_is_that_of_the_chosen_model_alone(
    two: Two, path: str, more: dict[str, Any]
) -> None:
    seen = set()
    for prompt in PROMPTS:
        reply = two.ask(path, "quick", prompt, **more)
        told = reply.json()["firsthand_cascade"]
        alone = two.ask(path, told["answered_by"], prompt, **more).json()
        assert reply.json()["choices"] == alone["choices"]
        assert reply.json()["model"] == "quick"
        for name in ("prompt_tokens", "completion_tokens"):
            assert reply.json()["usage"][name] == alone["usage"][name]
        assert two.ask(path, "quick", prompt, **more).json()["choices"] == alone["choices"]
        seen.add(told["reason"])
        if not more:
            sure = two.score(prompt, path) >= least_of(two)
            assert told["escalated"] is not sure
    if path == CHAT and not more:
        assert seen == {"sure", "unsure"}
    two.idle()


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_has_the_text_of_one_model(two: Two, path: str) -> None:
    seen = set()
    for prompt in PROMPTS:
        reply = two.ask(path, "quick", prompt, stream=True, stream_options={"include_usage": True})
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        assert lines.pop() == "[DONE]"
        *events, usage = [json.loads(line) for line in lines]
        ended = [one for one in events if one["choices"][0]["finish_reason"]]
        told = ended[0]["firsthand_cascade"]
        alone = two.ask(path, told["answered_by"], prompt).json()
        choices = [one["choices"][0] for one in events]
        texts = [
            one["text"] if path == TEXT else one["delta"].get("content", "") for one in choices
        ]
        whole = alone["choices"][0]
        assert "".join(texts) == (whole["text"] if path == TEXT else whole["message"]["content"])
        assert all(one["logprobs"] is None for one in choices), "nobody asked for them"
        assert usage["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
        words = reply.headers["x-cascade"].split("; ")
        assert words[:2] == [told["answered_by"], f"reason={told['reason']}"]
        seen.add(told["reason"])
    if path == CHAT:
        assert seen == {"sure", "unsure"}


def test_asked_for_logprobs_are_given(two: Two) -> None:
    for prompt in PROMPTS[:3]:
        reply = two.ask(CHAT, "quick", prompt, logprobs=True, top_logprobs=2).json()
        name = reply["firsthand_cascade"]["answered_by"]
        alone = two.ask(CHAT, name, prompt, logprobs=True, top_logprobs=2).json()
        assert reply["choices"][0]["logprobs"] == alone["choices"][0]["logprobs"]


@pytest.mark.parametrize("path", ["/v1/responses", "/predict"])
def test_the_other_routes_have_cascades_too(two: Two, path: str) -> None:
    for prompt in PROMPTS[:4]:

        def ask(model: str, prompt: str = prompt) -> httpx.Response:
            body: dict[str, Any] = {"model": model, "input": prompt, "temperature": 0}
            if path == "/predict":
                options = {"model": model, "temperature": 0, "max_length": 8}
                body = {"request_id": "r", "inputs": [prompt], "options": options}
            return two.client.post(path, json=body)

        reply = ask("quick")
        alone = ask(reply.headers["x-cascade"].split(";")[0]).json()
        if path == "/predict":
            assert reply.json()["outputs"] == alone["outputs"]
        else:
            text, other = (one["output"][0]["content"][0]["text"] for one in (reply.json(), alone))
            assert text == other
            assert reply.json()["firsthand_cascade"]["name"] == "quick"


def test_both_costs_and_the_decisions_are_counted(two: Two) -> None:
    before = {
        name: two.counted(f"firsthand_cascade_{name}") for name in ("answers", "cost", "tokens")
    }
    two.set(rule(0.0))
    told = two.ask(CHAT, "quick", "abc").json()["firsthand_cascade"]
    assert (told["reason"], told["confidence"], told["threshold"]) == ("unsure", 0.25, 0.5)
    assert (told["small"]["model"], told["large"]["model"]) == ("small", "large")
    assert told["large"]["cost"] == 9 * (told["large"]["prompt_tokens"] + 10)
    assert 1 <= told["small"]["output_tokens"] <= 10
    two.idle()
    after = {name: two.counted(f"firsthand_cascade_{name}") for name in before}
    assert set(after["answers"]) == set(REASONS)
    assert after["answers"]["unsure"] == before["answers"]["unsure"] + 1
    for size in ("small", "large"):
        assert after["cost"][size] > before["cost"][size]
        assert after["tokens"][size] > before["tokens"][size]


def test_a_prompt_that_is_too_long_for_the_small_one_is_the_large_ones(two: Two) -> None:
    reply = two.ask(CHAT, "quick", "a" * 700).json()
    assert reply["firsthand_cascade"]["reason"] == "too_long"
    assert reply["firsthand_cascade"]["small"] is None
    assert two.ask(CHAT, "quick", "a" * 3000).json()["error"]["param"] == "messages"


def test_another_model_in_the_place_of_a_measured_one_is_not_asked(two: Two) -> None:
    found, services = two.house.cascades["quick"].found, two.house.services
    assert isinstance(two.house.cascades, dict)
    swapped = Cascade(found, (services["large"], services["large"]))
    two.house.cascades["quick"] = swapped
    told = two.ask(CHAT, "quick", "abc").json()["firsthand_cascade"]
    assert (told["reason"], told["small"], told["confidence"]) == ("uncalibrated", None, None)


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"logit_bias": {"3": 1}}, "logit_bias"),
        (CHAT, {"stop_token_ids": [3]}, "stop_token_ids"),
        (TEXT, {"prompt": [1, 2]}, "prompt"),
        (CHAT, {"top_logprobs": 1}, "top_logprobs"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/tokenize", {"prompt": "a"}, "model"),
        ("/v1/embeddings", {"input": "a"}, "model"),
    ],
)
def test_what_a_cascade_cannot_is_refused_by_its_name(
    two: Two, path: str, more: dict[str, Any], param: str
) -> None:
    if path in (CHAT, TEXT):
        reply = two.ask(path, "quick", "a", **more)
    else:
        reply = two.client.post(path, json={"model": "quick", **more})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("waits", [True, False])
def test_a_client_that_goes_frees_whoever_computes(two: Two, waits: bool) -> None:
    """While it is not known who answers, and in the middle of an answer."""
    two.set(rule(-900.0, window=400 if waits else 4))
    body = {"model": "quick", "prompt": "a", "max_tokens": 450, "stream": True, "ignore_eos": True}
    with closing(two.running.connect()) as raw:
        content = json.dumps(body).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        if waits:
            until = time.monotonic() + 30
            while not two.house.services["small"].load.num_open:
                assert time.monotonic() < until, "it was never asked"
        else:
            assert raw.recv(100)
    two.idle()


def test_a_deadline_that_passes_before_the_decision_ends_it(two: Two) -> None:
    two.set(rule(-900.0, window=400))
    body = {"model": "quick", "prompt": "a", "max_tokens": 450, "ignore_eos": True, "stream": True}
    head = {"x-request-deadline-ms": "30"}
    reply = two.client.post(TEXT, json=body, headers=head)
    assert reply.status_code in (408, 504), "no stream had begun"
    assert reply.json()["error"]["code"] == "deadline_exceeded"
    two.idle()


def test_it_stands_in_the_list_of_models(two: Two) -> None:
    cards = two.client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["small", "large", "quick"]
    assert two.client.get("/v1/models/quick").json() == cards[2]
    assert cards[2]["max_model_len"] == 2048
    assert cards[2]["firsthand_cascade"]["small"] == "small"
    assert two.client.get("/v2/models/quick/ready").status_code == 200
    assert "quick" in two.ask(CHAT, "quik", "a").json()["error"]["message"]


def test_a_reload_finds_a_new_threshold_and_no_other_models(two: Two, tmp_path: Path) -> None:
    two.set(rule(-900.0))
    known, file = two.house.cascades, tmp_path / "quick.json"
    files = [("quick", str(file))]
    file.write_bytes(known["quick"].calibration.content())
    assert read_again(known, files) == ({}, False)
    file.write_bytes(replace(rule(-900.0), confidence=0.75).content())
    found, others = read_again(known, files)
    assert (found["quick"].calibration.confidence, others) == (0.75, False)
    assert found["quick"].measured == known["quick"].measured
    file.write_bytes(replace(rule(-900.0), small=SIDES[1], large=SIDES[0]).content())
    assert read_again(known, files) == ({}, True)
    file.write_text("{}")
    with pytest.raises(InvalidRequest, match="version"):
        read_again(known, files)


@pytest.mark.process
@pytest.mark.slow
def test_a_server_of_two_models_and_a_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From `cascade calibrate` to the log, the record and the metrics; and no start with another
    model."""
    models = []
    for seed, name in enumerate(("one", "two", "three")):
        (tmp_path / name).mkdir()
        models.append(str(write_micro_model(tmp_path / name, seed)))
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "quick.json"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    words = [*models[:2], "--prompts", str(prompts), "--out", str(file), "--threads", "1"]
    assert run_command(["cascade", "calibrate", *words, "--max-tokens", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calibration"] == read_calibration(file).sha256
    assert run_command(["cascade", "choose", str(file), "--confidence", "1.0"]) == 0

    def config(*served: str) -> list[str]:
        """There is room for one: the small model leaves, when it has answered in vain."""
        tables = "".join(f'[[model]]\npath = "{path}"\nload = "lazy"\n' for path in served)
        tables += f'[cascade]\nquick = "{file}"\n'
        path = tmp_path / "serve.toml"
        limit = need_of(Path(served[0])) * 3 // 2
        room = f'memory-limit = "{limit}"\nmin-model-stay = 0\n'
        path.write_text(f"{room}threads = 1\nrecord-content = true\n{tables}")
        return ["--config", str(path)]

    with launched(tmp_path, *config(*models[:2])) as server:
        server.wait_ready(60)
        body = {"model": "quick", "prompt": "abc", "max_tokens": 30, "temperature": 0}
        reply = httpx.post(server.url + TEXT, json=body | {"ignore_eos": True}, timeout=60)
        told = reply.json()["firsthand_cascade"]
        assert (told["answered_by"], told["reason"]) == ("two", "unsure")
        assert reply.headers["x-cascade"].startswith("large; reason=unsure")
        (line,) = [one for one in server.told("request") if one.get("model") == "quick"]
        assert line["cascade"] == {**told, "large": line["cascade"]["large"]}  # type: ignore[index]
        assert line["output_tokens"] == 30
        url = f"{server.url}/firsthand/requests/{reply.headers['x-request-id']}"
        record = httpx.get(url, timeout=30).json()
        assert record["cascade"] == line["cascade"]
        assert [one["model"] for one in record["parts"]] == ["one", "two"]
        assert record["parts"][0]["given_up_ms"] is not None
        stages = {one["name"]: one["ms"] for one in record["stages"]}
        assert list(stages) == [
            *("receive", "tokenize", "attempt", "queue", "prefill", "decode", "send")
        ]
        assert sum(stages.values()) == pytest.approx(record["total_ms"], abs=0.1)
        assert record["output_tokens"] == 30
        metrics = httpx.get(f"{server.url}/metrics", timeout=30).text
        for name in ("firsthand_cascade_answers", "firsthand_cascade_tokens"):
            assert f'{name}_total{{cascade="quick"' in metrics
        assert 'firsthand_cascade_cost_total{cascade="quick",size="large"}' in metrics
        assert run_command(["cascade", "choose", str(file), "--confidence", "0"]) == 0
        server.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 30
        while not server.told("reload"):
            assert time.monotonic() < until, "it was not reloaded"
            time.sleep(0.05)
        (line,) = server.told("reload")
        assert (line["changed"], line["needs_restart"]) == (["cascade"], [])
        reply = httpx.post(server.url + TEXT, json=body, timeout=60)
        assert reply.json()["firsthand_cascade"]["answered_by"] == "one"
    with launched(tmp_path, *config(models[0], models[2])) as server:
        assert server.process.wait(60) == 2
        assert f"{models[1]} (weights" in server.log.read_text()
