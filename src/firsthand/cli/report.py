"""Where time and memory went, on one page for a person.

Owns: the layout of the report and of a traced step.
May not know: how anything is measured; the values come from `generation`.
Read next: `generation/report.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from firsthand.cli.output import in_bytes, say, table


class OpTime(Protocol):
    """One operator of a traced step, as `compute/executor.py` has it."""

    @property
    def name(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ms(self) -> float: ...
    @property
    def num_bytes(self) -> int: ...


def print_report(report: Any) -> None:
    """The stages of one generation and what holds the memory, to standard error."""
    load, memory = report.load, report.memory
    say("")
    say(
        f"load      {load.total_ms:9.1f} ms   open {load.open_ms:.1f}, tokenizer "
        f"{load.tokenizer_ms:.1f}, weights {load.weights_ms:.1f}, plan {load.prepare_ms:.1f}"
    )
    say(f"tokenise  {report.tokenize_ms:9.1f} ms   {report.prompt_n} tokens")
    say(f"prompt    {report.prompt_ms:9.1f} ms   {_rate(report.prompt_per_second)}")
    say(
        f"output    {report.predicted_ms:9.1f} ms   {_rate(report.predicted_per_second)}, "
        f"{report.predicted_n} tokens{_spread(report.token_ms)}"
    )
    say(f"forward   {report.forward_ms:9.1f} ms   in {report.num_steps} steps")
    say(f"sample    {report.sample_ms:9.1f} ms")
    say(f"detokenise{report.detokenize_ms:9.1f} ms")
    say(
        f"memory    {in_bytes(memory.peak_rss_bytes):>12}   at most: weights "
        f"{in_bytes(memory.weights_bytes)}, KV {in_bytes(memory.kv_used_bytes)} of "
        f"{in_bytes(memory.kv_reserved_bytes)} reserved, scratch "
        f"{in_bytes(memory.scratch_bytes)}, tables {in_bytes(memory.tables_bytes)}"
    )


def print_shapes(ops: Sequence[OpTime]) -> None:
    """The tensors of one step, equal ones counted, to standard error."""
    say("\none step over the prompt:")
    for line in table(("OPERATOR", "RESULT", "TIMES", "MS", "WEIGHTS"), by_shape(ops)):
        say(line)


def by_shape(ops: Sequence[OpTime]) -> list[tuple[str, str, str, str, str]]:
    """Rows (operator, shape, how often, milliseconds, bytes), in order of first appearance."""
    sums: dict[tuple[str, tuple[int, ...]], tuple[int, float, int]] = {}
    for op in ops:
        count, ms, num_bytes = sums.get((op.name, op.shape), (0, 0.0, 0))
        sums[op.name, op.shape] = (count + 1, ms + op.ms, num_bytes + op.num_bytes)
    return [
        (name, shape_text(shape), str(count), f"{ms:.2f}", in_bytes(num_bytes))
        for (name, shape), (count, ms, num_bytes) in sums.items()
    ]


def op_as_dict(op: OpTime) -> dict[str, Any]:
    return {
        "name": op.name,
        "detail": op.detail,
        "shape": list(op.shape),
        "ms": op.ms,
        "num_bytes": op.num_bytes,
    }


def shape_text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _rate(per_second: float | None) -> str:
    return "no rate" if per_second is None else f"{per_second:.1f} tok/s"


def _spread(token_ms: Sequence[float]) -> str:
    if not token_ms:
        return ""
    middle = sorted(token_ms)[len(token_ms) // 2]
    return f", each {min(token_ms):.1f} to {max(token_ms):.1f}, median {middle:.1f}"
