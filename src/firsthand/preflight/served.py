"""The items that are asked of a running server, from its first answer to its drain.

Owns: these questions, whose order is that of a server's life.
May not know: how the server is started (`server.py`) or works.
Read next: `../server/`.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import When
from firsthand.preflight.items import Item, LeftOut, Wrong
from firsthand.preflight.server import NUM_RUNNING, NUM_WAITING, Reply, Server
from firsthand.values import dataclass

SECRET = "preflight-zebra-9931"  # in a prompt: to be found in no log
MAX_LINE_BYTES = 2048
FREE_S = 30.0
CROWD, TRIES = 4 * (NUM_RUNNING + NUM_WAITING), 5
LONG_TOKENS = 400
GREEDY = {"temperature": 0, "ignore_eos": True, "seed": 0}
PROMPT = "The history of the lighthouse begins"


@dataclass(slots=True, eq=False)
class Served:
    """`identity` is the hash under which the model lies on the disk, None: it has none."""

    server: Server
    identity: str | None

    def items(self) -> Iterator[Item]:
        ask: dict[str, tuple[Callable[[], str], str]] = {
            "health flips when the model is there": (
                self._becomes_ready,
                "read the log: firsthand serve MODEL",
            ),
            "the key opens every route, and only it": (self._key, "do not deploy: report it"),
            "what is loaded is what lies on the disk": (
                self._manifest,
                "the file was replaced meanwhile: begin again",
            ),
            "the context's limit is kept": (self._context, "set --max-model-len"),
            "stop strings end an answer": (self._stops, "do not deploy: report it"),
            "a client that goes frees its pages": (self._cancel, "do not deploy: report it"),
            "a full queue answers at once": (self._full_queue, "set --max-num-queued-reqs"),
            "metrics are all there": (self._metrics, "compare docs/metrics.md with the version"),
            "the log has a short line per request": (self._log, "set --log-level info"),
            "no secret stands in the log": (self._secrets, "do not deploy: report it"),
            "a drain ends what runs, and takes no more": (
                self._drain,
                "raise --shutdown-timeout above the longest answer",
            ),
        }
        for name, (question, todo) in ask.items():
            yield Item(name, todo, question)

    def _becomes_ready(self) -> str:
        began_s = time.perf_counter()
        self.server.wait_listening()
        first = self.server.status("/readyz")
        self.server.wait_status("/livez", 200)
        self.server.wait_status("/readyz", 200)
        took_s = time.perf_counter() - began_s
        return f"first {first}, then 200 after {took_s:.1f} s"

    def _key(self) -> str:
        for path in ("/v1/models", "/metrics", "/firsthand/admin/ps", "/no/such/path"):
            status = self.server.ask(path, with_key=False).status
            if status not in (401, 404) or (status == 404 and path == "/v1/models"):
                raise Wrong(f"{path} answers {status} without the key")
        self._good(self.server.ask("/v1/models"))
        return "401 without it"

    def _manifest(self) -> str:
        (card,) = self._good(self.server.ask("/v1/models"))["data"]
        loaded = card.get("firsthand_manifest_sha256")
        if self.identity is None or loaded is None:
            raise LeftOut("no hash names the model: firsthand manifest write MODEL gives it one")
        if loaded != self.identity:
            raise Wrong(f"loaded {loaded}, on the disk {self.identity}")
        return str(loaded)

    def _context(self) -> str:
        (card,) = self._good(self.server.ask("/v1/models"))["data"]
        length = int(card["max_model_len"])
        reply = self.server.ask("/v1/completions", {"prompt": [1] * (length + 1)})
        if reply.status != 400 or b"context_length_exceeded" not in reply.body:
            raise Wrong(f"{length + 1} tokens are answered with {reply.status}")
        return f"{length} tokens, one more is refused"

    def _stops(self) -> str:
        text = self._text({"max_tokens": 24})
        stop = text[len(text) // 2 :][:3]
        if not stop:
            raise LeftOut("the model answers nothing here")
        stopped = self._text({"max_tokens": 24, "stop": [stop]})
        if stopped != text[: text.index(stop)]:
            raise Wrong(f"stopped at {stop!r}: {stopped!r} of {text!r}")
        return f"at {stop!r}, the rest as before"

    def _cancel(self) -> str:
        with closing(self._stream(PROMPT)) as connection:
            connection.getresponse().readline()
        self._until(lambda: self._used() == 0, "the pages are not free again")
        return "0 blocks in use after the client went"

    def _full_queue(self) -> str:
        """More at once than there are places; once more where a small model was too quick."""
        for _ in range(TRIES):
            replies = self._crowd()
            if any(one.status == 503 for one in replies):
                break
        statuses = sorted({one.status for one in replies})
        refused = [one.headers for one in replies if one.status == 503]
        if not refused or statuses != [200, 503] or "retry-after" not in refused[0]:
            raise Wrong(f"{CROWD} at once are answered with {statuses}")
        return f"{len(refused)} of {CROWD} got 503, Retry-After {refused[0]['retry-after']} s"

    def _crowd(self) -> list[Reply]:
        with ExitStack() as held:
            clients = [
                held.enter_context(closing(self._stream(f"{number}: {PROMPT}")))
                for number in range(CROWD)
            ]
            responses = [client.getresponse() for client in clients]
            found = [
                Reply(one.status, {k.lower(): v for k, v in one.getheaders()}, b"")
                for one in responses
            ]
        self._until(lambda: self._used() == 0, "the queue does not empty")
        return found

    def _metrics(self) -> str:
        page = self.server.ask("/metrics").body.decode("utf-8")
        found = {family.name for family in text_string_to_metric_families(page)}
        wanted = {name for name, one in CATALOGUE.items() if one.when is When.ALWAYS}
        if wanted - found:
            raise Wrong(f"missing: {', '.join(sorted(wanted - found))}")
        return f"{len(wanted)} metrics"

    def _log(self) -> str:
        before = len(self._request_lines())
        self._text({"max_tokens": 4})
        self._until(lambda: len(self._request_lines()) > before, "the request has no line")
        lines = self._request_lines()[before:]
        if len(lines) != 1:
            raise Wrong(f"{len(lines)} lines for one request")
        size = len(json.dumps(lines[0]).encode())
        if size > MAX_LINE_BYTES:
            raise Wrong(f"{size} bytes for one request")
        return f"one line of {size} bytes"

    def _request_lines(self) -> list[dict[str, Any]]:
        found = [line for line in self.server.lines() if line.get("event") == "request"]
        return [line for line in found if line.get("endpoint") == "/v1/completions"]

    def _secrets(self) -> str:
        self.server.ask("/v1/completions", self._body(SECRET, 2))
        self.server.ask("/v1/completions", {"prompt": SECRET, "max_tokens": SECRET})
        text = self.server.log.read_text("utf-8")
        for what, secret in (("a prompt", SECRET), ("the key", self.server.key)):
            if secret in text:
                raise Wrong(f"{what} stands in it")
        return f"{len(text.splitlines())} lines, neither prompt nor key"

    def _drain(self) -> str:
        with closing(self._stream(PROMPT)) as connection:
            response = connection.getresponse()
            response.readline()
            self.server.terminate()
            whole = b"[DONE]" in response.read()
        late = self.server.status("/readyz")
        code = self.server.process.wait(FREE_S)
        if not whole or late not in (0, 503) or code != 0:
            raise Wrong(f"the answer was whole: {whole}; then {late}; exit code {code}")
        return "the answer came to its end, nobody else was let in, exit code 0"

    def _body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": max_tokens, **GREEDY}

    def _text(self, wanted: dict[str, Any]) -> str:
        reply = self.server.ask("/v1/completions", {"prompt": PROMPT, **GREEDY, **wanted})
        return str(self._good(reply)["choices"][0]["text"])

    def _stream(self, prompt: str) -> http.client.HTTPConnection:
        """One that lasts."""
        body = {**self._body(prompt, LONG_TOKENS), "stream": True}
        return self.server.open("/v1/completions", body)

    def _good(self, reply: Reply) -> Any:
        if reply.status != 200:
            raise Wrong(f"answers {reply.status}: {reply.body[:200]!r}")
        return reply.json()

    def _used(self) -> float:
        return self._metric("firsthand_kv_blocks_used_ratio")

    def _metric(self, name: str) -> float:
        page = self.server.ask("/metrics").body.decode("utf-8")
        for family in text_string_to_metric_families(page):
            if family.name == name:
                return sum(one.value for one in family.samples)
        raise Wrong(f"/metrics has no {name}")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + FREE_S
        while not holds():
            if time.monotonic() > until_s:
                raise Wrong(what)
            time.sleep(0.02)
