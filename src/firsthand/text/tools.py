"""The tools of a request: what they are, what a template sees of them, and how a call is forced.

Owns: the rules on tools and on the choice among them; the grammars of calls; the conversation's
form for a template that has no words for tools.
May not know: how an answer is read (`tool_calls.py`), wire formats.
Read next: `grammars.py`, `tool_calls.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from firsthand.checks import shown
from firsthand.errors import InvalidRequest
from firsthand.request import Grammar, GrammarKind
from firsthand.text.grammars import ANY_OBJECT, JSON_SPACE, json_text
from firsthand.text.tool_calls import BEGIN_CALL, END_CALL, ToolFormat
from firsthand.text.xml_calls import call_rules, written_call
from firsthand.values import dataclass

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

Mode = Literal["auto", "required", "none"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the caller has. `parameters` is a schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool
    given: Mapping[str, Any]  # as the caller wrote it, for the template


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a model may call in one answer. `parallel`: more than once."""

    tools: tuple[Tool, ...]
    mode: Mode
    parallel: bool
    format: ToolFormat

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {tool.name: tool.parameters for tool in self.tools}


def read_tools(given: object, field: str = "tools") -> tuple[Tool, ...]:
    """OpenAI's list of tools. Raises InvalidRequest, naming the place."""
    if not isinstance(given, list | tuple) or not 0 < len(given) <= MAX_TOOLS:
        raise InvalidRequest(field, f"must be a list of 1 to {MAX_TOOLS} tools")
    tools = tuple(_read_tool(one, f"{field}[{i}]") for i, one in enumerate(given))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"{field}[{index}].function.name", f"{name!r} is there twice")
    return tools


def chosen_tools(
    tools: tuple[Tool, ...], choice: object, field: str = "tool_choice"
) -> tuple[tuple[Tool, ...], Mode]:
    """The tools that may be called, and whether one must be. Raises InvalidRequest."""
    if choice is None or choice == "auto":
        return tools, "auto"
    if choice == "required":
        return tools, "required"
    if choice == "none":
        return (), "none"
    named = choice.get("function") if isinstance(choice, Mapping) else None
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest(field, "must be auto, required, none, or a function by its name")
    found = tuple(tool for tool in tools if tool.name == name)
    if not found:
        raise InvalidRequest(f"{field}.function.name", f"there is no tool {shown(name)}")
    return found, "required"


def tool_grammar(use: ToolUse, field: str = "tools") -> Grammar | None:
    """The language of answers that keep what was asked; None where every text does: nothing has to
    be called, calls may be many, and no tool is strict."""
    if use.mode == "none" or not use.tools:
        return None
    strict = any(tool.strict for tool in use.tools)
    if use.mode == "auto" and use.parallel and not strict:
        return None
    return Grammar(GrammarKind.LARK, _rules(use, field, use.mode == "required"), field=field)


def answer_grammar(use: ToolUse, asked: Grammar, field: str = "tools") -> Grammar:
    """Calls of tools, or an answer of the JSON that was `asked` for. Where a call is required there
    is no other answer."""
    calls = _rules(use, field, must=True)
    if use.mode == "required":
        return Grammar(GrammarKind.LARK, calls, field=field)
    form = json_text(_spaced(json.loads(asked.text)), asked.field)
    calls = calls.replace("start:", "calls:", 1)
    text = f"start: calls | form\nform: %json {form}\n{calls}"
    return Grammar(GrammarKind.LARK, text, field=asked.field)


def _rules(use: ToolUse, field: str, must: bool) -> str:
    """Lark rules of an answer, which `must` begin with a call or may be any text."""
    rules = _tagged_rules(use, must) if use.format.is_tagged else _llama3_rules(use, must)
    if use.format is ToolFormat.QWEN3_CODER:
        functions = [(tool.name, _schema(tool, use.mode)) for tool in use.tools]
        return rules + call_rules(functions, field)
    key = "arguments" if use.format is ToolFormat.HERMES else "parameters"
    call = _spaced({"anyOf": [_call_schema(tool, key, use.mode) for tool in use.tools]})
    return f"{rules}call: %json {json_text(call, field)}\n"


def _spaced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema within rules says itself how much white space its JSON may have."""
    return {**schema, "x-guidance": {"whitespace_pattern": JSON_SPACE}}


def _tagged_rules(use: ToolUse, must: bool) -> str:
    whole = f"{json.dumps(BEGIN_CALL)} NL? call NL? {json.dumps(END_CALL)}"
    tail = 'NL: "\\n"\nTEXT: /(?s:.*)/\n'
    if must:
        return f"start: {whole}{' (NL? ' + whole + ')*' if use.parallel else ''}\n{tail}"
    head = f"head[suffix={json.dumps(BEGIN_CALL)}]: /(?s:.*)/\n"
    block = f"head NL? call NL? {json.dumps(END_CALL)}"
    start = f"({block})* TEXT" if use.parallel else f"TEXT | {block}"
    return f"start: {start}\n{head}{tail}"


def _llama3_rules(use: ToolUse, must: bool) -> str:
    calls = 'call (";" " "? call)*' if use.parallel else "call"
    if must:
        return f"start: {calls}\n"
    return f"start: TEXT | {calls}\nTEXT: /([^{{\\s](?s:.*))?/\n"


def _call_schema(tool: Tool, key: str, mode: Mode) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: _schema(tool, mode)},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _schema(tool: Tool, mode: Mode) -> Mapping[str, Any]:
    """Of the arguments, as far as they are held to it."""
    return tool.parameters if tool.strict or mode == "required" else ANY_OBJECT


def plain_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with the arguments of past calls as values: callers send them as JSON in a
    text, templates write them out. Raises InvalidRequest where they are no JSON object."""
    return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], format: ToolFormat
) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: they, past calls and their results are
    told in words, in the form of `format`."""
    told = [_told_message(message, format) for message in messages]
    if tools:
        text = _description(tools, format)
        if told and told[0].get("role") == "system":
            told[0] = {**told[0], "content": f"{told[0]['content']}\n\n{text}"}
        else:
            told.insert(0, {"role": "system", "content": text})
    return told


def _description(tools: Sequence[Tool], format: ToolFormat) -> str:
    listed = "\n".join(json_text(tool.given, "tools") for tool in tools)
    match format:
        case ToolFormat.HERMES:
            form = f'{BEGIN_CALL}\n{{"name": NAME, "arguments": OBJECT}}\n{END_CALL}'
        case ToolFormat.LLAMA3:
            form = '{"name": NAME, "parameters": OBJECT}'
        case ToolFormat.QWEN3_CODER:
            form = f"{BEGIN_CALL}\n{written_call('NAME', {'PARAMETER': 'VALUE'})}\n{END_CALL}"
    return (
        f"You can call these functions:\n{listed}\n"
        f"To call one, answer in exactly this form, its name and its arguments"
        f"{'' if format is ToolFormat.QWEN3_CODER else ' as JSON'}:\n{form}"
    )


def _told_message(message: Mapping[str, Any], format: ToolFormat) -> dict[str, Any]:
    if message.get("role") == "tool":
        text = f"<tool_response>\n{message.get('content')}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    said = [message["content"]] if message.get("content") else []
    said += [_told_call(call["function"], format) for call in calls]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(said)}


def _told_call(function: Mapping[str, Any], format: ToolFormat) -> str:
    if format is ToolFormat.QWEN3_CODER:
        call = written_call(function["name"], function["arguments"])
    else:
        key = "arguments" if format is ToolFormat.HERMES else "parameters"
        call = json_text({"name": function["name"], key: function["arguments"]}, "messages")
    return f"{BEGIN_CALL}\n{call}\n{END_CALL}" if format.is_tagged else call


def _plain_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    plain = [_plain_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return {**message, "tool_calls": plain}


def _plain_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise InvalidRequest(f"{where}.function.arguments", "is no JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


def _read_tool(given: object, where: str) -> Tool:
    if not isinstance(given, Mapping) or given.get("type") != "function":
        raise InvalidRequest(f"{where}.type", "must be function")
    function = given.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where}.function", "must be an object with a name")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}.function.name", "must be 1 to 64 letters, digits, '_', '-' or '.'"
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(f"{where}.function.parameters", "a schema is a JSON object")
    return Tool(name, parameters or ANY_OBJECT, function.get("strict") is True, given)
