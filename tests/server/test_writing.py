"""The words of OpenAI's API."""

from __future__ import annotations

from firsthand.request import FinishReason
from firsthand.server.writing import openai_reason


def test_each_reason_has_its_openai_word() -> None:
    long = {reason for reason in FinishReason if openai_reason(reason) == "length"}
    assert long == {FinishReason.LENGTH, FinishReason.CONTEXT}
    assert {openai_reason(reason) for reason in FinishReason} == {"stop", "length"}
