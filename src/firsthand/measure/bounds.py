"""What a model must read and multiply, and how long that takes at the machine's limits.

Owns: the arithmetic behind every share of a limit.
May not know: how anything is timed.
Read next: `limits.py` (the rates), `latency.py` and `profile.py`, which divide by these bounds.

A generated token has to read the weights once, and the keys and values of its context. A prompt
has to multiply: its weights at the 8-bit rate, whatever format they are held in, and its attention
at the float rate. Only the last row of a prompt goes through the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firsthand.compute.executor import OpTime
from firsthand.measure.limits import MachineLimits, Rates
from firsthand.values import dataclass

WEIGHT_OPS = ("linear", "head")


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence asks of the machine, at any length.

    `weight_bytes` are read for one token; `kv_bytes_per_token` is one position in every layer.
    A pair is a row and a position that it sees.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    linear_macs_per_row: int
    head_macs: int
    attention_macs_per_pair: int

    def decode_bytes(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        """Read per generated token, on average over those after the first.

        Token i of them sees num_prompt_tokens + i positions, i = 1 … num_output_tokens − 1.
        """
        return self.weight_bytes + self.kv_bytes_per_token * (
            num_prompt_tokens + num_output_tokens / 2
        )

    def weight_macs(self, num_prompt_tokens: int) -> int:
        return num_prompt_tokens * self.linear_macs_per_row + self.head_macs

    def attention_macs(self, num_prompt_tokens: int) -> int:
        return self.attention_macs_per_pair * num_pairs(num_prompt_tokens)


def num_pairs(num_tokens: int) -> int:
    """Row r of a prompt sees r + 1 positions."""
    return num_tokens * (num_tokens + 1) // 2


def work_of(prompt_ops: Sequence[OpTime], token_ops: Sequence[OpTime], num_tokens: int) -> Work:
    """From two traced steps over `num_tokens`: of them all, and of the last one alone."""
    return Work(
        weight_bytes=sum(op.num_bytes for op in token_ops if op.name != "attend"),
        kv_bytes_per_token=sum(op.num_bytes for op in _named(token_ops, "attend")) // num_tokens,
        linear_macs_per_row=sum(op.num_macs for op in _named(prompt_ops, "linear")) // num_tokens,
        head_macs=sum(op.num_macs for op in _named(prompt_ops, "head")),
        attention_macs_per_pair=sum(op.num_macs for op in _named(prompt_ops, "attend"))
        // num_pairs(num_tokens),
    )


def decode_bound_ms(
    work: Work, limits: MachineLimits, num_prompt_tokens: int, num_output_tokens: int
) -> float:
    """The least time of one generated token."""
    num_bytes = work.decode_bytes(num_prompt_tokens, num_output_tokens)
    return num_bytes / limits.read_gb_per_second / 1e6


def prompt_bound_ms(work: Work, limits: MachineLimits, num_prompt_tokens: int) -> float:
    """The least time of a whole prompt."""
    weights = work.weight_macs(num_prompt_tokens) / limits.int8_gmac_per_second
    attention = work.attention_macs(num_prompt_tokens) / limits.fp32_gmac_per_second
    return (weights + attention) / 1e6


def op_bound_ms(op: OpTime, limits: MachineLimits) -> float:
    """The least time of one operator: reading and multiplying can overlap, so the longer one."""
    in_floats = op.name == "attend"
    rate = limits.fp32_gmac_per_second if in_floats else limits.int8_gmac_per_second
    return max(op.num_bytes / limits.read_gb_per_second, op.num_macs / rate) / 1e6


def reached_rates(prompt_ops: Sequence[OpTime], token_ops: Sequence[OpTime]) -> Rates:
    """What the kernels reached, each kind over a whole step.

    A single operator of the token step may find its weights in a cache; all of them together read
    the memory, as the limit does.
    """
    return Rates(
        read_gb_per_second=_rate((op.num_bytes, op.ms) for op in _named(token_ops, *WEIGHT_OPS)),
        int8_gmac_per_second=_rate((op.num_macs, op.ms) for op in _named(prompt_ops, "linear")),
        fp32_gflops=2 * _rate((op.num_macs, op.ms) for op in _named(prompt_ops, "attend")),
    )


def _named(ops: Sequence[OpTime], *names: str) -> list[OpTime]:
    return [op for op in ops if op.name in names]


def _rate(pairs: Iterable[tuple[int, float]]) -> float:
    """10⁹ a second, from amounts and milliseconds."""
    amount, ms = 0, 0.0
    for one, one_ms in pairs:
        amount += one
        ms += one_ms
    return amount / ms / 1e6 if ms > 0 else 0.0
