"""What tests of runs share: a job in a folder, an engine that answers by a rule.

Owns: `job_in`, `Answers`. May not know: any test. Read next: `test_runs.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from firsthand.data.engines import Reply
from firsthand.data.job import Job, job_of
from firsthand.version import VERSION

MODELS = {"data": [{"id": "rule", "firsthand_manifest_sha256": "ab" * 32}]}


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in objects)


def ask(number: int, text: str = "") -> dict[str, Any]:
    return {"request_id": f"r{number}", "text": text or f"text {number}"}


def job_in(folder: Path, records: bytes | None = None, **table: Any) -> Job:
    if records is not None:
        (folder / "in.jsonl").write_bytes(records)
    return job_of({"source": {"path": "in.jsonl"}, "sink": {"path": "out.jsonl"}, **table}, folder)


def with_engine(**more: Any) -> dict[str, Any]:
    return {"engine": {"url": "http://x", "patience_s": 0.0, **more}}


def outputs(folder: Path, name: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


class Answers:
    """An engine: `rule` makes of a body and the count of its tries a status and a text."""

    def __init__(self, rule: Callable[[dict[str, Any], int], tuple[int, str]], width: int = 4):
        self.width = width
        self.num_now = self.most_at_once = 0
        self.tries: dict[str, int] = {}
        self._rule = rule
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(width)

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        return self._threads.submit(self._reply, path, content, request_id)

    def _reply(self, path: str, content: bytes | None, request_id: str) -> Reply:
        if content is None:
            found = MODELS if path == "/v1/models" else {"version": VERSION}
            return Reply(200, json.dumps(found).encode())
        with self._lock:
            self.num_now += 1
            self.most_at_once = max(self.most_at_once, self.num_now)
            self.tries[request_id] = tries = self.tries.get(request_id, 0) + 1
        status, text = self._rule(json.loads(content), tries)
        with self._lock:
            self.num_now -= 1
        if status != 200:
            return Reply(status, json.dumps({"error": {"message": text}}).encode())
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2}
        return Reply(200, json.dumps({"choices": [choice], "usage": usage}).encode())

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])
