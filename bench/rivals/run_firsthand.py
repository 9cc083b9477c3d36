"""Ours, through its Python API, as any user would call it.

Owns: nothing but the translation. May not know: the rivals.
Read next: `protocol.py`, what is asked.

    python run_firsthand.py MODEL FORMAT          FORMAT: auto, int8, int4 or none
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from protocol import THREADS, Prompts, serve

SEQUENCES = 16


class Firsthand:
    def __init__(self, model: str, weights: str) -> None:
        self._model = model
        self._options: dict[str, Any] = {"quantization": weights, "threads": THREADS}
        self._llm: Any = None
        self._scored: Any = None

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        if self._llm is None:
            from firsthand import LLM

            self._llm = LLM(self._model, max_sequences=SEQUENCES, **self._options)

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        options = {"max_tokens": new_tokens, "temperature": 0, "ignore_end": True}
        if len(prompts) > 1:
            return [done.token_ids for done in self._llm.generate(list(prompts), **options)]
        token_ids: list[int] = []
        for chunk in self._llm.stream(prompts[0], **options):
            if chunk.token_ids and not token_ids:
                on_first()
            token_ids += chunk.token_ids
        return [token_ids]

    def score(self, window: Sequence[int], start: int) -> float:
        from firsthand.evaluate.perplexity import load_for_scoring, score
        from firsthand.generation.load_options import LoadOptions

        if self._scored is None:
            self._scored = load_for_scoring(self._model, LoadOptions(**self._options))
        loaded = self._scored
        nlls = score(loaded.executor, loaded.store, window, loaded.max_logit_rows)
        return math.fsum(nlls[start - 1 :])  # nothing scores the first token


if __name__ == "__main__":
    serve(lambda: Firsthand(*sys.argv[1:]))
