"""The paged cache and attention over it, against the store of the CPU and the formula in float64.

Owns: first and last block, one row and many, one split and several, windows, caps, every type.
May not know: plans. Read next: `interpreted_executor.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from firsthand.compute.ops import AttentionRule
from firsthand.compute.torch import attention as reference
from firsthand.compute.triton.attention import SPLIT, Queries, attend
from firsthand.compute.triton.cache import LayerMemory, Places, store
from firsthand.compute.triton.tiles import Tile, bytes_of, tiles_for
from firsthand.errors import CapacityExceeded
from firsthand.kvcache.arrays import KVArrays
from tests.compute.triton.device import DEVICE, assert_near, empty, integers, random

BLOCK = 16
TYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "int8": torch.int8,
    "int16": torch.int16,
}


def memory_of(kv_dtype: str, num_slots: int, heads: int, size: int) -> LayerMemory:
    dtype = TYPES[kv_dtype]
    has_codes = not dtype.is_floating_point
    scales = [empty(num_slots, heads) if has_codes else None for _ in range(2)]
    keys, values = (empty(num_slots, heads, size, dtype=dtype) for _ in range(2))
    return LayerMemory(keys, values, *scales)


def places(positions: list[int], table_at: list[int], tables: list[int]) -> Places:
    return Places(integers(positions), integers(table_at), integers(tables), BLOCK)


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_store_rounds_as_the_store_of_the_cpu_does(kv_dtype: Any) -> None:
    """The first slot of a block and the last one, the first block and the last; padding writes
    nothing."""
    heads, size = 3, 10
    k, v = random(4, heads * size), 3 * random(4, heads * size, seed=1)
    k[2] = 0.0
    k[3, :5] = v[3, :5] = float("nan")
    memory = memory_of(kv_dtype, 64, heads, size)
    where = places([0, 31, 16, -1], [0, 0, 0, 0], [48, 0])
    store(k, v, memory, where)
    arrays = KVArrays(1, heads, size, num_slots=64, kv_dtype=kv_dtype, layout="rows")
    slots = np.array([48, 15, 0])
    shape = (3, heads, size)
    arrays.layer(0).write(
        slots, k[:3].cpu().numpy().reshape(shape), v[:3].cpu().numpy().reshape(shape)
    )
    wanted = arrays.layer(0).read(slots)
    for codes, scales, written in zip(
        (memory.keys, memory.values), (memory.key_scales, memory.value_scales), wanted, strict=True
    ):
        found = codes[torch.from_numpy(slots).to(DEVICE)].float()
        if scales is not None:
            found = found * scales[torch.from_numpy(slots).to(DEVICE)][..., None]
        step = {"int8": 1e-2, "int16": 4e-5}.get(kv_dtype, 0.0)  # a code may differ by one
        assert np.abs(found.cpu().numpy() - written).max() <= step * np.abs(written).max()
    untouched = memory.keys[[1, 14, 16, 47, 49, 63]].float()
    assert bool((untouched.isnan() | (untouched == -99)).all())


def test_store_turns_keys_by_their_position() -> None:
    from firsthand.compute.torch import formulas

    angles = random(20, 4, seed=2)
    cos, sin = angles.cos(), angles.sin()
    k, v = random(2, 16), random(2, 16, seed=1)
    memory = memory_of("float32", 32, 2, 8)
    store(k, v, memory, places([17, 2], [0, 0], [0, 16]), (cos, sin))
    at = torch.tensor([17, 2], device=DEVICE)
    wanted = formulas.rope(k.unflatten(1, (2, 8)), cos[at][:, None], sin[at][:, None])
    assert_near(memory.keys[at].flatten(1), wanted)
    assert torch.equal(memory.values[at].flatten(1), v)


def test_a_number_that_is_none_is_never_made_plausible() -> None:
    k = random(1, 8)
    k[0, 3] = float("nan")
    for kv_dtype in ("int8", "int16"):
        memory = memory_of(kv_dtype, 16, 1, 8)
        store(k, k, memory, places([0], [0], [0]))
        assert memory.key_scales is not None
        assert bool(memory.key_scales[0].isnan().all())


class Case:
    """Sequences of some lengths in a shuffled cache, and rows of each that attend."""

    def __init__(
        self,
        contexts: list[int],
        counts: list[int],
        kv_dtype: str = "float32",
        heads: int = 3,
        kv_heads: int = 1,
        size: int = 8,
    ) -> None:
        made = np.random.default_rng(sum(contexts))
        blocks = [-(-n // BLOCK) for n in contexts]
        starts = made.permutation(sum(blocks)) * BLOCK
        self.heads, self.kv_heads, self.size = heads, kv_heads, size
        self.memory = memory_of(kv_dtype, sum(blocks) * BLOCK, kv_heads, size)
        self.tables = starts.tolist()
        self.ats = np.cumsum([0, *blocks])[:-1].tolist()
        self.contexts, self.counts = contexts, counts
        self.held = []
        for i, (n, at) in enumerate(zip(contexts, self.ats, strict=True)):
            slots = torch.tensor(self.tables[at : at + -(-n // BLOCK)], device=DEVICE)
            slots = (slots[:, None] + torch.arange(BLOCK, device=DEVICE)).flatten()[:n]
            k, v = (2 * random(n, kv_heads, size, seed=10 + i + j) for j in (0, 50))
            if self.memory.code_bits:
                where = places(list(range(n)), [at] * n, self.tables)
                store(k.flatten(1), v.flatten(1), self.memory, where)
            else:  # as `store` does, faster where it is interpreted
                self.memory.keys[slots] = k.to(self.memory.keys.dtype)
                self.memory.values[slots] = v.to(self.memory.values.dtype)
            self.held.append((self._read(0, slots), self._read(1, slots)))
        self.q = [random(c, heads * size, seed=90 + i) for i, c in enumerate(counts)]

    def _read(self, which: int, slots: torch.Tensor) -> torch.Tensor:
        codes = (self.memory.keys, self.memory.values)[which][slots].double()
        scales = (self.memory.key_scales, self.memory.value_scales)[which]
        return codes if scales is None else codes * scales[slots].double()[..., None]

    def run(
        self,
        chosen: list[int],
        rule: AttentionRule,
        *,
        tiles: bool | None = None,
        room: int = 1 << 20,
    ) -> Any:
        """The rows of the chosen sequences in one step; `tiles`: all by one of the two ways."""
        positions: list[int] = []
        table_at: list[int] = []
        singles: list[int] = []
        firsts: list[int] = []
        counts: list[int] = []
        cut = tiles_for(self.heads // self.kv_heads, self.size, torch.float32, room)
        for i in chosen:
            first, n = len(positions), self.counts[i]
            positions += range(self.contexts[i] - n, self.contexts[i])
            table_at += [self.ats[i]] * n
            if n == 1 if tiles is None else not tiles:
                singles += range(first, first + n)
            else:
                for at in range(0, n, cut.rows):
                    firsts.append(first + at)
                    counts.append(min(cut.rows, n - at))
        splits = -(-max(self.contexts) // SPLIT)
        queries = Queries(integers(singles), integers(firsts), integers(counts), splits, cut)
        q = torch.cat([self.q[i] for i in chosen])
        out = empty(*q.shape)
        parts = empty(max(1, len(singles)), self.heads, splits, self.size)
        sums = empty(max(1, len(singles)), self.heads, splits, 2)
        where = places(positions, table_at, self.tables)
        attend(q, self.memory, where, queries, rule, out, parts, sums)
        return out

    def wanted(self, i: int, rule: AttentionRule) -> torch.Tensor:
        n, count = self.contexts[i], self.counts[i]
        positions = torch.arange(n - count, n, device=DEVICE)
        q = self.q[i].double().unflatten(1, (self.heads, self.size))
        return reference.formula(q, *self.held[i], positions, rule).flatten(1)


RULES = {
    "plain": AttentionRule(),
    "window": AttentionRule(window=20),
    "cap and scale": AttentionRule(scale=0.7, cap=2.0),
}


@pytest.mark.parametrize("rule", RULES)
def test_attention_is_its_formula(rule: str) -> None:
    """One row and many together; contexts that end at, before and behind a block and a split."""
    case = Case([1, 16, 17, 300, 70], [1, 1, 17, 1, 30])
    found = case.run([0, 1, 2, 3, 4], RULES[rule])
    wanted = torch.cat([case.wanted(i, RULES[rule]) for i in range(5)])
    assert_near(found, wanted, steps=10)


@pytest.mark.parametrize(("kv_dtype", "steps"), [("float16", 2000), ("int8", 10), ("int16", 10)])
def test_attention_reads_every_type(kv_dtype: str, steps: float) -> None:
    """In float16, products are made in float16: queries and weights are rounded to it."""
    case = Case([18, 6], [1, 5], kv_dtype, heads=4, kv_heads=2, size=10)
    found = case.run([0, 1], AttentionRule())
    wanted = torch.cat([case.wanted(i, AttentionRule()) for i in range(2)])
    assert_near(found, wanted, steps=steps)


def test_a_sequence_alone_has_the_bits_it_has_in_company() -> None:
    case = Case([70, 33, 300], [1, 20, 1])
    together = case.run([0, 1, 2], AttentionRule())
    assert torch.equal(case.run([0], AttentionRule()), together[:1])
    assert torch.equal(case.run([1], AttentionRule()), together[1:21])
    assert torch.equal(case.run([2], AttentionRule()), together[21:])


@pytest.mark.parametrize("rule", RULES)
def test_one_row_and_many_walk_alike(rule: str) -> None:
    """Both ways of a row through two splits: the same sums in the same order."""
    case = Case([SPLIT + 30], [3])
    many = case.run([0], RULES[rule], tiles=True)
    assert torch.equal(case.run([0], RULES[rule], tiles=False), many)


def test_a_row_of_padding_gives_zeros() -> None:
    case = Case([5], [1])
    out = empty(1, 24)
    cut = tiles_for(3, 8, torch.float32, 1 << 20)
    queries = Queries(integers([0]), integers([]), integers([]), 2, cut)
    where = places([-1], [0], case.tables)
    attend(
        case.q[0], case.memory, where, queries, AttentionRule(), out, empty(1, 3, 2, 8),
        empty(1, 3, 2, 2),
    )  # fmt: skip
    assert bool((out == 0).all())


def test_a_smaller_tile_changes_no_bit() -> None:
    case = Case([70, 20], [40, 3])
    found = case.run([0, 1], AttentionRule(), room=12 << 10)
    assert tiles_for(case.heads // case.kv_heads, case.size, torch.float32, 12 << 10).rows < 21
    assert torch.equal(found, case.run([0, 1], AttentionRule()))


KIB = 1 << 10
CARDS = {"9.0": 227 * KIB, "8.0": 163 * KIB, "8.9": 99 * KIB}


@pytest.mark.parametrize(
    ("card", "size", "dtype", "many", "one"),
    [
        ("8.9", 128, torch.float16, Tile(64, 3), Tile(16, 3)),
        ("9.0", 256, torch.float16, Tile(64, 3), Tile(16, 3)),
        ("8.0", 256, torch.float16, Tile(64, 2), Tile(16, 3)),
        ("8.9", 256, torch.float16, Tile(64, 1), Tile(16, 2)),
        ("9.0", 256, torch.float32, Tile(64, 2), Tile(16, 2)),
        ("8.0", 256, torch.float32, Tile(64, 1), Tile(16, 2)),
        ("8.9", 256, torch.float32, Tile(16, 1), Tile(16, 1)),
    ],
)
def test_a_tile_is_the_largest_that_a_card_has_room_for(
    card: str, size: int, dtype: torch.dtype, many: Tile, one: Tile
) -> None:
    found = tiles_for(4, size, dtype, CARDS[card])
    assert (found.many, found.one, found.rows) == (many, one, many.queries // 4)
    assert bytes_of(many, size, dtype) <= CARDS[card]


def test_heads_for_which_a_card_has_no_room_are_refused_with_the_way_out() -> None:
    with pytest.raises(CapacityExceeded, match=r"heads of 512 in float32 .* 165 KiB .* has 99: "):
        tiles_for(1, 512, torch.float32, CARDS["8.9"])
    assert tiles_for(48, 512, torch.float16, CARDS["8.0"]).rows == 1
