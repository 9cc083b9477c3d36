"""The requests by which a pipeline is compared with one process.

Owns: what is asked, and what counts as the answer: tokens and log-probabilities.
May not know: who answers. Read next: `test_pipeline.py`.
"""

from __future__ import annotations

from typing import Any

from firsthand.generation.llm import LLM

PROMPTS = [
    "One after another, rows go from stage to stage; here is a prompt of some length.",
    "A short one",
    "One after another, rows go from stage to stage; here is a prompt of another end.",
    "x",
]


def answers_of(llm: LLM, max_tokens: int = 12) -> list[Any]:
    """Greedy, all at once; drawn, one after another; and a prompt that the cache knows."""
    greedy = llm.generate(PROMPTS, max_tokens=max_tokens, temperature=0.0, logprobs=2)
    drawn = [
        llm.generate(text, max_tokens=max_tokens, temperature=1.3, seed=7, logprobs=1)
        for text in PROMPTS[:2]
    ]
    again = llm.generate(PROMPTS[0] + " And on.", max_tokens=3, temperature=0.0, logprobs=2)
    return [(one.token_ids, one.logprobs) for one in (*greedy, *drawn, again)]
