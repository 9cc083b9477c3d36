"""Texts of a language: random weights write valid JSON; masks keep the promise of equal bits.

Owns: structured output through the façade and the service, with the micro model; one test with the
real one. May not know: how a mask is made. Read next: `tests/engine/test_grammar.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.errors import InvalidRequest
from firsthand.generation import LLM, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.generation.options import Options
from firsthand.generation.service import Service, ServiceOptions
from firsthand.request import Grammar, GrammarKind

pytestmark = pytest.mark.native

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
NUMBER = {"regex": "-?[1-9][0-9]{1,6}"}


@pytest.fixture(scope="module")
def llm(micro_folder: Path) -> Iterator[LLM]:
    with LLM(micro_folder, max_context=256, threads=2) as opened:
        yield opened


def is_person(text: str) -> bool:
    value = json.loads(text)
    rest = set(value) - {"name", "age", "tags"}
    assert len(value["name"]) <= 12 and 0 <= value["age"] <= 150 and not rest
    assert type(value["age"]) is int
    return set(value.get("tags", [])) <= {"a", "b", "é"} and len(value.get("tags", [])) <= 3


def test_random_weights_write_what_the_schema_says(llm: LLM) -> None:
    ended = 0
    for seed in range(12):
        done = llm.generate("x", seed=seed, max_tokens=200, response_format=AS_PERSON)
        if done.finish_reason == "end_token":
            assert is_person(done.text)
            ended += 1
        else:
            assert done.finish_reason == "length"
    assert ended >= 6


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_each_form_is_kept(llm: LLM, temperature: float) -> None:
    how: dict[str, Any] = {"seed": 1, "max_tokens": 64, "temperature": temperature}
    assert re.fullmatch(NUMBER["regex"], llm.generate("x", grammar=NUMBER, **how).text)
    words = {"choice": ["yes", "no", "a \"quoted\" \\ 'one'", "多字节\n"]}
    assert llm.generate("x", grammar=words, **how).text in words["choice"]
    lark = {"grammar": 'start: "a" /[0-9]/ ("," /[0-9]/)?'}
    assert re.fullmatch("a[0-9](,[0-9])?", llm.generate("x", grammar=lark, **how).text)
    gbnf = {"grammar": 'root ::= "a" digit\ndigit ::= [0-9]'}
    assert re.fullmatch("a[0-9]", llm.generate("x", grammar=gbnf, **how).text)
    schema = {"json": {"type": "boolean"}}
    assert llm.generate("x", grammar=schema, **how).text in ("true", "false")
    assert llm.generate("x", response_format={"type": "text"}, **how).text != ""


def test_struct_2_an_empty_schema_is_a_json_object(llm: LLM) -> None:
    prefers_digits = {ord(digit): 20.0 for digit in "0123456789"}
    asked = {"type": "json_schema", "json_schema": {"name": "any", "schema": {}}}
    done = llm.generate(
        "x", response_format=asked, max_tokens=80, logit_bias=prefers_digits, seed=1
    )
    assert done.text.startswith("{")
    assert done.finish_reason == "length" or isinstance(json.loads(done.text), dict)


def test_struct_3_a_cut_text_is_left_as_it_is(llm: LLM) -> None:
    done = llm.generate("x", response_format=AS_PERSON, max_tokens=5, seed=1)
    assert (done.finish_reason, len(done.token_ids)) == ("length", 5)
    assert done.text == bytes(done.token_ids).decode() and not done.text.endswith("}")


def answers(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(one.text, one.token_ids, one.finish, one.logprobs) for one in completions]


def test_masked_and_free_together_give_the_bits_of_each_alone(llm: LLM) -> None:
    """Batched = alone, and n > 1 = each of its seeds alone, with masks beside free rows."""
    asked: list[dict[str, Any]] = [
        {"seed": 1, "response_format": AS_PERSON, "logprobs": 2},
        {"seed": 2},
        {"seed": 3, "grammar": NUMBER, "top_p": 0.9, "repetition_penalty": 1.3},
        {"seed": 4, "response_format": {"type": "json_object"}, "top_k": 5},
        {"seed": 5, "logprobs": 1},
    ]
    alone = [llm.stream(f"prompt {i}", n=1, **how).completions() for i, how in enumerate(asked)]
    streams = [llm.stream(f"prompt {i}", n=3, **how) for i, how in enumerate(asked)]
    for first, stream, how in zip(alone, streams, asked, strict=True):
        together = stream.completions()
        assert answers(together)[:1] == answers(first)
        for index in (1, 2):
            again = how.copy()
            again["seed"] = how["seed"] + index
            prompt = f"prompt {asked.index(how)}"
            one = llm.stream(prompt, n=1, **again).completions()
            assert answers(one) == answers(together[index : index + 1])


def test_an_evicted_sequence_goes_on_where_it_was(micro_folder: Path) -> None:
    how: dict[str, Any] = {"seed": 3, "grammar": {"regex": "([a-z]{2,9} ){100}"}, "max_tokens": 200}
    with LLM(micro_folder, max_context=256, threads=1, max_sequences=8) as roomy:
        wanted = roomy.stream("hello", n=6, **how).completions()
    preempted: list[int] = []
    loaded = load_model(micro_folder, LoadOptions(max_context=256, threads=1, max_sequences=8))
    small = replace(loaded, budget=replace(loaded.budget, num_blocks=40))

    def note(facts: StepFacts) -> None:
        preempted.append(facts.planned.num_preempted)

    with LLM(small) as llm, llm.listening(note):
        found = llm.stream("hello", n=6, **how).completions()
    assert sum(preempted) > 0
    assert answers(found) == answers(wanted)


def test_what_is_wrong_is_named(llm: LLM) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}},
            "response_format.json_schema.name",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": ""},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"grammar": {"json": {"properties": {"a": "text"}}}}, "grammar.json"),
        ({"grammar": {"json": float("nan")}}, "grammar.json"),
        ({"grammar": {"json": {"minimum": float("inf")}}}, "grammar.json"),
        ({"grammar": {"regex": "("}}, "grammar.regex"),
        ({"grammar": {"regex": ""}}, "grammar.regex"),
        ({"grammar": {"choice": "yes"}}, "grammar.choice"),
        ({"grammar": {"choice": [""]}}, "grammar.choice"),
        ({"grammar": {"json_object": False}}, "grammar.json_object"),
        ({"grammar": {"regex": "a", "choice": ["a"]}}, "grammar"),
        ({"grammar": {"guided": "a"}}, "grammar.guided"),
        ({"grammar": {"regex": None}}, "grammar"),
        ({"grammar": NUMBER, "response_format": AS_PERSON}, "grammar"),
        ({"grammar": NUMBER, "ignore_end": True}, "ignore_end"),
        ({"grammar": NUMBER, "min_tokens": 2}, "min_tokens"),
    ]
    for options, field in wrong:
        with pytest.raises(InvalidRequest) as refused:
            llm.generate("x", **options)
        assert refused.value.field == field, options
    assert llm.generate("x", grammar=NUMBER).finish_reason == "end_token"


def test_a_grammar_of_ones_own(llm: LLM) -> None:
    grammar = Grammar(GrammarKind.REGEX, "ab|cd")
    assert llm.generate("x", grammar=grammar).text in ("ab", "cd")


def test_through_the_service(micro_folder: Path) -> None:
    async def work() -> list[Completion]:
        options = ServiceOptions(micro_folder, LoadOptions(max_context=256, threads=1))
        async with await Service.start(options) as service:
            await service.wait_ready()
            prompt = await service.tokenize("x")
            grammar = Grammar(GrammarKind.REGEX, NUMBER["regex"])
            await service.check_grammar(grammar)
            with pytest.raises(InvalidRequest) as refused:
                await service.check_grammar(Grammar(GrammarKind.REGEX, "(", field="regex"))
            assert refused.value.field == "regex"
            streams = [service.submit(prompt, {"grammar": grammar, "seed": i}, n=2) for i in (1, 5)]
            free = service.submit(prompt, {"max_tokens": 30})
            found = [one for stream in streams for one in await stream.completions()]
            assert (await free.completions())[0].usage.completion_tokens > 0
            # Nobody asked before: the request ends, and the next one is served.
            unchecked: Options = {"grammar": Grammar(GrammarKind.REGEX, "("), "max_tokens": 4}
            lost = await service.submit(prompt, unchecked, n=2).completions()
            assert [one.finish_reason for one in lost] == ["error", "error"]
            waiting = service.submit(prompt, {"grammar": Grammar(GrammarKind.REGEX, "a{5}b")})
            waiting.close()
            again = service.submit(prompt, {"grammar": Grammar(GrammarKind.REGEX, "a{5}b")})
            assert (await again.completions())[0].text == "aaaaab"
        return found

    for one in asyncio.run(work()):
        assert re.fullmatch(NUMBER["regex"], one.text)


@pytest.mark.model
def test_the_real_model_fills_in_a_schema(smollm2_path: Path) -> None:
    asked = {
        "type": "json_schema",
        "json_schema": {
            "name": "capital",
            "schema": {
                "type": "object",
                "properties": {
                    "country": {"enum": ["France", "Spain", "Italy"]},
                    "capital": {"enum": ["Rome", "Madrid", "Paris"]},
                },
                "required": ["country", "capital"],
                "additionalProperties": False,
            },
        },
    }
    with LLM(smollm2_path, max_context=512) as llm:
        question = [{"role": "user", "content": "What is the capital of France? Answer in JSON."}]
        done = llm.chat(question, temperature=0, max_tokens=80, response_format=asked)
        assert json.loads(done.text) == {"country": "France", "capital": "Paris"}
        assert done.finish_reason == "end_token"
