"""Tools: what is taken, what a template gets, and that the grammars of calls say what is read.

Owns: the check of `text/tools.py`, with `text/tool_calls.py` as the judge of its grammars.
May not know: models, requests. Read next: `test_answers.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from firsthand.engine import grammar_worker
from firsthand.engine.grammar_worker import ByteVocabulary, compiled
from firsthand.errors import InvalidRequest
from firsthand.request import Grammar
from firsthand.text.answers import AnswerForm, read_answer
from firsthand.text.grammars import JSON_SPACE, of_response_format, with_reasoning
from firsthand.text.tool_calls import ToolFormat
from firsthand.text.tools import (
    ToolUse,
    answer_grammar,
    chosen_tools,
    plain_arguments,
    read_tools,
    tool_grammar,
    tools_as_text,
)
from firsthand.text.xml_calls import written_call

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PING: dict[str, Any] = {"type": "function", "function": {"name": "ping"}}
TOOLS = read_tools([WEATHER, PING])
TOKENS = LLTokenizer(ByteVocabulary(), eos_token=256)  # type: ignore[arg-type]
GOOD, PONG, BAD = '{"city": "Oslo"}', '{"any": 1}', '{"town": "Oslo"}'


def call(format: ToolFormat, name: str, arguments: str) -> str:
    if format is ToolFormat.QWEN3_CODER:
        return f"<tool_call>\n{written_call(name, json.loads(arguments))}\n</tool_call>"
    if format is ToolFormat.HERMES:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def is_of(use: ToolUse, text: str) -> bool | None:
    """Whether the whole text is of the grammar. None: its beginning is, and more must come."""
    grammar = tool_grammar(use)
    assert grammar is not None
    return accepts(grammar, text)


def accepts(grammar: Grammar, text: str) -> bool | None:
    matcher: LLMatcher = compiled(TOKENS, grammar).deep_copy()
    data = list(text.encode())
    if matcher.try_consume_tokens(data) < len(data):
        return False
    return True if matcher.is_accepting() else None


@pytest.mark.parametrize("format", list(ToolFormat))
def test_what_is_required_is_a_call_with_right_arguments(format: ToolFormat) -> None:
    use = ToolUse(TOOLS, "required", True, format)
    weather, pong = call(format, "get_weather", GOOD), call(format, "ping", PONG)
    between = "\n" if format.is_tagged else "; "
    for text in (weather, pong, weather + between + pong):
        assert is_of(use, text) is True, text
        answer = read_answer(text, AnswerForm("none", format, use.names))
        assert answer.content == "" and 1 <= len(answer.calls) <= 2
        assert json.loads(answer.calls[0].arguments)
    assert is_of(use, "Hello") is False
    assert is_of(use, call(format, "get_weather", BAD)) is False
    assert is_of(use, call(format, "nobody", "{}")) is False
    assert is_of(use, weather[:-4]) is None
    assert is_of(replace(use, parallel=False), weather + between + pong) is False


@pytest.mark.parametrize("format", list(ToolFormat))
def test_a_named_tool_is_the_only_one(format: ToolFormat) -> None:
    tools, mode = chosen_tools(TOOLS, {"type": "function", "function": {"name": "ping"}})
    use = ToolUse(tools, mode, True, format)
    assert is_of(use, call(format, "ping", "{}")) is True
    assert is_of(use, call(format, "get_weather", GOOD)) is False


@pytest.mark.parametrize("format", list(ToolFormat))
def test_strict_tools_are_kept_also_where_text_is_free(format: ToolFormat) -> None:
    strict = read_tools([{**WEATHER, "function": {**WEATHER["function"], "strict": True}}, PING])
    use = ToolUse(strict, "auto", True, format)
    assert is_of(use, "Hello, <b> or whatever.") is True
    assert is_of(use, call(format, "get_weather", GOOD)) is True
    assert is_of(use, call(format, "get_weather", BAD)) is False
    assert is_of(use, call(format, "ping", BAD)) is True
    assert is_of(use, "") is True
    once = replace(use, parallel=False)
    assert is_of(once, "Hello") is True
    assert is_of(once, call(format, "ping", "{}")) is True
    again = call(format, "ping", "{}") + call(format, "ping", "{}")
    assert is_of(once, again) is False


@pytest.mark.parametrize("format", [ToolFormat.HERMES, ToolFormat.LLAMA3])
def test_white_space_in_a_call_has_an_end(format: ToolFormat) -> None:
    use = ToolUse(TOOLS, "required", True, format)
    for space, right in (("  ", True), ("\n    ", True), ("\n\n", False), ("\n\t\n", False)):
        assert is_of(use, call(format, "ping", f"{{{space}}}")) is right, repr(space)
    assert JSON_SPACE == grammar_worker.JSON_SPACE


def test_tags_hold_values_to_their_types() -> None:
    """A text as it is, everything else as JSON, in the order of the schema."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city", "days"],
    }
    function = {"name": "f", "parameters": schema}
    use = ToolUse(
        read_tools([{"type": "function", "function": function}]),
        "required",
        True,
        ToolFormat.QWEN3_CODER,
    )
    for arguments, right in (
        ({"city": "Oslo\n</b> <x>", "days": 3}, True),
        ({"city": "Oslo", "unit": "C", "days": 3, "tags": ["a", "b"]}, True),
        ({"city": "Oslo", "unit": "K", "days": 3}, False),
        ({"city": "Oslo", "days": "three"}, False),
        ({"city": "Oslo"}, False),
    ):
        text = call(ToolFormat.QWEN3_CODER, "f", json.dumps(arguments))
        assert is_of(use, text) is right, arguments
        (found,) = read_answer(text, AnswerForm("none", use.format, use.names, use.schemas)).calls
        assert json.loads(found.arguments) == arguments


def test_nothing_to_keep_is_no_grammar() -> None:
    assert tool_grammar(ToolUse(TOOLS, "auto", True, ToolFormat.HERMES)) is None
    assert tool_grammar(ToolUse((), "none", True, ToolFormat.HERMES)) is None


@pytest.mark.parametrize("format", list(ToolFormat))
def test_beside_tools_an_answer_may_be_asked_to_be_json(format: ToolFormat) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    asked = of_response_format(
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert asked is not None
    use = ToolUse(TOOLS, "auto", True, format)
    grammar = answer_grammar(use, asked)
    calls = call(format, "get_weather", GOOD)
    for text, right in (('{"sum": 3}', True), (calls, True), ("Hello", False), ('{"a": 1}', False)):
        assert accepts(grammar, text) is right, text
    form = AnswerForm("none", format, use.names, use.schemas)
    assert read_answer('{"sum": 3}', form).content == '{"sum": 3}'
    assert len(read_answer(calls, form).calls) == 1
    must = answer_grammar(replace(use, mode="required"), asked)
    assert (accepts(must, calls), accepts(must, '{"sum": 3}')) == (True, False)


def test_a_model_may_reason_before_a_call_that_is_required() -> None:
    grammar = tool_grammar(ToolUse(TOOLS, "required", True, ToolFormat.HERMES))
    assert grammar is not None
    text = call(ToolFormat.HERMES, "ping", "{}")
    for reasoning, before, right in (
        ("may", "", True),
        ("may", "<think>\nhm </b>\n</think>\n\n", True),
        ("open", "hm\n</think>\n", True),
        ("open", "", False),
        ("none", "<think>hm</think>", False),
    ):
        matcher = compiled(TOKENS, with_reasoning(grammar, reasoning)).deep_copy()  # type: ignore[arg-type]
        data = list((before + text).encode())
        found = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
        assert found is right, (reasoning, before)


def test_tools_that_are_none_are_named() -> None:
    wrong: list[tuple[Any, str]] = [
        ([], "tools"),
        ({}, "tools"),
        ([{"type": "search"}], "tools[0].type"),
        ([PING, {"type": "function"}], "tools[1].function"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a\n"}}], "tools[0].function.name"),
        ([PING, PING], "tools[1].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": "x"}}],
            "tools[0].function.parameters",
        ),
    ]
    for given, field in wrong:
        with pytest.raises(InvalidRequest) as refused:
            read_tools(given)
        assert refused.value.field == field
    for choice in ("any", {"type": "function"}, {"function": {"name": 1}}, 1):
        with pytest.raises(InvalidRequest, match="tool_choice"):
            chosen_tools(TOOLS, choice)
    with pytest.raises(InvalidRequest, match="no tool 'nobody'"):
        chosen_tools(TOOLS, {"function": {"name": "nobody"}})
    assert chosen_tools(TOOLS, "none") == ((), "none")
    assert chosen_tools(TOOLS, None) == (TOOLS, "auto")


def past_call(arguments: object) -> list[dict[str, Any]]:
    function = {"name": "ping", "arguments": arguments}
    made = {"id": "call_1", "type": "function", "function": function}
    return [{"role": "assistant", "content": "Now:", "tool_calls": [made]}]


def test_past_arguments_become_values() -> None:
    (told,) = plain_arguments(past_call('{"a": [1]}'))
    assert told["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert plain_arguments(past_call(""))[0]["tool_calls"][0]["function"]["arguments"] == {}
    for broken in ("{", "[1]", '"a"', "[" * 100_000):
        with pytest.raises(InvalidRequest) as refused:
            plain_arguments(past_call(broken))
        assert refused.value.field == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize("format", list(ToolFormat))
def test_a_template_without_tools_is_told_in_words(format: ToolFormat) -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        *plain_arguments(past_call('{"a": 1}')),
        {"role": "tool", "tool_call_id": "call_1", "content": "pong"},
    ]
    system, said, result = tools_as_text(conversation, TOOLS, format)
    assert system["content"].startswith("Be brief.") and '"get_weather"' in system["content"]
    assert result["role"] == "user" and "pong" in result["content"]
    assert "tool_calls" not in said
    read = read_answer(
        said["content"].removeprefix("Now:\n"), AnswerForm("none", format, frozenset(("ping",)))
    )
    assert [one.name for one in read.calls] == ["ping"]
    first = tools_as_text([{"role": "user", "content": "hi"}], TOOLS, format)[0]
    assert first["role"] == "system"
