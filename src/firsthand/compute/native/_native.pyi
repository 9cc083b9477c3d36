from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

def isa(forced: str = "") -> str: ...
def rotation(
    positions: NDArray[np.int32],
    frequencies: Sequence[float],
    factor: float,
    cosine: Floats,
    sine: Floats,
    isa: str = "",
) -> None: ...

class PackedWeight:
    def __init__(
        self,
        kind: str,
        n: int,
        k: int,
        group: int = 0,
        half_scales: bool = False,
        has_minimum: bool = False,
        zero: int = 0,
        stored: NDArray[np.uint8] | None = None,
    ) -> None: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def stored_bytes(self) -> int: ...
    @property
    def stored_scales_at(self) -> int: ...
    def parts(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]: ...
    def fill_float(self, row0: int, values: NDArray[Any]) -> None: ...
    def fill_channel(self, row0: int, codes: NDArray[np.int8], scales: Floats) -> None: ...
    def fill_grouped(
        self,
        row0: int,
        codes: NDArray[Any],
        scales: NDArray[Any],
        minima: NDArray[Any] | None,
    ) -> None: ...
    def decode_rows(self, rows: NDArray[np.int32], out: Floats, isa: str = "") -> None: ...

class Threads:
    def __init__(self, count: int) -> None: ...
    @property
    def count(self) -> int: ...

class Plan:
    def __init__(
        self,
        max_tokens: int,
        max_logit_rows: int,
        vocab: int,
        num_positions: int,
        tables: Sequence[tuple[Sequence[float], float]],
        threads: Threads,
        isa: str = "",
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    def add_buffer(self, offset: int, width: int) -> int: ...
    def embed(self, table: PackedWeight, out: int, scale: float = 1.0) -> None: ...
    def norm(self, x: int, gain: Floats, eps: float, out: int, num_heads: int = 1) -> None: ...
    def linear(
        self,
        x: int,
        weights: Sequence[PackedWeight],
        biases: Sequence[Floats | None],
        outs: Sequence[int],
        residual: int = -1,
        gain: Floats | None = None,
        eps: float = 0.0,
        gated: str = "",
        logits: bool = False,
        cap: float = 0.0,
    ) -> None: ...
    def rope(self, x: int, num_heads: int, out: int, table: int = 0) -> None: ...
    def store(self, layer: int, k: int, v: int, rotate: bool = False, table: int = 0) -> None: ...
    def attend(
        self,
        layer: int,
        q: int,
        out: int,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        cap: float = 0.0,
        window: int = 0,
        rotate: bool = False,
        table: int = 0,
    ) -> None: ...
    def route(
        self, logits: int, out: int, top_k: int, renormalise: bool, shared: int = -1
    ) -> None: ...
    def experts(
        self,
        x: int,
        weights: int,
        out: int,
        gates: Sequence[PackedWeight],
        ups: Sequence[PackedWeight],
        downs: Sequence[PackedWeight],
        kind: str,
    ) -> None: ...
    def activation(self, gate: int, up: int, out: int, kind: str) -> None: ...
    def add(self, x: int, y: int, out: int) -> None: ...
    def receive(self, out: int) -> None: ...
    def send(self, x: int) -> None: ...
    def finish(self) -> None: ...
    def bind_store(
        self,
        layers: Sequence[
            tuple[
                NDArray[Any],
                NDArray[Any],
                NDArray[np.float32] | None,
                NDArray[np.float32] | None,
            ]
        ],
        tiles: bool,
    ) -> None: ...
    def run(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        block_starts: NDArray[np.int64],
        block_size: int,
        logit_rows: NDArray[np.int32],
        trace: bool = False,
        adapters: NDArray[np.int32] | None = None,
        received: Floats | None = None,
        sent: Floats | None = None,
    ) -> tuple[Floats, list[float]]: ...
    def add_adapter(self, parts: Sequence[tuple[int, int, PackedWeight, PackedWeight]]) -> int: ...
    @property
    def hidden_width(self) -> int: ...
    def logits(self, rows: NDArray[np.int32]) -> Floats: ...
    def hidden(self, rows: NDArray[np.int32], out: Floats) -> None: ...

# The sampler (bind_sampler.cpp). `numbers` is (temperature, top_k, top_p, min_p,
# repetition_penalty, presence_penalty, frequency_penalty); a row of logits is (V,). `isa` forces an
# instruction set; the bits are the same.
class SampleSettings:
    def __init__(
        self,
        numbers: tuple[float, int, float, float, float, float, float],
        logit_bias: tuple[tuple[int, float], ...],
        num_logprobs: int,
    ) -> None: ...

class SampleMemory:
    """Working memory of `sample_rows`, for one call at a time."""

    def __init__(self) -> None: ...

def sample_rows(
    logits: Floats,
    settings: list[SampleSettings],
    seeds: list[int],
    positions: list[int],
    histories: dict[int, tuple[Sequence[int], int]],
    token_ids: NDArray[np.int32],
    memory: SampleMemory,
    threads: Threads | None = None,
    isa: str = "",
    masks: NDArray[np.uint32] | None = None,
    masked_rows: list[int] = ...,
) -> dict[int, tuple[float | None, tuple[tuple[int, float], ...], str | None]]: ...
def token_logprob(logits: Floats, token_id: int) -> float: ...
def row_masses(
    logits: Floats,
    numbers: tuple[float, int, float, float, float, float, float],
    logit_bias: tuple[tuple[int, float], ...],
    history: tuple[int, ...],
    num_prompt_tokens: int,
    isa: str = "",
) -> list[int]: ...
def drawn(masses: Sequence[int], bits: int) -> int: ...
def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
def random_bits(seed: int, position: int) -> int: ...
def exp_nonpositive(x: float) -> float: ...
def natural_log(x: float) -> float: ...

# The machine's limits (bind_limits.cpp): bare loops as (isa, name, "int8" or "fp32"); rates in 10⁹
# multiply-accumulates (int8), operations (fp32) or bytes per second.
def limit_loops() -> list[tuple[str, str, str]]: ...
def loop_rate(index: int, threads: Threads, ms: float) -> float: ...
def read_rate(num_bytes: int, threads: Threads, ms: float) -> float: ...

Ranges = Sequence[tuple[int, int]]

def swap(
    plan: Plan,
    map: NDArray[np.uint8],
    file: int,
    shards: Sequence[tuple[int, int, Ranges, Ranges]],
) -> None: ...
def swapped(plan: Plan) -> tuple[int, float]: ...
