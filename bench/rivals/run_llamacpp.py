"""llama.cpp as a library: one `llama_decode` a step, by the bindings' lowest layer.

Owns: nothing but the translation. May not know: the other engines.
Read next: `protocol.py`, what is asked.

    python run_llamacpp.py MODEL.gguf
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import llama_cpp as llama
import numpy as np
from protocol import THREADS, Prompts, nll_of_rows, serve

UBATCH = 512  # the default of llama.cpp's own programs
CONTEXT_STEP = 256


class LlamaCpp:
    def __init__(self, path: str) -> None:
        self._silent = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self._silent, ctypes.c_void_p(0))
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        self._model = llama.llama_model_load_from_file(path.encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        self.vocabulary = llama.llama_model_get_vocab(self._model)
        self._vocab_size = llama.llama_vocab_n_tokens(self.vocabulary)
        self._sizes = (0, 0)
        self._context: Any = None
        self._batch: Any = None

    def prepare(self, num_prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        """A context of exactly these sizes, kept for as long as they stay the same."""
        sizes = (num_prompts, -(-(prompt_tokens + new_tokens) // CONTEXT_STEP) * CONTEXT_STEP)
        if sizes != self._sizes:
            if self._context:
                llama.llama_batch_free(self._batch)
                llama.llama_free(self._context)
            parameters = llama.llama_context_default_params()
            parameters.n_ctx = sizes[0] * sizes[1]
            parameters.n_batch = max(UBATCH, parameters.n_ctx)
            parameters.n_ubatch = UBATCH
            parameters.n_seq_max = num_prompts
            parameters.n_threads = parameters.n_threads_batch = THREADS
            self._context = llama.llama_init_from_model(self._model, parameters)
            if not self._context:
                raise ValueError(f"llama.cpp makes no context for {sizes}")
            self._batch = llama.llama_batch_init(parameters.n_batch, 0, 1)
            self._sizes = sizes
        llama.llama_memory_clear(llama.llama_get_memory(self._context), False)

    def generate(
        self, prompts: Prompts, new_tokens: int, on_first: Callable[[], None]
    ) -> Sequence[Sequence[int]]:
        self._decode(
            (token, position, sequence, position == len(ids) - 1)
            for sequence, ids in enumerate(prompts)
            for position, token in enumerate(ids)
        )
        ends = np.cumsum([len(ids) for ids in prompts]) - 1
        outputs: list[list[int]] = [[] for _ in prompts]
        while True:
            for output, row in zip(outputs, ends, strict=True):
                output.append(int(self._logits(int(row)).argmax()))
            done = len(outputs[0])
            if done == 1:
                on_first()
            if done == new_tokens:
                return outputs
            self._decode(
                (output[-1], len(ids) + done - 1, sequence, True)
                for sequence, (ids, output) in enumerate(zip(prompts, outputs, strict=True))
            )
            ends = np.arange(len(prompts))

    def score(self, window: Sequence[int], start: int) -> float:
        self.prepare(1, len(window), 0)
        last = len(window) - 1
        self._decode((token, at, 0, start - 1 <= at < last) for at, token in enumerate(window))
        return nll_of_rows((self._logits(at) for at in range(start - 1, last)), window[start:])

    def _decode(self, rows: Iterable[tuple[int, int, int, bool]]) -> None:
        """Rows of (token id, position, sequence, whether its logits are wanted)."""
        batch, count = self._batch, 0
        for token, position, sequence, wanted in rows:
            batch.token[count] = token
            batch.pos[count] = position
            batch.n_seq_id[count] = 1
            batch.seq_id[count][0] = sequence
            batch.logits[count] = wanted
            count += 1
        batch.n_tokens = count
        status = llama.llama_decode(self._context, batch)
        if status != 0:
            raise ValueError(f"llama_decode gives {status}")

    def _logits(self, row: int) -> Any:
        pointer = llama.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self._vocab_size,))


if __name__ == "__main__":
    serve(lambda: LlamaCpp(sys.argv[1]))
