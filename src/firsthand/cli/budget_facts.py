"""Who gets how much memory, as a table for a person and as one object for a program.

Owns: the layout of a budget, and the keys of its JSON.
May not know: where a number comes from.
Read next: `memory/budget.py`.

Loaded by a command when it runs, so it may import what it shows.
"""

from __future__ import annotations

from firsthand.cli.output import in_bytes, table
from firsthand.kvcache.regions import HEADROOM
from firsthand.memory.budget import BYTES_OF_TYPE, SCALE_BYTES_OF_TYPE, Budget
from firsthand.models.spec import ModelSpec


def budget_lines(budget: Budget) -> list[str]:
    """The table: what, how much, which share, and how that is known."""
    known = "estimated" if budget.fixed.estimated else "measured"
    notes = {
        "weights": known,
        "scratch": known,
        "process": "estimated",
        "KV cache": f"{budget.num_blocks} blocks of {budget.block_size} tokens, at most",
        "limit": budget.limit.origin,
        "sum": budget.limit.origin,
    }
    rows = [
        (what, in_bytes(count), f"{share:.1%}", notes.get(what, ""))
        for what, count, share in budget.rows()
    ]
    return table(("MEMORY", "SIZE", "SHARE", ""), rows)


def as_dict(budget: Budget, kv_dtype: str) -> dict[str, object]:
    """Plain values for JSON."""
    return {
        "budget": budget.to_dict(),
        "kv_dtype": kv_dtype,
        "contiguous": {
            "headroom": HEADROOM,
            "bytes_per_context": _region_bytes(budget),
            "num_contexts": _num_regions(budget),
        },
    }


def print_plan(spec: ModelSpec, budget: Budget, kv_dtype: str) -> None:
    """The table, then each number with its arithmetic."""
    for line in budget_lines(budget):
        print(line)
    scale_bytes = SCALE_BYTES_OF_TYPE[kv_dtype]
    scales = f" + {scale_bytes}" if scale_bytes else ""
    print(
        f"\ntoken       {spec.num_layers} layers × {spec.num_kv_heads} heads × 2 × "
        f"({spec.head_size} × {BYTES_OF_TYPE[kv_dtype]}{scales}) bytes = "
        f"{in_bytes(budget.bytes_per_token)} of cache, {kv_dtype}"
    )
    wished = budget.wished_context_length
    own = (
        "" if budget.context_length == wished else f", {wished} were wished: memory allows no more"
    )
    print(f"context     {budget.context_length} tokens{own}")
    whole = budget.num_blocks * budget.block_size / budget.context_length
    print(f"sequences   {budget.max_sequences} at once; room for {whole:.1f} whole contexts, paged")
    region_bytes = _region_bytes(budget)
    print(
        f"contiguous  {budget.context_length} tokens × {HEADROOM} = {in_bytes(region_bytes)} per "
        f"whole context: {_num_regions(budget)} at once"
    )


def _num_regions(budget: Budget) -> int:
    """The last one's headroom gives way."""
    return max(1, budget.kv_bytes // _region_bytes(budget))


def _region_bytes(budget: Budget) -> int:
    """A whole context in the contiguous store, with its headroom, in whole blocks."""
    blocks = -(-budget.context_length // budget.block_size)
    return int(-(-blocks * HEADROOM // 1)) * budget.block_size * budget.bytes_per_token
