"""Calls of tools as Qwen3-Coder writes them: tags in place of JSON.

Owns: one call's scanner, which turns its parameters into JSON arguments; the grammar of such calls;
a call written out.
May not know: what comes before or after a call.
Read next: `call_scanner.py`, the same for JSON; `tool_calls.py`, which has both.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

A parameter's text is a string if the tool's schema says so, or says nothing; else it is JSON, and
where it is none, the string that it is. Arguments are given out parameter by parameter, because
only the end of a text tells what it was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from firsthand.text.call_scanner import Taken
from firsthand.text.grammars import json_text

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_OTHER_WORDS = ("anyOf", "oneOf", "allOf", "$ref", "const")  # that may say a type
Schemas = Mapping[str, Mapping[str, Any]]


class XmlCallScanner:
    """As `CallScanner`: `names` are those that a call may have, ended without one it is no call."""

    def __init__(self, names: Collection[str], schemas: Schemas, lead: str = "") -> None:
        self._names = names
        self._schemas = schemas
        self.raw = lead
        self.name: str | None = None
        self.ended = False
        self._held = ""
        self._key: str | None = None  # of the parameter that is read now
        self._num_parameters = 0

    def add(self, text: str) -> Taken:
        known, arguments = self.name, ""
        self._held += text
        while not self.ended:
            more = self._step()
            if more is None:
                break
            arguments += more
        num_left = len(self._held) if self.ended else 0
        count = len(text) - num_left
        self.raw += text[:count]
        if self.ended:
            self._held = ""
        return Taken(count, self.name if known is None else None, arguments)

    def _step(self) -> str | None:
        """Arguments that the next part brings; None: more text is needed."""
        if self._key is not None:
            return self._value(self._key)
        held = self._held.lstrip()
        wanted = (FUNCTION,) if self.name is None else (PARAMETER, END_FUNCTION)
        tag = next((one for one in wanted if held.startswith(one)), None)
        if tag is None:
            if any(one.startswith(held) for one in wanted):
                return None
            return self._end(held)
        rest = held[len(tag) :]
        if tag == END_FUNCTION:
            return self._end(rest)
        word, closed, rest = rest.partition(">")
        if not closed:
            return None if "\n" not in word else self._end(rest)
        self._held = rest
        if tag == PARAMETER:
            self._key = word.strip()
        elif word.strip() in self._names:
            self.name = word.strip()
        else:
            return self._end(rest)
        return ""

    def _value(self, key: str) -> str | None:
        text, closed, rest = self._held.partition(END_PARAMETER)
        if not closed:
            return None
        self._held, self._key = rest, None
        text = text.removeprefix("\n").removesuffix("\n")
        value = json.dumps(_value_of(text, self._schema_of(key)), ensure_ascii=False)
        self._num_parameters += 1
        begin = "{" if self._num_parameters == 1 else ", "
        return f"{begin}{json.dumps(key, ensure_ascii=False)}: {value}"

    def _schema_of(self, key: str) -> Mapping[str, Any]:
        found = properties_of(self._schemas.get(self.name or "", {})).get(key)
        return found if isinstance(found, Mapping) else {}

    def _end(self, rest: str) -> str:
        self._held, self.ended = rest, True
        if self.name is None:
            return ""
        return "}" if self._num_parameters else "{}"


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value is written as it is, and not as JSON."""
    types = schema.get("type")
    if types is not None:
        return bool(types in ("string", ["string"]))
    if any(name in schema for name in _OTHER_WORDS):
        return False
    return all(isinstance(value, str) for value in schema.get("enum", ()))


def call_rules(functions: Sequence[tuple[str, Mapping[str, Any]]], field: str) -> str:
    """Lark rules for `call`, one of the functions with arguments that its schema allows."""
    rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}\n"]
    for i, (name, schema) in enumerate(functions):
        required = schema.get("required", ())
        parts = [f"call_{i}: {json.dumps(f'{FUNCTION}{name}>')} BREAK"]
        values = []
        for k, (key, value) in enumerate(properties_of(schema).items()):
            parts.append(f"value_{i}_{k}{'' if key in required else '?'}")
            values.append(_parameter_rules(f"value_{i}_{k}", key, value, field))
        if not values and schema.get("additionalProperties") is not False:
            parts.append("other*")
        rules.append(" ".join([*parts, json.dumps(END_FUNCTION)]) + "\n")
        rules += values
    rules.append(f'other: "{PARAMETER}" KEY ">" BREAK text BREAK\n')
    rules.append(f"text[suffix={json.dumps(END_PARAMETER)}]: /(?s:.*)/\n")
    rules.append('KEY: /[^>\\n]{1,64}/\nBREAK: "\\n"\n')
    return "".join(rules)


def _parameter_rules(rule: str, key: str, schema: Any, field: str) -> str:
    begin = json.dumps(f"{PARAMETER}{key}>")
    if not isinstance(schema, Mapping) or (is_text(schema) and "enum" not in schema):
        return f"{rule}: {begin} BREAK text BREAK\n"
    if is_text(schema):
        options = " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
        value = f"({options})"
    else:
        value = f"{rule}_json"
    end = json.dumps(END_PARAMETER)
    own = "" if is_text(schema) else f"{rule}_json: %json {json_text(schema, field)}\n"
    return f"{rule}: {begin} BREAK {value} BREAK {end} BREAK\n{own}"


def written_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in this form, without the tags around it."""
    parts = [f"{FUNCTION}{name}>"]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json_text(value, "messages")
        parts.append(f"{PARAMETER}{key}>\n{text}\n{END_PARAMETER}")
    return "\n".join([*parts, END_FUNCTION])


def _value_of(text: str, schema: Mapping[str, Any]) -> Any:
    if is_text(schema):
        return text
    plain = text.strip()
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(plain, plain))
    except (ValueError, RecursionError):
        return text
