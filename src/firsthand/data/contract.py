"""The contract: what a record must be, as code, with a version and a hash.

Owns: Contract (the base of a user's own), the contract that holds where none is named, what a
broken rule is called, and how a contract is found by name.
May not know: files, tables, queues, HTTP.
Read next: `check.py`.
Seen in: `firsthand lab dirty-record`.

A contract is a pydantic model in an ordinary module:

    from firsthand.data import Contract

    class Ticket(Contract):
        version = "2"
        key = "ticket_id"
        ticket_id: str
        text: NotBlank
        priority: int = Field(default=3, ge=1, le=5)

It is strict: "1" is no integer, true is no text, an unknown field is refused. A table of texts
(CSV) has only texts: there "512" is an integer for a field of integers, and an empty cell means
that the field is not there.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from firsthand.data.record import Reason
from firsthand.errors import InvalidRequest
from firsthand.named import find_named


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "is blank")
    return text


NotBlank = Annotated[str, AfterValidator(_not_blank)]


class Contract(BaseModel):
    """What a record must be. `key`: the field that names a record, None where none does."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: ClassVar[str] = "1"
    key: ClassVar[str | None] = None

    @classmethod
    def called(cls) -> str:
        """Its name and version."""
        return f"{cls.__name__} {cls.version}"


class Ask(Contract):
    """A text for the model: the contract where none is named."""

    key = "request_id"

    request_id: NotBlank
    text: NotBlank
    max_length: int = Field(default=512, ge=1, le=2048)


class Broken(Exception):
    """The first rule that a record breaks; `others` counts the rest."""

    def __init__(self, reason: Reason, field: str | None, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.field = field
        self.detail = detail


def contract_hash(contract: type[Contract]) -> str:
    """SHA-256 over the contract's name, version, key, schema and source, as canonical JSON.

    The source is in it because a rule in code is in no schema.
    """
    try:
        source = inspect.getsource(contract)
    except (OSError, TypeError):  # made in an interpreter
        source = ""
    value = {
        "name": contract.__name__,
        "version": contract.version,
        "key": contract.key,
        "schema": contract.model_json_schema(),
        "source": source,
    }
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Checker:
    """Checks records of one kind of source against one contract."""

    def __init__(self, contract: type[Contract]) -> None:
        self.contract = contract
        self._literals = {
            name: literal
            for name, info in contract.model_fields.items()
            if (literal := _literal_of(info.annotation)) is not None
        }

    def json(self, text: str) -> Contract:
        """A record as the text of a JSON object, whose keys are known to be single.

        Raises Broken."""
        try:
            return self.contract.model_validate_json(text)
        except ValidationError as error:
            raise _broken(error) from None

    def fields(self, fields: dict[str, Any]) -> Contract:
        """A record of typed values (Parquet, SQL). Raises Broken."""
        try:
            return self.contract.model_validate(fields)
        except ValidationError as error:
            raise _broken(error) from None

    def texts(self, fields: dict[str, str]) -> Contract:
        """A record of texts alone (CSV). Raises Broken."""
        given = {name: text for name, text in fields.items() if text}
        for name, literal in self._literals.items():
            if name in given and literal.fullmatch(given[name]) is None:
                what = f"{given[name][:40]!r} {NOT_ONE[literal]}"
                raise Broken(Reason.WRONG_TYPE, name, what)
        try:
            return self.contract.model_validate_strings(given)
        except ValidationError as error:
            raise _broken(error) from None


# How a cell of a table writes a value: as JSON does, so that 007 and yes change into nothing else.
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
TRUTH = re.compile(r"true|false")
NOT_ONE = {
    INTEGER: "is no integer of up to 19 digits",
    NUMBER: "is no number",
    TRUTH: "is neither true nor false",
}
LITERALS = {bool: TRUTH, int: INTEGER, float: NUMBER}


def _literal_of(annotation: Any) -> re.Pattern[str] | None:
    """What a cell of a field must look like; None: the field takes texts, or pydantic decides."""
    kinds = {annotation, *_inner(annotation)}
    if str in kinds:
        return None
    return next((literal for kind, literal in LITERALS.items() if kind in kinds), None)


def _inner(annotation: Any) -> set[Any]:
    """The types in a union or an annotated type."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return {
            one
            for part in get_args(annotation)
            for one in (part, *_inner(part))
            if isinstance(one, type)
        }
    return set()


REASONS = {
    "missing": Reason.MISSING_FIELD,
    "extra_forbidden": Reason.UNKNOWN_FIELD,
    "blank": Reason.BLANK,
    "value_error": Reason.INVALID,
    "assertion_error": Reason.INVALID,
}
RANGES = (
    "greater_",
    "less_",
    "too_short",
    "too_long",
    "multiple_of",
    "finite_number",
    "size",
    "finite",
)


def _broken(error: ValidationError) -> Broken:
    """The first error of several, so that a record is counted once."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    kind = str(first["type"])
    if kind in REASONS:
        reason = REASONS[kind]
    elif any(word in kind for word in RANGES):
        reason = Reason.OUT_OF_RANGE
    elif kind.endswith(("_type", "_parsing", "_from_float")):
        reason = Reason.WRONG_TYPE
    else:
        reason = Reason.INVALID
    field = ".".join(map(str, first["loc"])) or None
    return Broken(reason, field, str(first["msg"])[:200])


def find_contract(name: str | None) -> type[Contract]:
    """The contract of a name `module:Class` or `file.py:Class`; None: the one for a text."""
    if name is None:
        return Ask
    found = find_named("contract", name)
    if not (isinstance(found, type) and issubclass(found, Contract)):
        raise InvalidRequest("contract", f"{name[:80]!r} is no class of firsthand.data.Contract")
    return found
