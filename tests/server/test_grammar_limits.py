"""Grammars that meet a limit of the engine: at once, or in the middle of a text.

Owns: proof that they are the caller's fault, by the name of their field, and never ours.
Read next: `test_structured.py`, `tests/engine/test_grammar.py`.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import Live

pytestmark = pytest.mark.native

DOUBLES = "".join(f"a{at}: a{at + 1} a{at + 1}\n" for at in range(40)) + 'a40: "x"\n'
PROPERTIES = {f"property_{at}": {"type": "integer"} for at in range(500)}


def ask(live: Live, **more: Any) -> httpx.Response:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, **more}
    return httpx.post(f"{live.running.url}/v1/chat/completions", json=asked, timeout=60)


def schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}


def test_an_object_of_many_properties_is_answered(live: Live) -> None:
    found = ask(live, response_format=schema({"type": "object", "properties": PROPERTIES}))
    assert found.status_code == 200
    assert found.json()["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_a_regex_of_many_repetitions_is_answered_or_refused_by_name(live: Live) -> None:
    found = ask(live, structured_outputs={"regex": "(.{0,5000}){0,5000}x"})
    assert found.status_code in (200, 400)
    assert found.status_code == 200 or found.json()["error"]["param"] == "structured_outputs.regex"


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_that_the_first_bytes_meet_is_told_before_anything_runs(
    live: Live, stream: bool
) -> None:
    grammar = "start: a0\n" + DOUBLES
    found = ask(live, structured_outputs={"grammar": grammar}, stream=stream)
    error = found.json()["error"]
    assert found.status_code == 400 and error["param"] == "structured_outputs.grammar"
    assert "limit 50000" in error["message"] and "<" not in error["message"]


def test_too_many_states_after_the_first_token_are_the_callers_too(live: Live) -> None:
    choices = ["<|im_end|>", "a" * 100_000]
    found = ask(live, structured_outputs={"choice": choices})
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, "structured_outputs.choice")
    assert "too many states" in error["message"]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_in_the_middle_of_a_text_is_the_callers_too(
    live: Live, stream: bool, n: int
) -> None:
    grammar = "start: BEGIN a0\nBEGIN: /[ab]{25}/\n" + DOUBLES
    found = ask(live, structured_outputs={"grammar": grammar}, stream=stream, n=n)
    assert found.status_code == (200 if stream else 400)
    text = found.text
    if stream:
        lines = [line for line in text.split("\n\n") if line]
        assert '"content":"' in text and "[DONE]" not in text
        text = lines[-1].removeprefix("data: ")
    error = json.loads(text)["error"]
    assert (error["type"], error["param"]) == (
        "invalid_request_error",
        "structured_outputs.grammar",
    )
    assert "met a limit" in error["message"] and "limit 50000" in error["message"]
