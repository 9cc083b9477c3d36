"""CTranslate2.

Owns: nothing but the translation. May not know: the other engines.
Read next: `protocol.py`, what is asked.

    python run_ctranslate2.py FOLDER COMPUTE_TYPE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
from protocol import THREADS, Prompts, serve


class CTranslate2:
    def __init__(self, folder: str, compute_type: str) -> None:
        self._generator = ctranslate2.Generator(
            folder,
            device="cpu",
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=THREADS,
        )
        # It takes tokens by their names, which the converter wrote in the order of their ids.
        self._names = json.loads((Path(folder) / "vocabulary.json").read_text(encoding="utf-8"))

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        pass

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        heard: list[bool] = []

        def on_step(step: Any) -> bool:
            if not heard:
                heard.append(True)
                on_first()
            return False

        results = self._generator.generate_batch(
            [self._named(ids) for ids in prompts],
            max_length=new_tokens,
            min_length=new_tokens,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=on_step,
        )
        return [result.sequences_ids[0] for result in results]

    def score(self, window: Sequence[int], start: int) -> float:
        (result,) = self._generator.score_batch([self._named(window)])
        if len(result.log_probs) != len(window) - 1:
            raise ValueError(f"{len(result.log_probs)} scores for {len(window)} tokens")
        return -sum(result.log_probs[start - 1 :])

    def _named(self, token_ids: Sequence[int]) -> list[str]:
        return [self._names[token_id] for token_id in token_ids]


if __name__ == "__main__":
    serve(lambda: CTranslate2(*sys.argv[1:]))
