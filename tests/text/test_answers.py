"""Answers read out of a text as it comes: reasoning, calls of tools, and what only looks like them.

Owns: the check of `text/answers.py`, `reasoning.py`, `tool_calls.py` and `call_scanner.py`.
May not know: tokens, requests. Read next: `test_tools.py`.
"""

from __future__ import annotations

import json
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from firsthand.text.answers import Answer, AnswerForm, AnswerReader, Call, read_answer
from firsthand.text.reasoning import partial, reasoning_of
from firsthand.text.tool_calls import FORMAT_NAMES, CallDelta, ToolFormat, format_of

NAMES = frozenset(("f", "g", "get_weather"))
HERMES = AnswerForm("may", ToolFormat.HERMES, NAMES)
LLAMA = AnswerForm("none", ToolFormat.LLAMA3, NAMES)
THINKS = AnswerForm("open")
TYPES = {"n": {"type": "number"}, "s": {"type": "string"}, "b": {"type": ["boolean", "null"]}}
CODER = AnswerForm("none", ToolFormat.QWEN3_CODER, NAMES, {"f": {"properties": TYPES}})

F = '{"name": "f", "arguments": {"x": "a } \\" <b> é", "y": [1, {"z": null}]}}'
G = '{"arguments": {"q": 1 }, "name": "g"}'
F_CALL = Call("f", '{"x": "a } \\" <b> é", "y": [1, {"z": null}]}')
G_CALL = Call("g", '{"q": 1 }')
IN_TEXT = '{"name": "f", "arguments": "{\\"a\\": 1}"}'
NOBODY = '{"name": "nobody", "arguments": {}}'
THOUGHT = f"<think>\nhm {F}\n</think>\n\n"


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def answer(
    content: str = "", *calls: Call, reasoning: str = "", chars: int = 0, cut: bool = False
) -> Answer:
    return Answer(reasoning, content, calls, chars, ends_with_calls=bool(calls) and not cut)


def tags(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in parameters)
    return f"<function={name}>\n{inner}</function>"


CASES: list[tuple[AnswerForm, str, Answer]] = [
    # Qwen3-Coder
    (CODER, "Hello <function=f>", answer("Hello <function=f>")),
    (CODER, block(tags("f")), answer("", Call("f", "{}"))),
    (
        CODER,
        f"Sure.\n{block(tags('f', ('n', '1.5'), ('s', '1.5'), ('b', 'True')))}",
        answer("Sure.", Call("f", '{"n": 1.5, "s": "1.5", "b": true}')),
    ),
    (
        CODER,
        block(tags("f", ("s", "two\n\nlines <b>"))) + "\n" + block(tags("g", ("x", "é"))),
        answer("", Call("f", '{"s": "two\\n\\nlines <b>"}'), Call("g", '{"x": "é"}')),
    ),
    (CODER, block(tags("f", ("n", "many"))), answer("", Call("f", '{"n": "many"}'))),
    (CODER, f"<tool_call>{tags('f', ('b', 'null'))}", answer("", Call("f", '{"b": null}'))),
    (CODER, block(tags("nobody")), answer(block(tags("nobody")))),
    (CODER, block("text"), answer(block("text"))),
    (CODER, "<tool_call>\n<function=f>\n<par", answer("", Call("f", ""), cut=True)),
    # Hermes and Qwen
    (HERMES, "Hello!", answer("Hello!")),
    (HERMES, "  Hello \n", answer("  Hello \n")),
    (HERMES, block(F), answer("", F_CALL)),
    (HERMES, f"Sure.\n\n{block(F)}\n{block(G)}\n", answer("Sure.", F_CALL, G_CALL)),
    (HERMES, f"One {block(F)} two {block(G)}", answer("One\ntwo", F_CALL, G_CALL)),
    (HERMES, f"<tool_call>{F}</tool_call>", answer("", F_CALL)),
    (HERMES, f"<tool_call>{F}", answer("", F_CALL)),
    (HERMES, f"<tool_call>{F} and </tool", answer("", F_CALL)),
    (HERMES, block('{"name": "f"}'), answer("", Call("f", "{}"))),
    (HERMES, block('{"name": "f", "arguments": null}'), answer("", Call("f", "{}"))),
    (HERMES, block('{"name": "f", "arguments": {}}'), answer("", Call("f", "{}"))),
    (
        HERMES,
        block('{"name": "f", "arguments": "{\\"a\\": 1}"}'),
        answer("", Call("f", '{"a": 1}')),
    ),
    (HERMES, block('{"id": {"name": "g"}, "name": "f"}'), answer("", Call("f", "{}"))),
    (HERMES, block('{"\\"name": "g", "name": "f"}'), answer("", Call("f", "{}"))),
    # cut by a limit: as far as it came
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "b',
        answer("", Call("f", '{"a": "b'), cut=True),
    ),
    (HERMES, f'{block(F)}<tool_call>{{"name": "g"', answer("", F_CALL)),
    (
        HERMES,
        f'{block(F)}<tool_call>{{"name": "g", "arguments": {{',
        answer("", F_CALL, Call("g", "{"), cut=True),
    ),
    # cut before its name: its beginning is nothing that a reader has a use for
    (HERMES, '<tool_call>{"name": "f"', answer("")),
    (HERMES, "Sure.\n<tool_call>", answer("Sure.\n")),
    (HERMES, "a <tool_c", answer("a ")),
    (HERMES, "a <to", answer("a <to")),
    (HERMES, "a <", answer("a <")),
    (CODER, "a <tool_call>\n<function=f", answer("a ")),
    (LLAMA, '{"name": "f"', answer("")),
    (LLAMA, '<|python_tag|>{"na', answer("")),
    (LLAMA, '{"name": "Bob", "age', answer('{"name": "Bob", "age')),
    (LLAMA, '{"na', answer('{"na')),
    # no calls
    (HERMES, block("nothing"), answer(block("nothing"))),
    (
        HERMES,
        block('{"name": "nobody", "arguments": {}}'),
        answer(block('{"name": "nobody", "arguments": {}}')),
    ),
    (HERMES, block("[1]") + block(F), answer(block("[1]"), F_CALL)),
    (HERMES, F, answer(F)),
    (HERMES, "a < b <tool> </tool_call>", answer("a < b <tool> </tool_call>")),
    # reasoning before them
    (
        HERMES,
        f"<think>\nhm {F}\n</think>\n\n{block(F)}",
        answer("", F_CALL, reasoning=f"hm {F}", chars=len(F) + 20),
    ),
    (HERMES, "<think>a</think>b", answer("b", reasoning="a", chars=16)),
    (
        HERMES,
        "\n<think> a < b </thin </think> b ",
        answer("b ", reasoning="a < b </thin", chars=30),
    ),
    (HERMES, "<think></think>\n\n", answer("", chars=15)),
    (HERMES, "<think>never ends", answer(reasoning="never ends", chars=17)),
    (HERMES, "<thin", answer("<thin")),
    (HERMES, "b <think>a</think>", answer("b <think>a</think>")),
    (THINKS, "a\n</think>\n\nb </think>", answer("b </think>", reasoning="a", chars=10)),
    (THINKS, "\n a", answer(reasoning="a", chars=3)),
    (AnswerForm(), "<think>a</think>" + block(F), answer("<think>a</think>" + block(F))),
    # Llama 3
    (LLAMA, "Hello {", answer("Hello {")),
    (LLAMA, '{"name": "f", "parameters": {"x": 1}}', answer("", Call("f", '{"x": 1}'))),
    (LLAMA, f" <|python_tag|> {F}", answer("", F_CALL)),
    (LLAMA, f"{F}; {G};{F}\n", answer("", F_CALL, G_CALL, F_CALL)),
    (LLAMA, f"{F} {G}", answer("", F_CALL, G_CALL)),
    (LLAMA, f"{F}; ", answer("", F_CALL)),
    (LLAMA, f"{F} Done.", answer("Done.", F_CALL)),
    (LLAMA, '{"name": "Bob", "age": 7} is JSON', answer('{"name": "Bob", "age": 7} is JSON')),
    (LLAMA, '{"a": 1, ', answer('{"a": 1, ')),
    (LLAMA, "<|python", answer("")),
    (LLAMA, "<|p", answer("<|p")),
    (LLAMA, "  ", answer("  ")),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_a_whole_text(form: AnswerForm, text: str, expected: Answer) -> None:
    assert read_answer(text, form) == expected


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_however_it_is_cut(form: AnswerForm, text: str, expected: Answer) -> None:
    """At every character, at every two that are three apart, and character by character."""
    for first in range(len(text) + 1):
        for second in (first, first + 3):
            pieces = (text[:first], text[first:second], text[second:])
            assert pieced(form, pieces) == expected, pieces
    assert pieced(form, text) == expected


def pieced(form: AnswerForm, pieces: tuple[str, ...] | str) -> Answer:
    reader = AnswerReader(form)
    for piece in pieces:
        reader.add(piece)
    reader.finish()
    return reader.answer


PARTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", F, G, "{", "}", '"', "; ", " ", "\n"]
PARTS += ["text", "é", "<|python_tag|>", '{"name": "f", ', '"arguments": ', "\\", "<", ","]


@hypothesis.given(st.lists(st.sampled_from(PARTS), max_size=8), st.integers(0, 2**32))
@hypothesis.settings(deadline=None, max_examples=300)
def test_no_text_is_lost_or_read_in_two_ways(parts: list[str], seed: int) -> None:
    text, rng = "".join(parts), random.Random(seed)
    for form in (HERMES, LLAMA, THINKS, AnswerForm("open", ToolFormat.HERMES, NAMES)):
        whole = read_answer(text, form)
        cuts = sorted(rng.choices(range(len(text) + 1), k=4))
        edges = zip([0, *cuts], [*cuts, len(text)], strict=True)
        assert pieced(form, tuple(text[a:b] for a, b in edges)) == whole
        assert whole.num_reasoning_chars <= len(text)
        if not whole.calls and form.reasoning == "none":
            assert text.startswith(whole.content)
            rest = text[len(whole.content) :].lstrip()
            assert not rest or rest.startswith(("<|python", '{"name": "f'))  # a call, cut


def test_arguments_come_as_they_are_written() -> None:
    """STRUCT-4, STRUCT-5: a name once, in the call's first piece; arguments always a text."""
    reader = AnswerReader(HERMES)
    deltas: list[CallDelta] = []
    for char in block(F) + block(G):
        deltas += reader.add(char).calls
    deltas += reader.finish().calls
    assert [d.number for d in deltas if d.name is not None] == [0, 1]
    assert next(d for d in deltas).name == "f"
    joined = ["".join(d.arguments for d in deltas if d.number == number) for number in (0, 1)]
    assert [json.loads(text) for text in joined] == [
        {"x": 'a } " <b> é', "y": [1, {"z": None}]},
        {"q": 1},
    ]
    of_first = [d for d in deltas if d.number == 0]
    assert len(of_first) > 20, "they were held back"


def test_partial() -> None:
    assert [partial(text, "<tool>") for text in ("", "a", "a<", "<to", "<tool>", "<<t")] == [
        0, 0, 1, 3, 0, 2,
    ]  # fmt: skip


def test_what_a_template_tells() -> None:
    qwen = "{%- if tools %}<tool_call>{{ tools | tojson }}</tool_call>{%- endif %}</think>"
    llama = '{%- if tools %}{"name": …, "parameters": …} Environment: ipython {%- endif %}'
    assert format_of(qwen) is ToolFormat.HERMES
    assert format_of(llama) is ToolFormat.LLAMA3
    assert format_of("{{ messages }}") is None
    assert format_of("{{ tools }} <tool_call><function=x>") is None, "another form of calls"
    assert format_of("{{ tools }}<tool_call><function=x><parameter=y>") is ToolFormat.QWEN3_CODER
    assert format_of(None) is None
    assert reasoning_of(qwen, "user: hi\nassistant: ") == "may"
    assert reasoning_of(qwen, "assistant: <think>\n") == "open"
    assert reasoning_of(qwen, "assistant: <think>\n\n</think>\n\n") == "none"
    assert reasoning_of("{{ messages }}", "<think>") == "none"
    assert set(FORMAT_NAMES.values()) == set(ToolFormat)
