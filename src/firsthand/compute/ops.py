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

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from firsthand.values import dataclass

X = TypeVar("X")

ADAPTED: Final = ("linear", "head", "experts")  # operators whose weights an adapter may change


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How scores are made and what a row sees, where it is not softmax(q · kᵀ / sqrt(D)) of all.

    `scale` stands for 1 / sqrt(D). With `cap` a score s becomes cap · tanh(s / cap), before the
    mask (arXiv 2408.00118, section 2). With `window` a row sees so many positions, its own the last
    (arXiv 2310.06825, section 2).
    """

    scale: float | None = None
    cap: float | None = None
    window: int | None = None

    def scale_of(self, head_size: int) -> float:
        return float(head_size**-0.5) if self.scale is None else self.scale

    def __str__(self) -> str:
        named = (("scale", self.scale), ("cap", self.cap), ("window", self.window))
        return ", ".join(f"{name} {value:g}" for name, value in named if value is not None)


PLAIN_ATTENTION = AttentionRule()


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """How many experts a row has; `renormalise`: their weights are divided by their sum."""

    top_k: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The names of one expert's matrices: (F, M), (F, M), (M, F)."""

    gate: str
    up: str
    down: str


class Ops(Protocol[X]):
    """Every method gives a new value; only `store` has an effect outside its result."""

    def embed(self, table: str, scale: float = 1.0) -> X:
        """(T, M): row `token_ids[t]` of the table (V, M), decoded to float32, times `scale`."""

    def norm(self, x: X, gain: str, eps: float, num_heads: int = 1) -> X:
        """x · gain / sqrt(mean(x²) + eps), per row, or per head of it with one gain (D,) for all.
        RMSNorm, arXiv 1910.07467, equation 4."""

    def linear(self, x: X, weight: str, bias: str | None = None) -> X:
        """(T, N) = x (T, K) · weightᵀ (N, K) + bias (N,). Integer formats round the row first.

        A row whose sequence has an adapter with factors a (r, K) and b (N, r) of this weight gets
        + x · aᵀ · bᵀ besides, from the row before it is rounded; their scale is in b. So does one
        of `head`, and of each matrix of an expert that the row chose. A row without skips the
        addition. arXiv 2106.09685, section 4.1."""

    def rope(self, x: X, num_heads: int, table: int = 0) -> X:
        """Rotate each head's pairs (i, i + D/2) by position · frequency[i], and scale by the
        attention factor. x is (T, num_heads · D); `table` is which of the model's frequencies.
        arXiv 2104.09864, section 3.4."""

    def store(self, layer: int, k: X, v: X) -> None:
        """Write k and v (T, G · D) into the store at the rows' slots, rounded to its type."""

    def attend(
        self,
        layer: int,
        q: X,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> X:
        """(T, H · D): softmax(q · kᵀ / sqrt(D)) · v over positions 0…own of the own sequence, but
        for what `rule` says.

        Keys and values are read back from the store, also those of this step. Head h reads
        key/value head h // (H / G). arXiv 1706.03762, equation 1; arXiv 2305.13245 for groups.
        """

    def activation(self, gate: X, up: X, kind: str) -> X:
        """act(gate) · up, elementwise; kind is `silu` (x · sigmoid(x)) or `gelu_tanh`."""

    def add(self, x: X, y: X) -> X:
        """x + y, elementwise: the residual."""

    def route(self, logits: X, rule: RoutingRule, shared: X | None = None) -> X:
        """(T, E): of softmax(logits) the `top_k` largest of each row, all others 0; of equal ones
        the lower index. `shared` (T, 1) adds a column: sigmoid(shared), the weight of an expert
        that every row takes. arXiv 2401.04088, section 2.1; arXiv 2401.06066, section 3.2."""

    def experts(self, x: X, weights: X, experts: Sequence[ExpertWeights], kind: str) -> X:
        """(T, M): Σ weights[t, e] · down_e(act(gate_e(x)) · up_e(x)), summed by index. An expert
        sees the rows where its weight is not 0, however many they are."""

    def head(self, x: X, weight: str, cap: float | None = None) -> X:
        """(L, V) = rows `logit_rows` of x · weightᵀ: logits only where they are wanted. With `cap`
        each is cap · tanh(logit / cap)."""
