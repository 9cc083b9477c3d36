"""Paged attention, for one row of a sequence and for many: one walk, in chunks of fixed size.

Owns: the walk over the context, how its parts are merged, and who starts where.
May not know: how rows came to be, who owns a block.
Read next: `tiles.py`, `cache.py`; `../torch/attention.py`, the same in torch.

A context is cut into splits of `SPLIT` positions, counted from 0, and a split into chunks of
`CHUNK`. Within a split the softmax runs along (arXiv 1805.02867, algorithm 3; arXiv 2205.14135,
algorithm 1): m is the largest score so far, l the sum of exp(score − m), o the weighted sum of
values. Splits are merged in order. For a sequence of one row each split is a program of its own,
and a second kernel merges them; for many rows one program takes a tile of rows through all
splits and merges as it goes. Both do the same sums in the same order.

A tile has the rows of one sequence and the query heads that share a key/value head: a matrix of
rows · (H / G) queries against the keys.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from firsthand.compute.ops import AttentionRule
from firsthand.compute.triton.cache import LayerMemory, Places
from firsthand.compute.triton.launch import OPTIONS, kernel, power_of_two, product_type
from firsthand.compute.triton.rows import tanh
from firsthand.compute.triton.tiles import CHUNK, Tile, Tiles
from firsthand.values import dataclass

SPLIT = 256  # positions


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Who attends in a step: single rows, each the only one of its sequence; and tiles, each
    `counts` rows of a sequence from `firsts` on. int32. `num_splits` holds any context, and
    `tiles` say how large a program is."""

    singles: torch.Tensor
    firsts: torch.Tensor
    counts: torch.Tensor
    num_splits: int
    tiles: Tiles


@kernel
def _merged(
    m: tl.tensor,
    total: tl.tensor,
    o: tl.tensor,
    m_new: tl.tensor,
    total_new: tl.tensor,
    o_new: tl.tensor,
) -> Any:
    """Two parts of a softmax joined; a part that saw nothing has m = −∞ and sums of 0."""
    largest = tl.maximum(m, m_new)
    shift = tl.where(largest == float("-inf"), 0.0, largest)  # never ∞ − ∞
    a, b = tl.exp(m - shift), tl.exp(m_new - shift)
    return largest, total * a + total_new * b, o * a[:, None] + o_new * b[:, None]


@kernel
def _mean(o: tl.tensor, total: tl.tensor) -> Any:
    """o / total; 0 for a row that sees nothing: one of padding."""
    return tl.where(total[:, None] > 0.0, o / tl.where(total > 0.0, total, 1.0)[:, None], 0.0)


@kernel
def _walked(
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, key_scales: tl.tensor,
    value_scales: tl.tensor, table: tl.tensor, position: tl.tensor, begin: tl.tensor,
    end: tl.tensor, last: tl.tensor, scale: tl.tensor, cap: tl.tensor, window: tl.tensor,
    block_size: tl.tensor, heads: tl.tensor, head: tl.tensor, size: tl.tensor, CHUNK: tl.constexpr,
    QUERIES: tl.constexpr, SIZE: tl.constexpr, CODES: tl.constexpr, HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr, DOT: tl.constexpr,
) -> Any:  # fmt: skip
    """m, l and o of the chunks from `begin` up to `end`; nothing behind `last` is read."""
    at = tl.arange(0, SIZE)
    m = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    o = tl.zeros((QUERIES, SIZE), dtype=tl.float32)
    for start in range(begin, end, CHUNK):
        p = start + tl.arange(0, CHUNK)
        there = p <= last
        block = tl.load(table + p // block_size, mask=there, other=0).to(tl.int64)
        row = (block + p % block_size) * heads + head
        is_key = (at < size)[:, None] & there[None, :]
        k = tl.load(keys + row[None, :] * size + at[:, None], mask=is_key, other=0.0)
        scores = tl.dot(q, k.to(tl.float32).to(DOT), input_precision="ieee") * scale
        if CODES:
            scores = scores * tl.load(key_scales + row, mask=there, other=0.0)[None, :]
        if HAS_CAP:
            scores = cap * tanh(scores / cap)
        seen = p[None, :] <= position[:, None]
        if HAS_WINDOW:
            seen = seen & (p[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        largest = tl.maximum(m, tl.max(scores, axis=1))
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(m - shift)
        total = total * rescale + tl.sum(weights, axis=1)
        if CODES:
            weights = weights * tl.load(value_scales + row, mask=there, other=0.0)[None, :]
        is_value = there[:, None] & (at < size)[None, :]
        v = tl.load(values + row[:, None] * size + at[None, :], mask=is_value, other=0.0)
        mixed = tl.dot(weights.to(DOT), v.to(tl.float32).to(DOT), input_precision="ieee")
        o = o * rescale[:, None] + mixed
        m = largest
    return m, total, o


@kernel
def _attend(
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, key_scales: tl.tensor,
    value_scales: tl.tensor, firsts: tl.tensor, counts: tl.tensor, positions: tl.tensor,
    table_at: tl.tensor, tables: tl.tensor, out: tl.tensor, parts: tl.tensor, sums: tl.tensor,
    scale: tl.tensor, cap: tl.tensor, window: tl.tensor, block_size: tl.tensor, heads: tl.tensor,
    size: tl.tensor, num_splits: tl.tensor, GROUP: tl.constexpr, QUERIES: tl.constexpr,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, MANY: tl.constexpr,
    CODES: tl.constexpr, HAS_CAP: tl.constexpr, HAS_WINDOW: tl.constexpr, DOT: tl.constexpr,
) -> Any:  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(firsts + tile).to(tl.int64)
    count = 1
    if MANY:
        count = tl.load(counts + tile)
    start = tl.load(positions + first)
    last = start + count - 1  # of a row of padding −1: it sees nothing
    lowest = 0
    if HAS_WINDOW:
        lowest = tl.maximum(0, start + 1 - window) // CHUNK * CHUNK
    query = tl.arange(0, QUERIES)
    row, of_group = query // GROUP, query % GROUP
    live = row < count
    position = tl.where(live, start + row, -1)
    at = tl.arange(0, SIZE)
    place = (first + row)[:, None] * heads * GROUP + (head * GROUP + of_group)[:, None]
    there = live[:, None] & (at < size)[None, :]
    queries = tl.load(q + place * size + at[None, :], mask=there, other=0.0)
    queries = queries.to(tl.float32).to(DOT)
    table = tables + tl.load(table_at + first)
    if MANY:
        m = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((QUERIES,), dtype=tl.float32)
        o = tl.zeros((QUERIES, SIZE), dtype=tl.float32)
        for split in range(lowest // SPLIT, (last + SPLIT) // SPLIT):
            begin = tl.maximum(split * SPLIT, lowest)
            end = tl.minimum((split + 1) * SPLIT, last + 1)
            part_m, part_total, part_o = _walked(
                queries, keys, values, key_scales, value_scales, table, position, begin, end, last,
                scale, cap, window, block_size, heads, head, size, CHUNK, QUERIES, SIZE, CODES,
                HAS_CAP, HAS_WINDOW, DOT,
            )  # fmt: skip
            m, total, o = _merged(m, total, o, part_m, part_total, part_o)
        tl.store(out + place * size + at[None, :], _mean(o, total), mask=there)
    else:
        split = tl.program_id(2)
        begin = tl.maximum(split * SPLIT, lowest)
        end = tl.minimum((split + 1) * SPLIT, last + 1)
        if begin < end:
            m, total, o = _walked(
                queries, keys, values, key_scales, value_scales, table, position, begin, end, last,
                scale, cap, window, block_size, heads, head, size, CHUNK, QUERIES, SIZE, CODES,
                HAS_CAP, HAS_WINDOW, DOT,
            )  # fmt: skip
            # (single row, head, split): its o, then its m and l.
            part = (tile * heads * GROUP + head * GROUP + of_group) * num_splits + split
            tl.store(parts + part[:, None] * size + at[None, :], o, mask=there)
            tl.store(sums + 2 * part, m, mask=live)
            tl.store(sums + 2 * part + 1, total, mask=live)


@kernel
def _merge(
    parts: tl.tensor, sums: tl.tensor, singles: tl.tensor, positions: tl.tensor, out: tl.tensor,
    window: tl.tensor, heads: tl.tensor, size: tl.tensor, num_splits: tl.tensor,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, HAS_WINDOW: tl.constexpr,
) -> Any:  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.load(singles + tile).to(tl.int64)
    last = tl.load(positions + row)
    lowest = 0
    if HAS_WINDOW:
        lowest = tl.maximum(0, last + 1 - window) // CHUNK * CHUNK
    at = tl.arange(0, SIZE)
    inside = (at < size)[None, :]
    m = tl.full((1,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((1,), dtype=tl.float32)
    o = tl.zeros((1, SIZE), dtype=tl.float32)
    for split in range(lowest // SPLIT, (last + SPLIT) // SPLIT):
        part = (tile * heads + head) * num_splits + split
        part_m = tl.load(sums + 2 * part + tl.arange(0, 1))
        part_total = tl.load(sums + 2 * part + 1 + tl.arange(0, 1))
        part_o = tl.load(parts + part * size + at[None, :], mask=inside, other=0.0)
        m, total, o = _merged(m, total, o, part_m, part_total, part_o)
    tl.store(out + (row * heads + head) * size + at[None, :], _mean(o, total), mask=inside)


def attend(
    q: torch.Tensor,
    memory: LayerMemory,
    places: Places,
    queries: Queries,
    rule: AttentionRule,
    out: torch.Tensor,
    parts: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """out (T, H · D) = softmax(q · kᵀ / sqrt(D)) · v over positions 0 … own, but for what `rule`
    says; keys and values are read back from the memory. arXiv 1706.03762, equation 1.

    `parts` (singles, H, splits, D) and `sums` (singles, H, splits, 2), float32, are scratch.
    """
    _, kv_heads, size = memory.keys.shape
    group = q.shape[1] // (kv_heads * size)
    shared = {
        "SIZE": power_of_two(size, 16),
        "CHUNK": CHUNK,
        "SPLIT": SPLIT,
        "HAS_WINDOW": rule.window is not None,
        **OPTIONS,
    }
    window = 0 if rule.window is None else rule.window

    def walk(firsts: torch.Tensor, tile: Tile, splits: int, *, many: bool) -> None:
        _attend[(firsts.shape[0], kv_heads, splits)](
            q,
            memory.keys,
            memory.values,
            *memory.scales,
            firsts,
            queries.counts if many else firsts,
            places.positions,
            places.table_at,
            places.tables,
            out,
            parts,
            sums,
            rule.scale_of(size),
            1.0 if rule.cap is None else rule.cap,
            window,
            places.block_size,
            kv_heads,
            size,
            queries.num_splits,
            GROUP=group,
            QUERIES=tile.queries,
            MANY=many,
            CODES=memory.code_bits > 0,
            HAS_CAP=rule.cap is not None,
            DOT=product_type(dot_dtype(memory.keys.dtype, q.dtype)),
            num_stages=tile.stages,
            **shared,
        )

    if queries.firsts.shape[0]:
        walk(queries.firsts, queries.tiles.many, 1, many=True)
    num_singles = queries.singles.shape[0]
    if num_singles:
        walk(queries.singles, queries.tiles.one, queries.num_splits, many=False)
        _merge[(num_singles, kv_heads * group)](
            parts, sums, queries.singles, places.positions, out, window, kv_heads * group, size,
            queries.num_splits, **shared,
        )  # fmt: skip


def dot_dtype(held: torch.dtype, active: torch.dtype) -> torch.dtype:
    """Products are made in the type of the memory; codes of 8 bits are exact in any type, those of
    16 bits need float32."""
    if held == torch.int8:
        return active
    return torch.float32 if held == torch.int16 else held
