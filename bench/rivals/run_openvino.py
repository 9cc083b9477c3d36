"""OpenVINO GenAI, with its paged attention and continuous batching.

Owns: nothing but the translation. May not know: the other engines.
Read next: `protocol.py`, what is asked.

    python run_openvino.py FOLDER

A text is scored by OpenVINO itself, with the same file. The precision of the arithmetic is left to
it: float32, or bfloat16 on a CPU that has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from protocol import THREADS, Prompts, nll_of_rows, serve

PROPERTIES = {"INFERENCE_NUM_THREADS": THREADS}
CACHE_GB = 2
MAX_STEP_TOKENS = 2048
MAX_SEQUENCES = 64


class OpenVino:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._pipeline: Any = None
        self._scorer: Any = None
        self._num_requests = 0

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        if self._pipeline is None:
            scheduler = genai.SchedulerConfig()
            scheduler.cache_size = CACHE_GB
            scheduler.enable_prefix_caching = False
            scheduler.max_num_batched_tokens = MAX_STEP_TOKENS
            scheduler.max_num_seqs = MAX_SEQUENCES
            self._pipeline = genai.ContinuousBatchingPipeline(
                str(self._folder), scheduler, "CPU", PROPERTIES
            )

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        handles = []
        for ids in prompts:
            tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, tensor, config))
            self._num_requests += 1
        outputs: list[list[int]] = [[] for _ in prompts]
        first = True
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for output, handle in zip(outputs, handles, strict=True):
                while handle.can_read():
                    for part in handle.read().values():
                        output += part.generated_ids
            if first and all(outputs):
                first = False
                on_first()
        return outputs

    def score(self, window: Sequence[int], start: int) -> float:
        if self._scorer is None:
            model = openvino.Core().compile_model(
                self._folder / "openvino_model.xml", "CPU", PROPERTIES
            )
            self._scorer = model.create_infer_request()
        self._scorer.reset_state()
        count = len(window)
        values = {
            "input_ids": np.array([window], dtype=np.int64),
            "attention_mask": np.ones((1, count), dtype=np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        names = {name for port in self._scorer.model_inputs for name in port.names}
        result = self._scorer.infer({name: values[name] for name in values if name in names})
        logits = result["logits"]
        return nll_of_rows(logits[0, start - 1 : -1], window[start:])


if __name__ == "__main__":
    serve(lambda: OpenVino(sys.argv[1]))
