"""The golden transcript: what the real model says, to the bit, checked in.

Tokens and logprobs must be equal on every machine and instruction set. A change of the numerics
that is meant is written anew with FIRSTHAND_TEST_UPDATE_GOLDEN=1, and seen in the diff.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firsthand import LLM
from firsthand.generation.completion import Completion

pytestmark = [pytest.mark.native, pytest.mark.model]

GOLDEN = Path(__file__).parent / "golden" / "smollm2-135m.json"

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "The capital of France is", "max_tokens": 32, "temperature": 0},
    "greedy, a list": {"prompt": "Three colours:\n1.", "max_tokens": 24, "temperature": 0},
    "code": {"prompt": "def fibonacci(n):\n", "max_tokens": 40, "temperature": 0},
    "Chinese": {"prompt": "春天来了，", "max_tokens": 32, "temperature": 0},
    "seeded": {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.8, "seed": 42},
    "filtered": {
        "prompt": "The best way to learn is",
        "max_tokens": 40,
        "temperature": 1.0,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "seed": 7,
    },
    "stop string": {"prompt": "1, 2, 3, 4,", "max_tokens": 40, "temperature": 0, "stop": "9"},
    "chat": {
        "messages": [{"role": "user", "content": "What is the tallest mountain? One word."}],
        "max_tokens": 24,
        "temperature": 0,
    },
}


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, max_context=1024) as model:
        yield model


def answer(llm: LLM, case: dict[str, Any]) -> Completion:
    options = {name: value for name, value in case.items() if name not in ("prompt", "messages")}
    completion: Completion
    if "messages" in case:
        completion = llm.chat(case["messages"], logprobs=1, **options)
    else:
        completion = llm.generate(case["prompt"], logprobs=1, **options)
    return completion


def transcript(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "finish_reason": str(completion.finish_reason),
        "token_ids": list(completion.token_ids),
        "logprobs": [entry.logprob.hex() for entry in completion.logprobs or ()],
    }


@pytest.mark.parametrize("name", CASES)
def test_the_transcript_is_reproduced(llm: LLM, name: str) -> None:
    got = transcript(answer(llm, CASES[name]))
    if os.environ.get("FIRSTHAND_TEST_UPDATE_GOLDEN") == "1":
        known = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
        known[name] = got
        GOLDEN.write_text(json.dumps(known, ensure_ascii=False, indent=1) + "\n", "utf-8")
    want = json.loads(GOLDEN.read_text("utf-8"))[name]
    assert got["text"] == want["text"]
    assert got == want
