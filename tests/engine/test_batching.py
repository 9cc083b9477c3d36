"""Plan integers become arrays; what is kept between two steps changes nothing."""

from __future__ import annotations

import random

import numpy as np

from firsthand.compute.batch import FlatBatch
from firsthand.engine.batching import Batcher, flat_batch
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw, SequenceSlice, StepPlan

DRAW = Draw(SamplingParams(), seed=1, position=2)
PLAN = StepPlan(
    (
        SequenceSlice(4, (1, 2, 3), 5, (1,), None),
        SequenceSlice(7, (4,), 0, (0,), DRAW),
        SequenceSlice(9, (5, 0), 2, (2,), DRAW),
    )
)


def store() -> ContiguousStore:
    return ContiguousStore(1, 1, 2, num_slots=3 * 16, max_tokens=16)


def test_the_flat_batch_has_no_padding_and_positions_of_the_sequences() -> None:
    batch = flat_batch(PLAN, store())
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 0]
    assert batch.positions.tolist() == [5, 6, 7, 0, 2, 3]
    assert batch.row_starts.tolist() == [0, 3, 4, 6]
    assert batch.block_starts.tolist() == [[16], [0], [32]]
    assert batch.logit_rows.tolist() == [3, 5]
    assert batch.slots().tolist() == [21, 22, 23, 0, 34, 35]
    assert (batch.num_tokens, batch.num_sequences, batch.block_size) == (6, 3, 16)
    kinds = [batch.token_ids.dtype, batch.positions.dtype, batch.row_starts.dtype]
    assert [*kinds, batch.logit_rows.dtype] == [np.dtype(np.int32)] * 4
    assert batch.block_starts.dtype == np.int64


def test_shorter_block_tables_are_filled_up_with_minus_one() -> None:
    small = ContiguousStore(1, 1, 2, num_slots=8 * 16, max_tokens=16)
    plan = StepPlan(
        (
            SequenceSlice(0, (1, 2, 3), 14, (3, 1), None),
            SequenceSlice(1, (4,), 0, (0,), DRAW),
        )
    )
    batch = flat_batch(plan, small)
    assert batch.block_starts.tolist() == [[48, 16], [0, -1]]
    assert batch.slots().tolist() == [62, 63, 16, 0]


def test_a_plan_without_draws_wants_no_logits() -> None:
    batch = flat_batch(StepPlan(PLAN.slices[:1]), store())
    assert batch.logit_rows.shape == (0,)
    assert batch.logit_rows.dtype == np.int32


class Moving(ContiguousStore):
    """Its only block per sequence is somewhere else in each step, as after a compaction."""

    offset = 0

    def block_start(self, block_id: int) -> int:
        return super().block_start(block_id) + self.offset


def same(found: FlatBatch, right: FlatBatch) -> bool:
    arrays = ("token_ids", "positions", "row_starts", "block_starts", "logit_rows")
    return all(
        np.array_equal(getattr(found, name), getattr(right, name))
        and getattr(found, name).dtype == getattr(right, name).dtype
        and getattr(found, name).flags.c_contiguous
        for name in arrays
    )


def test_sequences_that_come_grow_and_go_give_the_batches_of_a_fresh_start() -> None:
    """Tables of several ids are reused; ids are given out again; one id may move at any time."""
    choose = random.Random(7)
    memory = Moving(1, 1, 2, num_slots=400 * 16, max_tokens=16)
    batcher = Batcher(memory)
    tables: dict[int, tuple[int, ...]] = {}
    seen_widths = set()
    for step in range(400):
        for sequence_id in [i for i in tables if choose.random() < 0.1]:
            del tables[sequence_id]
        for sequence_id in range(step * 20, step * 20 + choose.randrange(4)):
            tables[sequence_id] = tuple(choose.sample(range(400), choose.randrange(1, 5)))
        for sequence_id in tables:
            if choose.random() < 0.2 and len(tables[sequence_id]) > 1:
                tables[sequence_id] = (*tables[sequence_id], choose.randrange(400))
        if all(len(block_ids) == 1 for block_ids in tables.values()):
            memory.offset = choose.randrange(1000)
        order = list(tables)
        choose.shuffle(order)
        slices = tuple(
            SequenceSlice(
                i, (1,) * choose.randrange(1, 4), 5, tables[i], choose.choice([DRAW, None])
            )
            for i in order
        )
        if slices:
            found = batcher.batch(StepPlan(slices))
            seen_widths.add(found.block_starts.shape[1])
            assert same(found, flat_batch(StepPlan(slices), memory))
    assert len(seen_widths) > 5


def test_a_block_that_moved_is_found_where_it_is() -> None:
    memory = Moving(1, 1, 2, num_slots=3 * 16, max_tokens=16)
    batcher = Batcher(memory)
    assert batcher.batch(PLAN).block_starts.tolist() == [[16], [0], [32]]
    memory.offset = 5
    assert batcher.batch(PLAN).block_starts.tolist() == [[21], [5], [37]]


def test_what_is_kept_is_bounded() -> None:
    batcher = Batcher(ContiguousStore(1, 1, 2, num_slots=9 * 16, max_tokens=16))
    for turn in range(1000):
        table = (turn % 9, (turn + 1) % 9)
        batcher.batch(StepPlan((SequenceSlice(turn, (1,), 3, table, DRAW),)))
    assert len(vars(batcher)["_starts"]) <= 5
