"""The reference executor: weights as plain floats, operators as plain torch, on CPU or CUDA.

Owns: the decoded weights, and the order check, run, hand back.
May not know: the engine, scheduling, files, any one architecture.
Read next: `ops.py`.

It promises the formula to a stated error, not equal bits: that is the native executor's promise.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from firsthand.checks import check_choice
from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Held, ModelProgram, OpTime
from firsthand.compute.torch.attention import ATTENTIONS, AttentionName
from firsthand.compute.torch.ops import TorchOps, rotation
from firsthand.compute.torch.trace import TracedOps
from firsthand.errors import EngineError, InvalidRequest
from firsthand.kvcache.store import KVStore
from firsthand.quant.formats import WeightSource, decode, row_blocks

DTypeName = Literal["float32", "float64"]


class TorchExecutor:
    """`Executor` in plain torch. `attention` picks one of three ways to the same values.

    float64 is there for tests that need an answer better than float32. The logits have the
    chosen type. Raises InvalidRequest when an option is unknown or CUDA is not there.
    """

    def __init__(
        self,
        device: str = "cpu",
        attention: AttentionName = "fast",
        dtype: DTypeName = "float32",
    ) -> None:
        check_choice("attention", attention, get_args(AttentionName))
        check_choice("dtype", dtype, get_args(DTypeName))
        self._device = _device(device)
        self._attention = ATTENTIONS[attention]
        self._dtype = torch.float32 if dtype == "float32" else torch.float64
        self._weights: dict[str, torch.Tensor] = {}
        self._program: ModelProgram | None = None
        self._max_tokens = 0
        self._max_logit_rows = 0

    @property
    def name(self) -> str:
        return "torch"

    def load_weight(self, source: WeightSource) -> None:
        n, k = source.shape
        values = torch.empty((n, k), dtype=self._dtype, device=self._device)
        for start, stop in row_blocks(n, k):
            block = decode(source.rows(start, stop))
            values[start:stop] = torch.tensor(block, dtype=self._dtype)
        source.release()
        self._weights[source.name] = values

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self._weights[name] = torch.tensor(values, dtype=self._dtype, device=self._device)

    def alias(self, name: str, target: str) -> None:
        self._weights[name] = self._weights[target]

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        self._program = program
        self._max_tokens = max_tokens
        self._max_logit_rows = max_logit_rows

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        with torch.inference_mode():
            program = self._checked_program(batch)
            return _to_numpy(program.forward(self._ops(program, batch, store)))

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        with torch.inference_mode():
            program = self._checked_program(batch)
            traced = TracedOps(
                self._ops(program, batch, store), batch, store, self._weights, self._device
            )
            logits = _to_numpy(program.forward(traced))
            return logits, traced.times

    def memory(self) -> Held:
        held = {id(tensor): tensor.nbytes for tensor in self._weights.values()}
        return Held(weights_bytes=sum(held.values()), scratch_bytes=0)

    def _ops(self, program: ModelProgram, batch: FlatBatch, store: KVStore) -> TorchOps:
        turn = rotation(
            batch.positions,
            program.inverse_frequencies,
            program.attention_factor,
            self._dtype,
            self._device,
        )
        return TorchOps(batch, store, self._weights, turn, self._attention)

    def _checked_program(self, batch: FlatBatch) -> ModelProgram:
        """A wrong index would read another sequence's memory, and on CUDA end the process."""
        program = self._program
        if program is None:
            raise EngineError("the executor was run before it was prepared")
        if batch.num_tokens > self._max_tokens:
            raise EngineError(f"{batch.num_tokens} tokens in a step; at most {self._max_tokens}")
        if len(batch.logit_rows) > self._max_logit_rows:
            raise EngineError(f"{len(batch.logit_rows)} rows; at most {self._max_logit_rows}")
        _check_range("token id", batch.token_ids, program.vocab_size)
        _check_range("position", batch.positions, program.context_length)
        return program


def _device(name: str) -> torch.device:
    check_choice("device", name, ("cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device", "'cuda' was asked for, but torch finds no CUDA device")
    return torch.device(name)


def _check_range(what: str, values: NDArray[np.int32], limit: int) -> None:
    if values.size and not (values.min() >= 0 and values.max() < limit):
        raise EngineError(f"{what} outside 0 … {limit - 1} in a step")


def _to_numpy(logits: torch.Tensor) -> NDArray[Any]:
    return np.asarray(logits.cpu().numpy())
