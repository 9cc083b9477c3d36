"""What a caller asks of the form of an answer becomes a grammar.

Owns: OpenAI's `response_format`, vLLM's `structured_outputs`, and the frame that lets a model
reason before it answers in that form.
May not know: how a grammar is compiled or applied, who asks.
Read next: `request.py` (`Grammar`), `tools.py`; `engine/grammar.py` reads what is made here.

A form that is not taken is refused by the name of its field. A schema that asks for nothing means
a JSON object, so that an answer has an end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from firsthand.checks import shown
from firsthand.errors import InvalidRequest
from firsthand.request import Grammar, GrammarKind

MAX_OPTIONS = 4096
MAX_NAME_CHARS = 64
# In JSON within rules; for a schema alone, whoever compiles it knows the same.
JSON_SPACE = r"\x20{1,2}|\r?\n[\x20\t]{0,32}"
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NOTES = frozenset(("$schema", "$id", "$comment", "title", "description"))  # that ask for nothing

Reasoning = Literal["none", "open", "may"]
THINK, END_THINK = "<think>", "</think>"


def of_response_format(given: object, field: str = "response_format") -> Grammar | None:
    """None for plain text. Raises InvalidRequest, naming the field within `field`."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(field, f"must be an object with a type, not {shown(given)}")
    match given.get("type"):
        case "text":
            _only(given, ("type",), field)
            return None
        case "json_object":
            _only(given, ("type",), field)
            return of_schema(ANY_OBJECT, field)
        case "json_schema":
            _only(given, ("type", "json_schema"), field)
            return _of_named_schema(given.get("json_schema"), f"{field}.json_schema")
        case other:
            raise InvalidRequest(
                f"{field}.type", f"must be text, json_object or json_schema, not {shown(other)}"
            )


def of_structured(given: object, field: str = "structured_outputs") -> Grammar:
    """The grammar of `{json | regex | choice | grammar | json_object: …}`, one of these that is not
    null. Raises InvalidRequest."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(field, f"must be an object, not {shown(given)}")
    _only(given, ("json", "regex", "choice", "grammar", "json_object"), field)
    asked = [(name, value) for name, value in given.items() if value is not None]
    if len(asked) != 1:
        names = " and ".join(name for name, _ in asked)
        raise InvalidRequest(field, f"takes one form, not {names or 'none'}")
    name, value = asked[0]
    where = f"{field}.{name}"
    match name:
        case "json":
            return of_schema(_parsed(value, where) if isinstance(value, str) else value, where)
        case "json_object":
            if value is not True:
                raise InvalidRequest(where, f"must be true, not {shown(value)}")
            return of_schema(ANY_OBJECT, where)
        case "choice":
            return _of_choice(value, where)
        case "regex":
            return Grammar(GrammarKind.REGEX, _text(value, where), field=where)
        case _:
            return _of_rules(_text(value, where), where)


def of_schema(schema: object, field: str) -> Grammar:
    """JSON that a schema allows. Raises InvalidRequest."""
    if not isinstance(schema, Mapping):
        raise InvalidRequest(field, f"a schema is a JSON object, not {shown(schema)}")
    if _NOTES.issuperset(schema):
        schema = {**schema, **ANY_OBJECT}
    return Grammar(GrammarKind.JSON_SCHEMA, json_text(schema, field), field=field)


def json_text(value: object, field: str) -> str:
    """Raises InvalidRequest for what JSON cannot say."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"is no JSON: {error}") from None


def with_reasoning(grammar: Grammar, reasoning: Reasoning) -> Grammar:
    """As `grammar`, after the model's reasoning: `open` if the prompt has begun it, `may` if the
    model begins it when it wants to."""
    if reasoning == "none":
        return grammar
    begin = "" if reasoning == "open" else f"{json.dumps(THINK)} "
    lead = f"{begin}thought SPACE?"
    if reasoning == "may":
        lead = f"({lead})?"
    rules = (
        f"lead: {lead}\n"
        f"thought[suffix={json.dumps(END_THINK)}]: /(?s:.*)/\n"
        "SPACE: /[ \\n]{1,4}/\n"
    )
    return replace(grammar, lead=rules)


def _of_named_schema(given: object, field: str) -> Grammar:
    if not isinstance(given, Mapping):
        raise InvalidRequest(field, f"must be an object with name and schema, not {shown(given)}")
    _only(given, ("name", "schema", "strict", "description"), field)
    name, strict = given.get("name"), given.get("strict")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidRequest(f"{field}.name", f"must be a text of 1 to {MAX_NAME_CHARS} characters")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"{field}.strict", f"must be true or false, not {shown(strict)}")
    if given.get("schema") is None:
        raise InvalidRequest(f"{field}.schema", "is missing")
    return of_schema(given["schema"], f"{field}.schema")


def _of_choice(given: object, field: str) -> Grammar:
    if not isinstance(given, list | tuple) or not 0 < len(given) <= MAX_OPTIONS:
        raise InvalidRequest(field, f"must be a list of 1 to {MAX_OPTIONS} texts")
    for one in given:
        if not isinstance(one, str) or not one:
            raise InvalidRequest(
                field, f"its entries are texts that are not empty, not {shown(one)}"
            )
    options = " | ".join(json.dumps(one, ensure_ascii=False) for one in dict.fromkeys(given))
    return Grammar(GrammarKind.LARK, f"start: {options}\n", field=field)


def _of_rules(text: str, field: str) -> Grammar:
    kind = GrammarKind.GBNF if "::=" in text else GrammarKind.LARK
    return Grammar(kind, text, field=field)


def _only(given: Mapping[Any, Any], names: tuple[str, ...], field: str) -> None:
    for name in given:
        if name not in names:
            raise InvalidRequest(f"{field}.{str(name)[:MAX_NAME_CHARS]}", "no such field")


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be a text, not {shown(value)}")
    return value


def _parsed(text: str, field: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(field, "is no JSON") from None
