"""What an engine is asked about a record of a job, and the line that comes of it.

Owns: the body of the request, the form of an output, and what it says of where it came from.
May not know: when it is asked, where it is written.
Read next: `pipeline.py`; `batch.py`, the other form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firsthand.data.contract import contract_hash
from firsthand.data.engines import EngineFacts, Reply
from firsthand.data.job import PATHS, EnginePart, Job
from firsthand.data.plain import NotPlain, plain_json
from firsthand.data.record import Accepted, Reason
from firsthand.data.run_parts import Request
from firsthand.data.source import Flaw
from firsthand.errors import InvalidRequest

OURS = "firsthand"  # the field of an output in which lineage stands


class JobForm:
    """An output is the values of its record, the answer, and under `firsthand` its lineage."""

    def __init__(self, job: Job, engine: EngineFacts | None) -> None:
        self._part = job.file.engine
        self._keep = job.file.sink.keep
        self._engine = engine
        self._lineage: dict[str, Any] = {
            "contract": job.contract.called(),
            "contract_sha256": contract_hash(job.contract),
            **(engine.to_dict() if engine is not None else {}),
        }

    def request(self, item: Accepted, identity: bytes) -> Request | None:
        part = self._part
        self._kept(item.values)  # before anybody is asked
        if part is None or self._engine is None:
            return None
        body: dict[str, Any] = {"model": self._engine.model, **part.options}
        if part.options.get("temperature") != 0:
            # So that an answer that is asked for again is the same one.
            body.setdefault("seed", int.from_bytes(identity[:4], "big") >> 1)
        for name, field in part.fields.items():
            body[name] = _value(item.values, field)
        body |= _prompt(part, _value(item.values, part.prompt))
        return Request("POST", PATHS[part.route], _json(body))

    def line(self, item: Accepted, identity: bytes, sha256: str, reply: Reply | None) -> bytes:
        values = item.values
        if self._keep is not None:
            values = {name: values[name] for name in self._kept(values)}
        answer = {} if reply is None else answer_of(reply)
        lineage = {"id": identity.hex(), "input_sha256": sha256, **self._lineage}
        return _json({**values, **answer, OURS: lineage})

    def _kept(self, values: Mapping[str, Any]) -> list[str]:
        """Raises Flaw."""
        if OURS in values and self._keep is None:
            raise Flaw(Reason.INVALID, f"the field {OURS!r} is the output's own")
        for name in self._keep or ():
            if name not in values:
                raise Flaw(Reason.MISSING_FIELD, f"sink.keep names {name[:80]!r}")
        return list(self._keep or ())

    def refusal(self, item: Accepted, identity: bytes, reply: Reply) -> bytes | None:
        return None


def _value(values: Mapping[str, Any], field: str) -> Any:
    """Raises InvalidRequest: a fault of the job, which no record can mend."""
    if field not in values:
        raise InvalidRequest("engine", f"asks for the field {field!r}, which records have not")
    return values[field]


def _prompt(part: EnginePart, prompt: Any) -> dict[str, Any]:
    if part.route == "completions":
        return {"prompt": prompt}
    messages = [{"role": "user", "content": prompt}]
    if part.system is not None:
        messages.insert(0, {"role": "system", "content": part.system})
    return {"messages": messages}


def answer_of(reply: Reply) -> dict[str, Any]:
    """The text of the first choice, and how it ended. Raises Flaw."""
    found = reply.json()
    try:
        choice = found["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        answer = {"answer": text, "finish_reason": choice["finish_reason"]}
    except (TypeError, KeyError, IndexError):
        raise Flaw(Reason.FAILED, f"the reply is no answer: {reply.message}") from None
    usage = found.get("usage")
    if isinstance(usage, Mapping):
        answer |= {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return answer


def _json(value: Any) -> bytes:
    """Raises Flaw."""
    try:
        return plain_json(value)
    except NotPlain as error:
        raise Flaw(Reason.INVALID, f"the output {error.detail}") from None
