"""The contract at the door: what a text has to be before a model sees it, as it has to in a file.

Owns: which fields of a request are a record, and what a broken rule is told over HTTP.
May not know: any rule (`../data/contract.py` has them), any route.
Read next: `routes/predict.py`; `../data/contract.py`.

A record of a request is `request_id`, `text` and `max_length`; a contract declares which of them it
reads. Where the operator names none, `/predict` has the one that files have; one that is named
guards the texts of completions and chats too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Scope

from firsthand.data.contract import Broken, Checker, Contract, contract_hash, find_contract
from firsthand.data.record import Reason
from firsthand.errors import InvalidRequest
from firsthand.server.guard.call import call_of
from firsthand.server.guard.refusal import Refused
from firsthand.server.headers import request_id_of
from firsthand.values import dataclass

FIELDS = ("request_id", "text", "max_length")
HASH_CHARS = 16
Texts = Sequence[tuple[str, str]]  # each with its place in the body


@dataclass(frozen=True, slots=True)
class DoorContract:
    """`named`: by the operator. `label` goes with every reply and into the log."""

    checker: Checker
    label: str
    named: bool

    def check(
        self, scope: Scope, given: Mapping[str, Any], places: Mapping[str, str]
    ) -> dict[str, Any]:
        """A record's values, with the contract's defaults. `places`: where its fields stand in the
        body. Raises Refused with the reason that a file's record would have."""
        call_of(scope).contract = self.label
        known = self.checker.contract.model_fields
        record = {name: value for name, value in given.items() if name in known}
        try:
            return self.checker.fields(record).model_dump()
        except Broken as broken:
            field = broken.field or "text"
            param = places.get(field, field)
            raise Refused(400, f"{param}: {broken.detail}", str(broken.reason), param) from None

    def check_texts(self, scope: Scope, texts: Texts, limit: tuple[str, int | None]) -> None:
        """Those of a route that has other rules of its own: nothing is changed. `limit` is its
        field for the length of an answer. Raises Refused."""
        if not self.named:
            return
        name, max_length = limit
        given: dict[str, Any] = {"request_id": request_id_of(scope)}
        if max_length is not None:
            given["max_length"] = max_length
        for place, text in texts:
            self.check(scope, {**given, "text": text}, {"text": place, "max_length": name})

    def refuse_ids(self, scope: Scope, place: str) -> None:
        """Token ids where a text is due. Raises Refused, where a contract is named."""
        if self.named:
            call_of(scope).contract = self.label
            message = f"{place}: the contract here reads texts, and these are token ids"
            raise Refused(400, message, str(Reason.WRONG_TYPE), place)


def contract_of(name: str | None) -> DoorContract:
    """Raises InvalidRequest: it is none, or needs a field that no request has."""
    found: type[Contract] = find_contract(name)
    lacking = [
        field
        for field, info in found.model_fields.items()
        if info.is_required() and field not in FIELDS
    ]
    if lacking or "text" not in found.model_fields:
        message = f"{found.called()} needs {', '.join(lacking)}; a request has {', '.join(FIELDS)}"
        if not lacking:
            message = f"{found.called()} has no field text, and a request is about one"
        raise InvalidRequest("contract", message)
    label = f"{found.called()} {contract_hash(found)[:HASH_CHARS]}"
    sent = re.sub(r"[^ -~]", "?", label)  # what a header can carry
    return DoorContract(Checker(found), sent, named=name is not None)
