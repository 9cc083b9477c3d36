"""transformers on PyTorch, in float32: what a user has without any engine, and the quality of
unrounded weights.

Owns: nothing but the translation. May not know: the other engines.
Read next: `protocol.py`, what is asked.

    python run_transformers.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from protocol import THREADS, Prompts, nll_of_rows, serve
from transformers import AutoModelForCausalLM, GenerationConfig


class Transformers:
    def __init__(self, folder: str) -> None:
        torch.set_num_threads(THREADS)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.generation_config = GenerationConfig(
            do_sample=False, eos_token_id=None, pad_token_id=0
        )
        self._model = model.eval()

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        pass

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        heard: list[bool] = []

        def on_step(token_ids: Any, scores: Any, **_: Any) -> Any:
            if not heard:
                heard.append(True)
                on_first()
            return torch.zeros(len(token_ids), dtype=torch.bool)

        token_ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = self._model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                max_new_tokens=new_tokens,
                stopping_criteria=[on_step],
            )
        return [list(row) for row in output[:, token_ids.shape[1] :].tolist()]

    def score(self, window: Sequence[int], start: int) -> float:
        with torch.inference_mode():
            logits = self._model(torch.tensor([window])).logits[0]
        return nll_of_rows(logits[start - 1 : -1].numpy(), window[start:])


if __name__ == "__main__":
    serve(lambda: Transformers(sys.argv[1]))
