"""Batches in OpenAI's form: a request per line in, a response per line out.

Owns: the form of both lines.
May not know: where the lines are, who answers.
Read next: `pipeline.py`; `forms.py`, the other form.

A request that is answered by a refusal has an output, which says so. A line that is no request, and
one that three tries did not answer, is in quarantine; a second line of one `custom_id` is a
duplicate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from firsthand.data.contract import Contract, NotBlank
from firsthand.data.engines import EngineFacts, Reply
from firsthand.data.job import Job, job_of
from firsthand.data.record import Accepted, Reason
from firsthand.data.run_parts import Request
from firsthand.data.source import Flaw

ROUTES = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]


class BatchLine(Contract):
    """A request. What its body must be is the route's business."""

    key = "custom_id"

    custom_id: NotBlank
    method: Literal["POST"] = "POST"
    url: ROUTES
    body: dict[str, Any]

    @field_validator("body")
    @classmethod
    def _is_not_streamed(cls, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("stream"):
            raise ValueError("a batch streams nothing: stream")
        return body


class BatchForm:
    """Its file says who is meant, so the engine's facts are not needed."""

    def __init__(self, engine: EngineFacts | None) -> None:
        self._answers = engine is not None

    def request(self, item: Accepted, identity: bytes) -> Request | None:
        values = item.values
        content = json.dumps(values["body"], ensure_ascii=False).encode()
        return Request(values["method"], values["url"], content)

    def line(self, item: Accepted, identity: bytes, sha256: str, reply: Reply | None) -> bytes:
        body = None if reply is None else reply.json()
        if reply is None or not isinstance(body, dict):
            raise Flaw(Reason.FAILED, "the reply is no JSON object")
        return _line(item, identity, reply.status, body)

    def refusal(self, item: Accepted, identity: bytes, reply: Reply) -> bytes | None:
        body = reply.json()
        return _line(item, identity, reply.status, body) if isinstance(body, dict) else None


def _line(item: Accepted, identity: bytes, status: int, body: dict[str, Any]) -> bytes:
    name = identity.hex()
    value = {
        "id": f"batch_req_{name}",
        "custom_id": item.values["custom_id"],
        "response": {"status_code": status, "request_id": f"rec-{name}", "body": body},
        "error": None,
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def batch_job(source: Path, sink: Path, engine: dict[str, Any]) -> Job:
    """A batch as a job. `engine` is as a job's file has it. Raises InvalidRequest."""
    table = {
        "contract": f"{__name__}:{BatchLine.__name__}",
        "source": {"kind": "jsonl", "path": str(source.absolute())},
        "sink": {"path": str(sink.absolute())},
        "engine": engine,
    }
    return job_of(table, Path.cwd())
