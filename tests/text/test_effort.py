"""Which switch of a chat template a caller's effort turns."""

from __future__ import annotations

from typing import Any

import pytest

from firsthand.text.effort import EFFORTS, effort_variables

QWEN = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
GPT_OSS = "{{- 'Reasoning: ' + reasoning_effort }}{% if m.thinking %}{{ m.thinking }}{% endif %}"
DEEPSEEK = "{%- if not thinking is defined %}{% set thinking = false %}{% endif %}"
BOTH = "{%- if enable_thinking %}{{ reasoning_effort }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "effort", "found"),
    [
        (QWEN, "none", {"enable_thinking": False}),
        (QWEN, "minimal", {"enable_thinking": True}),
        (DEEPSEEK, "high", {"thinking": True}),
        (GPT_OSS, "high", {"reasoning_effort": "high"}),
        (BOTH, "none", {"enable_thinking": False, "reasoning_effort": "none"}),
        ("Think: thinking, enable_thinking {{ messages }}", "low", {}),  # words, no variables
        ("{{ 'enable_thinking' }}{{ message['thinking'] }}{{ rethinking }}", "low", {}),
        ("{% " * 3, "low", {}),
        (None, "low", {}),
    ],
)
def test_a_template_is_told_in_its_own_words(
    template: str | None, effort: Any, found: dict[str, object]
) -> None:
    assert effort_variables(template, effort) == found


def test_the_efforts_are_those_of_the_official_client() -> None:
    openai = pytest.importorskip("openai.types.shared.reasoning_effort")
    assert all(f"'{one}'" in str(openai.ReasoningEffort) for one in EFFORTS)
    assert str(openai.ReasoningEffort).count("'") == 2 * len(EFFORTS)
