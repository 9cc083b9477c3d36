"""Batches in OpenAI's form: a request per line in, a response per line out.

Owns: the form of both lines, and of a line that says why there is no response.
May not know: where the lines are, who answers.
Read next: `pipeline.py`; `forms.py`, the other form.

A request that is answered by a refusal has an output, which says so. A line that is no request, and
one that three tries did not answer, is in quarantine; a second line of one `custom_id` is a
duplicate.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import field_validator

from firsthand.data.contract import Checker, Contract, NotBlank
from firsthand.data.engines import ROUTES, EngineFacts, Reply
from firsthand.data.identity import identity_of, request_id_of
from firsthand.data.job import Job, job_of
from firsthand.data.ledger import read_ledger
from firsthand.data.opening import open_source
from firsthand.data.plain import NotPlain, plain_json
from firsthand.data.record import (
    START,
    Accepted,
    Duplicate,
    Position,
    Reason,
    Rejected,
    content_sha256,
)
from firsthand.data.run_parts import Request
from firsthand.data.seen import Seen
from firsthand.data.source import Flaw
from firsthand.data.stages import checked, unique
from firsthand.errors import InvalidRequest


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


class Wrong(NamedTuple):
    """What is wrong in a line."""

    line: int
    code: str
    field: str | None
    detail: str


class BatchForm:
    """Its file says who is meant, so the engine's facts are not needed. `refusals`: how many lines
    say so since it was made, by their status."""

    def __init__(self, engine: EngineFacts | None = None) -> None:
        self.refusals: Counter[int] = Counter()

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
        if not isinstance(body, dict):
            return None
        self.refusals[reply.status] += 1
        return _line(item, identity, reply.status, body)


def _line(item: Accepted, identity: bytes, status: int, body: dict[str, Any]) -> bytes:
    name = identity.hex()
    response = {"status_code": status, "request_id": request_id_of(name), "body": body}
    return _written(name, item.values["custom_id"], response, None)


def error_line(name: str, custom_id: str | None, code: str, message: str) -> bytes:
    """Of a request that has no response. `name` is that of its record."""
    return _written(name, custom_id, None, {"code": code, "message": message})


def is_answer(line: bytes) -> bool:
    """Whether an output is the answer that was asked for; else it says why there is none."""
    response = json.loads(line)["response"]
    return response is not None and response["status_code"] == 200


def _written(name: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    value = {"id": f"batch_req_{name}", "custom_id": custom_id}
    value |= {"response": response, "error": error}
    try:
        return plain_json(value)
    except NotPlain as fault:
        raise Flaw(Reason.FAILED, f"the reply {fault.detail}") from None


def batch_job(source: Path, sink: Path, engine: dict[str, Any], folder: Path, **more: Any) -> Job:
    """A batch as a job. Names that are relative begin at `folder`; `engine` and `more` are as a
    job's file has them. Raises InvalidRequest."""
    table = {
        "contract": f"{__name__}:{BatchLine.__name__}",
        "source": {"kind": "jsonl", "path": str(source)},
        "sink": {"path": str(sink)},
        "engine": engine,
        **more,
    }
    return job_of(table, folder)


def job_of_ledger(path: Path) -> Job:
    """The batch that has written a ledger. Raises SourceRefused; InvalidRequest: another job has,
    whose file says more than its ledger does."""
    with closing(read_ledger(path)) as ledger:
        source, sink = ledger.fact("source_part"), ledger.fact("sink_part")
        if ledger.fact("contract") != BatchLine.called():
            raise InvalidRequest("job", f"{path} is a job's ledger; give the job's file")
    names = (Path(source["path"]), Path(sink["path"]))
    return batch_job(*names, {"url": "unasked"}, path.absolute().parent)


def checked_batch(job: Job, endpoint: str) -> Iterator[Wrong | int]:
    """What is wrong in its file, line by line, and at the end how many lines there are. Raises
    SourceRefused."""
    num = 0
    with closing(open_source(job, START)) as source, closing(Seen()) as seen:
        for item in unique(checked(source, Checker(BatchLine)), seen):
            num += 1
            line = item.position.line
            match item:
                case Rejected():
                    yield Wrong(line, item.reason, item.field, item.detail)
                case Duplicate():
                    yield Wrong(line, "duplicate_custom_id", "custom_id", "was there already")
                case Accepted() if (url := item.values["url"]) != endpoint:
                    yield Wrong(line, "mismatched_endpoint", "url", f"is {url}, not {endpoint}")
    yield num


def left_of(job: Job, after: Position) -> Iterator[tuple[bytes, str]]:
    """The requests that stand behind a place: the name of each, and its `custom_id`."""
    with closing(open_source(job, after)) as source:
        for item in checked(source, Checker(BatchLine)):
            if isinstance(item, Accepted):
                sha256 = content_sha256(item.record)
                yield identity_of(job.source_name, item.position, sha256), item.values["custom_id"]
