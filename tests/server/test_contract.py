"""The contract at the door: the reasons that a file's records have, before a model is asked.

Owns: proof of `server/contract.py`. Read next: `tests/data/test_check.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firsthand.data.check import Report, check_file
from firsthand.data.contract import find_contract
from firsthand.data.record import Rejected
from firsthand.data.sources.files import Reading
from firsthand.errors import InvalidRequest
from firsthand.observe.metrics import Metrics
from firsthand.server.contract import contract_of
from firsthand.server.house import House
from tests.server.conftest import Client, asking
from tests.server.fakes import FakeService
from tests.server.guarded import AUTH, guarded

OWN = """
from typing import Annotated
from pydantic import AfterValidator, Field
from firsthand.data import Contract

def short(text: str) -> str:
    if len(text) > 8:
        raise ValueError("is over 8 characters")
    return text.strip()

class Short(Contract):
    version = "3"
    text: Annotated[str, AfterValidator(short)]
    max_length: int = Field(default=7, ge=2, le=9)

class Ticket(Contract):
    ticket_id: str
    text: str

class Blind(Contract):
    request_id: str
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize(
    ("record", "param"),
    [
        ({"request_id": "r", "text": "   "}, "inputs[0]"),
        ({"request_id": " ", "text": "a"}, "request_id"),
        ({"request_id": "r", "text": "a", "max_length": 0}, "options.max_length"),
        ({"request_id": "r", "text": "a", "max_length": 2049}, "options.max_length"),
    ],
)
def test_a_request_is_refused_for_the_reason_of_a_record(
    ask: Client, service: FakeService, tmp_path: Path, record: dict[str, Any], param: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    found = list(check_file(tmp_path / "a.jsonl", find_contract(None), Reading()))
    (rejected,) = [one for one in found if isinstance(one, Rejected)]
    body: dict[str, Any] = {"request_id": record["request_id"], "inputs": [record["text"]]}
    if "max_length" in record:
        body["options"] = {"max_length": record["max_length"]}
    reply = ask("POST", "/predict", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, rejected.reason, param)
    assert error["message"] == f"{param}: {rejected.detail}"
    assert service.options == []


def test_the_contract_is_said_in_every_reply_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.jsonl").write_text("")
    *_, report = check_file(tmp_path / "a.jsonl", find_contract(None), Reading())
    assert isinstance(report, Report)
    label = f"{report.contract} {report.contract_hash[:16]}"
    caplog.set_level("INFO")
    with guarded() as server:
        for text, status in (("a", 200), (" ", 400)):
            body = json.dumps({"request_id": "r", "inputs": [text]}).encode()
            got, answer = server.post("/predict", body, AUTH)
            assert got == status and f"x-contract: {label}".encode() in answer.lower().replace(
                label.lower().encode(), label.encode()
            )
    facts = [vars(record).get("facts", {}) for record in caplog.records]
    assert len([one for one in facts if one.get("contract") == label]) == 2


def test_a_contract_of_ones_own_guards_every_route_that_has_a_text(own: Path) -> None:
    service = FakeService()
    ask = asking(House({"micro": service}, Metrics(), contract=contract_of(f"{own}:Short")))
    reply = ask("POST", "/predict", json={"request_id": "r", "inputs": [" abc "]})
    assert reply.status_code == 200 and service.options[-1]["max_tokens"] == 7
    chat = "/v1/chat/completions"
    long, good = {"role": "user", "content": "a long text"}, {"role": "user", "content": "short"}
    parts = [{"type": "text", "text": "long "}, {"type": "text", "text": "together"}]
    system = {"role": "system", "content": "as long as the operator likes"}
    cases: list[tuple[str, dict[str, Any], str | None, str | None]] = [
        ("/predict", {"request_id": "r", "inputs": ["a", "a long text"]}, "inputs[1]", "invalid"),
        (chat, {"messages": [system, good]}, None, None),
        (chat, {"messages": [system, long]}, "messages[1].content", "invalid"),
        (
            chat,
            {"messages": [{"role": "user", "content": parts}]},
            "messages[0].content",
            "invalid",
        ),
        (chat, {"messages": [good], "max_tokens": 10}, "max_tokens", "out_of_range"),
        (
            chat,
            {"messages": [good], "max_completion_tokens": 1},
            "max_completion_tokens",
            "out_of_range",
        ),
        ("/v1/responses", {"input": "short", "instructions": "a long text"}, None, None),
        ("/v1/responses", {"input": "a long text"}, "input", "invalid"),
        ("/v1/responses", {"input": [good, long]}, "input[1].content", "invalid"),
        (
            "/v1/responses",
            {"input": "short", "max_output_tokens": 10},
            "max_output_tokens",
            "out_of_range",
        ),
        ("/v1/completions", {"prompt": "short"}, None, None),
        ("/v1/completions", {"prompt": ["short", "a long text"]}, "prompt[1]", "invalid"),
        ("/v1/completions", {"prompt": [1, 2]}, "prompt", "wrong_type"),
    ]
    for path, body, param, code in cases:
        reply = ask("POST", path, json=body)
        error = reply.json().get("error") or {}
        assert (error.get("param"), error.get("code")) == (param, code), (path, body, error)


def test_without_a_contract_other_routes_are_as_they_were(ask: Client) -> None:
    for prompt in (" ", [1, 2]):
        assert ask("POST", "/v1/completions", json={"prompt": prompt}).status_code == 200


@pytest.mark.parametrize(
    ("name", "why"), [("Ticket", "ticket_id"), ("Blind", "no field text"), ("Other", "Other")]
)
def test_a_contract_that_no_request_can_keep_is_refused_at_the_start(
    own: Path, name: str, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        contract_of(f"{own}:{name}")
