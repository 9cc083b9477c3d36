"""The vocabulary of operators in which a model file is written.

Owns: the contract of each operator: shapes, formula, source.
May not know: how or where anything runs. `X` is whatever an executor passes around: a torch
tensor, or a `Value` of a plan that is being recorded.
Read next: `torch/ops.py` (each formula, run at once), `plan.py` (recorded), `models/llama.py`
(a model written in it).

The batch is not an argument: an `Ops` object is made for one batch (torch) or stands for every
batch (the recorder), so a model file reads as the paper does. Weights are named; the executor
holds the values, because what a weight is (float, int8, grouped) is its own business.
Shapes follow the legend in `batch.py`. All activations are float32.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

X = TypeVar("X")


class Ops(Protocol[X]):
    """Every method gives a new value; only `store` has an effect outside its result."""

    def embed(self, table: str) -> X:
        """(T, M): row `token_ids[t]` of the table (V, M), decoded to float32."""

    def norm(self, x: X, gain: str, eps: float) -> X:
        """x · gain / sqrt(mean(x²) + eps), per row. RMSNorm, arXiv 1910.07467, equation 4."""

    def linear(self, x: X, weight: str, bias: str | None = None) -> X:
        """(T, N) = x (T, K) · weightᵀ (N, K) + bias (N,). Integer formats round the row first."""

    def rope(self, x: X, num_heads: int) -> X:
        """Rotate each head's pairs (i, i + D/2) by position · frequency[i], and scale by the
        attention factor. x is (T, num_heads · D). arXiv 2104.09864, section 3.4."""

    def store(self, layer: int, k: X, v: X) -> None:
        """Write k and v (T, G · D) into the store at the rows' slots, rounded to its type."""

    def attend(self, layer: int, q: X, num_heads: int, num_kv_heads: int) -> X:
        """(T, H · D): softmax(q · kᵀ / sqrt(D)) · v over positions 0…own of the own sequence.

        Keys and values are read back from the store, also those of this step. Head h reads
        key/value head h // (H / G). arXiv 1706.03762, equation 1; arXiv 2305.13245 for groups.
        """

    def activation(self, gate: X, up: X, kind: str) -> X:
        """act(gate) · up, elementwise; kind is `silu` (x · sigmoid(x)) or `gelu_tanh`."""

    def add(self, x: X, y: X) -> X:
        """x + y, elementwise: the residual."""

    def head(self, x: X, weight: str) -> X:
        """(L, V) = rows `logit_rows` of x · weightᵀ: logits only where they are wanted."""
