"""Several models in one real server: names, one memory limit, sleep and wake, what is told.

Owns: proof that `generation/registry.py` and `server/entrance.py` hold with real engines.
Read next: `tests/generation/test_registry.py`, where every case has its own test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import plan_model
from tests.server.processes import Server, launched

pytestmark = pytest.mark.native


@dataclass(frozen=True)
class Two:
    """`first` is loaded at the start, `second` when it is asked for; there is room for one."""

    server: Server
    admin: httpx.Client
    config: Path

    def post(self, model: str, headers: dict[str, str] | None = None) -> httpx.Response:
        body = {"model": model, "prompt": "abc", "max_tokens": 4, "temperature": 0}
        url = self.server.url + "/v1/completions"
        return httpx.post(url, json=body | {"ignore_eos": True}, headers=headers, timeout=60)

    def text(self, model: str) -> str:
        answer = self.post(model)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return str(answer.json()["choices"][0]["text"])

    def states(self) -> dict[str, str]:
        cards = httpx.get(self.server.url + "/v1/models").json()["data"]
        return {card["id"]: card["firsthand_status"] for card in cards}

    def verb(self, name: str) -> dict[str, Any]:
        answer = self.admin.post(f"/firsthand/admin/{name}", timeout=60)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def wait_for(self, states: dict[str, str]) -> None:
        until = time.perf_counter() + 60
        while self.states() != states:
            assert time.perf_counter() < until, self.states()
            time.sleep(0.02)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("several")
    models = [folder / "one", folder / "two"]
    for seed, path in enumerate(models):
        path.mkdir()
        write_micro_model(path, seed)
    limit = need_of(models[0]) * 3 // 2
    config, admin = folder / "serve.toml", folder / "admin"
    config.write_text(
        f'memory-limit = "{limit}"\n'
        f'min-model-stay = 0\nadmin-socket = "{admin}"\nthreads = 1\n'
        f'[[model]]\npath = "{models[0]}"\nname = "first"\n'
        f'[[model]]\npath = "{models[1]}"\nname = "second"\nload = "lazy"\nmax-num-seqs = 3\n'
    )
    with launched(folder, "--config", str(config)) as server:
        server.wait_ready(60)
        transport = httpx.HTTPTransport(uds=str(admin))
        with httpx.Client(transport=transport, base_url="http://admin") as client:
            yield Two(server, client, config)


def need_of(model: Path) -> int:
    return plan_model(model, LoadOptions(memory_limit="4GiB"))[1].shared_bytes


def test_f_45_a_model_that_is_asked_for_is_loaded_and_the_other_leaves(two: Two) -> None:
    two.text("first")
    two.wait_for({"first": "ready", "second": "asleep"})
    (pid,) = two.server.engine_pids()
    first, second = two.text("first"), two.text("second")
    assert first != second
    assert two.states() == {"first": "asleep", "second": "ready"}
    (other,) = two.server.engine_pids()
    assert other != pid
    assert (two.text("first"), two.text("second")) == (first, second)


def test_requests_at_once_for_one_that_sleeps_load_it_once(two: Two) -> None:
    two.text("first")
    before = loads(two)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: two.text("second"), range(4)))
    assert len(set(texts)) == 1
    assert loads(two) == before | {"second": before["second"] + 1}


def loads(two: Two) -> dict[str, int]:
    return {row["name"]: row["num_loads"] for row in two.verb("ps")["models"]}


def test_one_in_use_never_leaves_and_the_other_is_told_when_to_come_back(two: Two) -> None:
    two.text("first")
    body = {"model": "first", "prompt": "a", "max_tokens": 480, "stream": True, "ignore_eos": True}
    url = two.server.url + "/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        late = two.post("second", {"X-Request-Deadline-Ms": "1"})
        text = answer.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    assert (late.status_code, late.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert int(late.headers["retry-after"]) >= 1
    two.wait_for({"first": "asleep", "second": "ready"})  # it was loaded when there was room


def test_s_83_each_model_is_told_of_by_its_name(two: Two) -> None:
    two.text("first")
    two.text("second")
    models = httpx.get(two.server.url + "/v1/models").json()["data"]
    assert [card["id"] for card in models] == ["first", "second"]
    assert all(card["max_model_len"] == 512 for card in models)
    assert all(card["firsthand_memory_bytes"] > 0 for card in models)
    unknown = two.post("third")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert "first, second" in unknown.json()["error"]["message"]
    checks = httpx.get(two.server.url + "/readyz?verbose").json()["checks"]
    names = {"engine:first", "engine:second", "golden_tokens:first", "golden_tokens:second"}
    assert names | {"models"} <= set(checks)
    assert all(check["ok"] for check in checks.values())
    metrics = httpx.get(two.server.url + "/metrics").text
    for name, value in (("first", 0.0), ("second", 1.0)):
        assert f'firsthand_model_loaded{{model="{name}"}} {value}' in metrics
        assert f'vllm:num_requests_running{{engine="0",model_name="{name}"}}' in metrics
        assert f'firsthand_model_load_seconds{{model="{name}"}}' in metrics
    rows = {row["name"]: row for row in two.verb("ps")["models"]}
    assert rows["first"]["pid"] is None and rows["second"]["pid"] is not None
    assert two.verb("ps")["used_bytes"] == rows["second"]["memory_bytes"]


def test_f_46_the_operator_puts_one_to_sleep_and_wakes_it(two: Two) -> None:
    two.text("second")
    assert two.verb("sleep?model=second") == {"status": "asleep"}
    assert two.server.engine_pids() == []
    refused = two.post("second")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
    assert two.server.status() == 200  # the first can still be asked
    first = two.text("first")
    assert two.verb("wake_up?model=second")["status"] in ("asleep", "loading")
    two.wait_for({"first": "asleep", "second": "ready"})
    assert two.text("first") == first
    answer = two.admin.post("/firsthand/admin/sleep?model=third")
    assert answer.status_code == 400 and "first, second" in answer.text


def test_f_83_a_reload_keeps_the_models(two: Two) -> None:
    two.text("second")
    states = two.states()
    text = two.config.read_text()
    two.config.write_text(text.replace("min-model-stay = 0", "min-model-stay = 1"))
    assert two.verb("reload") == {"changed": ["min_model_stay"], "needs_restart": []}
    two.config.write_text(text.replace('"second"', '"another"'))
    assert two.verb("reload") == {"changed": ["min_model_stay"], "needs_restart": ["model"]}
    two.config.write_text(text)
    assert two.states() == states


def test_models_that_cannot_be_together_are_refused_with_their_numbers(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
        write_micro_model(path)
    limit = need_of(paths[0]) * 3 // 2
    with launched(tmp_path, *map(str, paths), "--memory-limit", str(limit)) as server:
        assert server.process.wait(60) == 5
    said = server.log.read_text()
    assert "the models of the start need" in said and "(as given)" in said
    assert "Traceback" not in said
    with launched(tmp_path, *map(str, paths), "--served-model-name", "x") as server:
        assert server.process.wait(60) == 2
    assert "served_model_name" in server.log.read_text()
