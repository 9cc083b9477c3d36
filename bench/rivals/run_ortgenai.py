"""ONNX Runtime GenAI. A text is scored by ONNX Runtime itself, with the same file.

Owns: nothing but the translation. May not know: the other engines.
Read next: `protocol.py`, what is asked.

    python run_ortgenai.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
from protocol import THREADS, Prompts, nll_of_rows, serve


class OrtGenAI:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        threads = {"intra_op_num_threads": THREADS, "inter_op_num_threads": 1}
        config = genai.Config(folder)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self._model = genai.Model(config)
        self._session: Any = None

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        pass

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        count, length = len(prompts), len(prompts[0])
        total = length + new_tokens
        parameters = genai.GeneratorParams(self._model)
        parameters.set_search_options(
            do_sample=False, max_length=total, min_length=total, batch_size=count
        )
        generator = genai.Generator(self._model, parameters)
        token_ids = np.array(prompts, dtype=np.int32)
        generator.append_tokens(token_ids if count > 1 else token_ids[0])
        for step in range(new_tokens):
            generator.generate_next_token()
            if step == 0:
                on_first()
        return [generator.get_sequence(index)[length:] for index in range(count)]

    def score(self, window: Sequence[int], start: int) -> float:
        if self._session is None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = THREADS
            self._session = onnxruntime.InferenceSession(self._folder / "model.onnx", options)
        (logits,) = self._session.run(["logits"], self._inputs(window))
        return nll_of_rows(logits[0, start - 1 : -1], window[start:])

    def _inputs(self, window: Sequence[int]) -> dict[str, Any]:
        """The window, and an empty past of every layer."""
        count = len(window)
        values: dict[str, Any] = {
            "input_ids": np.array([window], dtype=np.int64),
            "attention_mask": np.ones((1, count), dtype=np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
        }
        config = json.loads((self._folder / "genai_config.json").read_text(encoding="utf-8"))
        decoder = config["model"]["decoder"]
        past = np.zeros((1, decoder["num_key_value_heads"], 0, decoder["head_size"]), np.float32)
        return {node.name: values.get(node.name, past) for node in self._session.get_inputs()}


if __name__ == "__main__":
    serve(lambda: OrtGenAI(sys.argv[1]))
