"""The memory of a step: one piece for all values of a plan, and what the kernels need beside it.

Owns: which value lies where, and in which type.
May not know: kernels, weights.
Read next: `../plan.py` (`lay_out`, which gives the places); `replay.py`.

The residual stream (embeddings and sums) and the weights of experts are float32; all between is of
the type of the activations, whose products the card makes fast. A place is as large as float32 at
the most rows, so it never moves: a graph that was captured over it stays right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from firsthand.compute.plan import Op, Value, lay_out
from firsthand.compute.triton.attention import SPLIT
from firsthand.values import dataclass

PARTS_BYTES = 256 << 20  # of splits that wait to be merged
MOST_SINGLES = 64  # more rows than this keep a card busy without splits


@dataclass(frozen=True, slots=True)
class ArenaSizes:
    """What a step may be, and what of a model its memory depends on."""

    max_tokens: int
    max_logit_rows: int
    vocab_size: int
    width: int
    num_heads: int
    head_size: int
    context_length: int

    @property
    def num_splits(self) -> int:
        return -(-self.context_length // SPLIT)

    @property
    def max_singles(self) -> int:
        """Rows that may have a program per split, within `PARTS_BYTES`."""
        each = 4 * self.num_heads * self.num_splits * (self.head_size + 2)
        return max(1, min(self.max_tokens, MOST_SINGLES, PARTS_BYTES // each))


class Arena:
    """All of it is taken at once; nothing is taken in a step."""

    def __init__(
        self, ops: Sequence[Op], sizes: ArenaSizes, active: torch.dtype, device: torch.device
    ) -> None:
        layout = lay_out(ops, sizes.max_tokens)
        kept = {value for op in ops for value in kept_exactly(op)}
        singles, splits = sizes.max_singles, sizes.num_splits
        lengths = {
            "values": layout.total,
            "logits": sizes.max_logit_rows * sizes.vocab_size,
            "chosen": sizes.max_logit_rows * sizes.width,
            "parts": singles * sizes.num_heads * splits * sizes.head_size,
            "sums": singles * sizes.num_heads * splits * 2,
        }
        self._memory = torch.empty(sum(lengths.values()), dtype=torch.float32, device=device)
        values, logits, chosen, self._parts, self._sums = self._memory.split(list(lengths.values()))
        self._sizes = sizes
        self._logits = logits.view(sizes.max_logit_rows, sizes.vocab_size)
        self._chosen = chosen.view(active)[: sizes.max_logit_rows * sizes.width].view(
            sizes.max_logit_rows, sizes.width
        )
        self._values: dict[Value, torch.Tensor] = {}
        for value, offset in layout.offsets.items():
            count = sizes.max_tokens * value.width
            place = values[offset : offset + count]
            if value not in kept:
                place = place.view(active)[:count]
            self._values[value] = place.view(sizes.max_tokens, value.width)

    @property
    def num_bytes(self) -> int:
        return int(self._memory.nbytes)

    def value(self, value: Value, rows: int) -> torch.Tensor:
        """(rows, width)."""
        return self._values[value][:rows]

    def logits(self, rows: int) -> torch.Tensor:
        """(rows, V)."""
        return self._logits[:rows]

    def chosen(self, rows: int) -> torch.Tensor:
        """(rows, M): what the head reads of the rows whose logits are wanted."""
        return self._chosen[:rows]

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and sums of the splits of single rows."""
        return self._parts, self._sums


def kept_exactly(op: Op) -> tuple[Value, ...]:
    """What of an operator's results is float32."""
    match op.name:
        case "embed" | "add" | "route":
            return op.outputs
        case "norm" if op.residual is not None:
            return op.outputs[:1]
    return ()
