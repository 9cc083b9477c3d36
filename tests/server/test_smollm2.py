"""A real model through the whole server: text that makes sense, and equal bits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firsthand.generation import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from firsthand.text.tool_calls import ToolFormat
from tests.server.conftest import Live, live_server
from tests.server.processes import started

pytestmark = [pytest.mark.native, pytest.mark.model]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Live]:
    options = ServiceOptions(smollm2_path, LoadOptions(max_context=1024), name="smollm2")
    with live_server(options, tool_format=ToolFormat.HERMES) as server:
        yield server


def test_it_answers(smollm2: Live) -> None:
    answer = smollm2.client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")


def test_alone_and_together_and_in_process(smollm2: Live, smollm2_path: Path) -> None:
    """The promise of equal bits, through HTTP: sampled, six at once, streamed or not."""
    prompts = [f"Count to {number}:" for number in range(6)]

    def streamed(prompt: str) -> str:
        parts = smollm2.client.completions.create(
            model="smollm2", prompt=prompt, max_tokens=12, seed=3, stream=True
        )
        return "".join(part.choices[0].text for part in parts)

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(streamed, prompts))
    with LLM(smollm2_path, max_context=1024) as llm:
        alone = [llm.generate(prompt, max_tokens=12, seed=3).text for prompt in prompts]
    assert together == alone


def test_stop_2_4_text_that_was_held_back_comes(smollm2: Live) -> None:
    asked = {"model": "smollm2", "prompt": "The capital of France is", "temperature": 0}
    free = smollm2.client.completions.create(**asked, max_tokens=8)
    held = free.choices[0].text[-2:] + "~"  # begins as the text ends, and never comes
    parts = smollm2.client.completions.create(**asked, max_tokens=8, stop=[held], stream=True)
    assert "".join(part.choices[0].text for part in parts) == free.choices[0].text


def test_it_calls_a_tool_that_is_required(smollm2: Live) -> None:
    """Its template knows no tools, so the house says the format (see `smollm2`)."""
    weather = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city now",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 30}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    answer = smollm2.client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "How is the weather in Paris?"}],
        tools=[weather],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
        temperature=0,
    )
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert "Paris" in json.loads(call.function.arguments)["city"]


@pytest.mark.slow
def test_a_packed_form_that_cannot_be_kept_is_one_line(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    variables = {"FIRSTHAND_HOME": str(tmp_path / "file"), "FIRSTHAND_PACK_CACHE": "1"}
    with started(tmp_path, smollm2_path, **variables) as server:
        server.wait_ready(60)
        until = time.monotonic() + 60
        while not (found := [one for one in server.events() if "be kept" in str(one["message"])]):
            assert time.monotonic() < until, server.log.read_text()
            time.sleep(0.1)
    (line,) = found
    assert (line["level"], "Not a directory" in str(line["message"])) == ("warning", True), line
